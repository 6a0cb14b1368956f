"""GRPO: clipped policy gradient with group-relative advantages, averaged over tokens.

Source: Shao et al. 2024, "DeepSeekMath", with the mean over all trained tokens of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forage.trainer.algorithms.tokens import LossSettings, Tokens, k3, mismatch_weight
from forage.trainer.batch import TrainBatch


class GRPO:
    """See `forage.trainer.algorithms.Algorithm`."""

    def loss(self, tokens: Tokens, settings: LossSettings) -> Tensor:
        """-w min(rho A, clip(rho) A) + kl k3, summed."""
        ratio = (tokens.logprobs - tokens.old).exp()
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * tokens.advantages, clipped * tokens.advantages)
        loss = -(mismatch_weight(tokens) * gain).sum()
        if tokens.reference is not None:
            loss = loss + settings.kl * k3(tokens.logprobs, tokens.reference).sum()
        return loss

    def denominator(self, batch: TrainBatch) -> float:
        """The number of sampled tokens."""
        return float(batch.mask.sum())
