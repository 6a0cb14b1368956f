"""Log-probabilities of sampled tokens, a chunk of logits at a time, and their gradient.

Logits of a whole micro-batch are never kept: with a vocabulary of 150,000 they would be larger
than all else. The backward pass computes a chunk's logits again, which costs a third more in the
output layer and at the sampled positions alone: below 1 % of an update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from forage.trainer.memory import LOGITS_CHUNK


class ChosenLogprobs(torch.autograd.Function):
    """Log-probabilities of chosen tokens under softmax(output layer / temperature)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities, and entropies without gradient; both fp32 [n].

        Args:
            ctx: where the backward pass finds what it needs.
            hidden: [n, width], last hidden states.
            weight: [vocabulary, width], of the output layer.
            bias: [vocabulary], of the output layer.
            targets: int64 [n], the chosen tokens.
            temperature: that logits are divided by.
        """
        logprobs = torch.empty(len(hidden), device=hidden.device)
        entropies, norms = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _parts(len(hidden)):
            logits = linear(hidden[part], weight, bias)
            logprobs[part], entropies[part], norms[part] = _fused(_read)(
                logits, targets[part], temperature
            )
        ctx.save_for_backward(hidden, weight, bias, targets, norms)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden states, weight and bias; sums over chunks are formed in fp32."""
        hidden, weight, bias, targets, norms = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in _parts(len(hidden)):
            logits = linear(hidden[part], weight, bias)
            slopes = _fused(_slopes)(
                logits, targets[part], norms[part], gradient[part], ctx.temperature
            )
            of_hidden[part] = slopes @ weight
            of_weight += slopes.T @ hidden[part]
            if of_bias is not None:
                of_bias += slopes.sum(0)
        return (
            of_hidden,
            of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(weight.dtype),
            None,
            None,
        )


def _parts(count: int) -> list[slice]:
    return [slice(start, start + LOGITS_CHUNK) for start in range(0, count, LOGITS_CHUNK)]


def _read(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies and log normalisers."""
    scaled = logits.float() / temperature
    norm = torch.logsumexp(scaled, dim=-1)
    chosen = scaled.gather(1, targets[:, None])[:, 0]
    entropy = norm - ((scaled - norm[:, None]).exp() * scaled).sum(dim=-1)
    return chosen - norm, entropy, norm


def _slopes(
    logits: Tensor, targets: Tensor, norms: Tensor, gradient: Tensor, temperature: float
) -> Tensor:
    """The gradient with respect to the logits, in their dtype."""
    probabilities = (logits.float() / temperature - norms[:, None]).exp()
    tokens = torch.arange(logits.shape[1], device=logits.device)
    hit = (tokens == targets[:, None]).float()
    return ((hit - probabilities) * (gradient / temperature)[:, None]).to(logits.dtype)


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, on a GPU as one kernel instead of one for every operation."""

    def run(logits: Tensor, *others: Any) -> Any:
        return (_compiled(function) if logits.is_cuda else function)(logits, *others)

    return run


@lru_cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
