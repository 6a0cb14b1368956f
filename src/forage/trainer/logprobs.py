"""Log-probabilities of sampled tokens without the logits of all positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from forage.errors import UserError
from forage.trainer.batch import TrainBatch

CHUNK = 2048
"""Positions whose logits exist at the same time."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each sampled token, in batch order; fp32 [sampled tokens]."""

    logprobs: Tensor
    entropy: Tensor


def score(model: PreTrainedModel, batch: TrainBatch, temperature: float) -> Scores:
    """Log-probability of every sampled token of `batch`, and the entropy where it was drawn.

    Logits are divided by `temperature`, as they were for sampling. Gradients flow where enabled.
    """
    device = next(model.parameters()).device
    ids, sampled = (torch.from_numpy(array).to(device) for array in batch.padded())
    # Padding stands at the end, where causal attention never looks.
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    drawn_from = hidden[:, :-1][sampled[:, 1:]]
    targets = ids[:, 1:][sampled[:, 1:]]
    head = model.get_output_embeddings()
    parts = [
        checkpoint(_score_chunk, states, head, chosen, temperature, use_reentrant=False)
        for states, chosen in zip(
            torch.split(drawn_from, CHUNK), torch.split(targets, CHUNK), strict=True
        )
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return Scores(torch.cat(logprobs), torch.cat(entropies))


def check_head(model: PreTrainedModel) -> None:
    """Prove that the model's logits are its output embeddings times its last hidden states.

    Raises:
        UserError: for a model that does more (a soft cap, a scale), which `score` would miss.
    """
    device = next(model.parameters()).device
    ids = torch.arange(4, device=device)[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        ours = model.get_output_embeddings()(hidden)
        theirs = model(input_ids=ids, use_cache=False).logits
    if not torch.equal(ours, theirs):
        kind = type(model).__name__
        raise UserError(f"model {kind}: changes logits after its output layer; use another model")


def _score_chunk(
    hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy
