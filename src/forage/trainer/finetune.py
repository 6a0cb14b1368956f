"""Supervised learning from traces: every written token is made likelier, until it no longer helps.

It is a trainer's update with another loss: packed samples, fp32 masters, the bf16-rounded model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forage.errors import UserError
from forage.trainer.algorithms import LossSettings
from forage.trainer.algorithms.tokens import Tokens
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner
from forage.trainer.packing import pack
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer

PATIENCE = 2
"""Epochs in a row without a lower loss on the traces set aside, after which it has converged."""
WARM_UP = 20
"""Steps in which the learning rate rises."""
GRAD_CLIP = 1.0


class Imitation:
    """The log-likelihood of what was written; see `forage.trainer.algorithms.Algorithm`."""

    def loss(self, tokens: Tokens, settings: LossSettings) -> Tensor:
        """-log p, summed."""
        return -tokens.logprobs.sum()

    def denominator(self, batch: TrainBatch) -> float:
        """The number of written tokens."""
        return float(batch.mask.sum())


@dataclass(slots=True)
class Progress:
    """What came of a fit.

    Attributes:
        losses: mean loss per written token of the traces set aside, in nats: before the first
            epoch and after each.
        weights: of the best epoch, bf16 on the CPU.
        best: epoch with the lowest of them, 0 for the model as it was.
        steps: optimizer steps.
        converged: whether it ended because the loss fell no further.
    """

    losses: list[float]
    weights: dict[str, Tensor] = field(repr=False)
    best: int = 0
    steps: int = 0
    converged: bool = False


class Finetuner:
    """A policy that imitates traces, on one device."""

    def __init__(
        self,
        scorer: Scorer,
        learning_rate: float,
        micro_batch_tokens: int,
        optimizer_device: torch.device | None = None,
    ) -> None:
        """Take over the scorer's model, whose parameters already are bf16 values.

        `optimizer_device` is where masters and optimizer lie, if not with the model.
        """
        self._scorer = scorer
        self._policy = Policy(scorer.model, learning_rate, 0.0, optimizer_device)
        self._learning_rate = learning_rate
        self._micro_batch_tokens = micro_batch_tokens
        ranks = Ranks(0, 1, "", self._policy.device)
        self._learner = Learner(
            self._policy,
            scorer,
            None,
            Imitation(),
            LossSettings(clip=1.0, kl=0.0),
            ranks,
            temperature=1.0,
            micro_batch_tokens=micro_batch_tokens,
        )

    def fit(
        self,
        epoch: Callable[[], Sequence[TrainBatch]],
        aside: TrainBatch,
        max_epochs: int,
        observe: Callable[[Progress], None],
    ) -> Progress:
        """Train on `epoch()` again and again; leave the model with the lowest loss on `aside`.

        The learning rate falls in a line to a tenth over `max_epochs`.

        Raises:
            UserError: if it diverges, or no epoch makes the loss on `aside` lower.
        """
        progress = Progress(losses=[self.loss(aside)], weights=self._copy())
        observe(progress)
        for number in range(1, max_epochs + 1):
            batches = epoch()
            for index, batch in enumerate(batches):
                done = (number - 1 + index / len(batches)) / max_epochs
                self._set_rate(min(1.0, (progress.steps + 1) / WARM_UP) * (1 - 0.9 * done))
                _, norm = self._learner.update(batch, minibatches=1, max_norm=GRAD_CLIP)
                _check_finite(norm, "norm of the gradient", number)
                progress.steps += 1
            loss = self.loss(aside)
            _check_finite(loss, "loss on the traces set aside", number)
            if loss < min(progress.losses):
                progress.best, progress.weights = number, self._copy()
            progress.losses.append(loss)
            observe(progress)
            if number - progress.best >= PATIENCE:
                progress.converged = True
                break
        if progress.best == 0:
            told = " ".join(f"{loss:.3f}" for loss in progress.losses)
            raise UserError(
                f"no epoch made the traces set aside likelier (loss before and after each: {told});"
                " lower --rate, or train from the model as it is"
            )
        self._restore(progress.weights)
        return progress

    @torch.no_grad()
    def loss(self, batch: TrainBatch) -> float:
        """Mean loss per written token, in nats."""
        sums = [
            self._scorer(pack(micro, self._policy.device), 1.0)[0].double().sum()
            for micro in batch.micro_batches(self._micro_batch_tokens)
        ]
        return -float(torch.stack(sums).sum()) / float(batch.mask.sum())

    def _set_rate(self, share: float) -> None:
        for group in self._policy.optimizer.param_groups:
            group["lr"] = self._learning_rate * share

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.cpu().clone() for name, tensor in self._policy.tensors().items()}

    @torch.no_grad()
    def _restore(self, weights: dict[str, Tensor]) -> None:
        parameters = dict(self._policy.model.named_parameters())
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)


def _check_finite(value: float, what: str, epoch: int) -> None:
    if not math.isfinite(value):
        raise UserError(f"it has diverged: the {what} is {value} in epoch {epoch}; lower --rate")
