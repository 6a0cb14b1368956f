"""One small file per algorithm. Each sums a loss over sampled tokens and names its denominator."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from forage.trainer.algorithms.grpo import GRPO
from forage.trainer.algorithms.tokens import LossSettings, Tokens
from forage.trainer.batch import TrainBatch


class Algorithm(Protocol):
    """A policy-gradient objective."""

    def loss(self, tokens: Tokens, settings: LossSettings) -> Tensor:
        """The loss summed over `tokens`, a scalar to be divided by the global denominator."""

    def denominator(self, batch: TrainBatch) -> float:
        """What the sum over `batch` is divided by, additive over parts of a batch."""


ALGORITHMS: dict[str, Algorithm] = {"grpo": GRPO()}

__all__ = ["ALGORITHMS", "GRPO", "Algorithm", "LossSettings", "Tokens"]
