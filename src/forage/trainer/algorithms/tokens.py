"""What an algorithm sees of a micro-batch: its sampled tokens, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens of a micro-batch; every tensor is fp32 [tokens].

    Attributes:
        logprobs: under the policy being trained; carries the gradient.
        old: under the trainer's policy before the batch's first optimizer step.
        engine: as the generation engine reported them.
        reference: under the frozen reference model, or None without a KL term.
        advantages: of the sample that each token belongs to.
    """

    logprobs: Tensor
    old: Tensor
    engine: Tensor
    reference: Tensor | None
    advantages: Tensor


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Coefficients of the loss.

    Attributes:
        clip: ratios are clipped to [1 - clip, 1 + clip].
        kl: coefficient of the KL estimate; 0 leaves it out.
    """

    clip: float
    kl: float


MAX_MISMATCH_WEIGHT = 2.0
"""Cap of the weight that corrects for the engine's numerics."""


def mismatch_weight(tokens: Tokens) -> Tensor:
    """min(p_old / p_engine, 2): truncated importance sampling of trainer over engine.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
    Training".
    """
    return (tokens.old - tokens.engine).exp().clamp(max=MAX_MISMATCH_WEIGHT).detach()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) from the policy's own samples, never negative.

    Source: Schulman 2020, "Approximating KL Divergence", estimator k3.
    """
    gap = reference - logprobs
    return gap.exp() - gap - 1
