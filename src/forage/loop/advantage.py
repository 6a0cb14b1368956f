"""Group-relative advantages: how much better a sample did than its siblings.

A = (r - mean) / (std + 1e-6) within the samples of one question, std with n - 1 (GRPO, Shao et
al. 2024, arXiv:2402.03300, section 4.1.2). Failed samples belong to no group: they are neither
rewarded nor compared with. A group whose rewards are all equal teaches nothing and is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

EPSILON = 1e-6


def group_advantages(rewards: ArrayLike, failed: ArrayLike) -> NDArray[np.float64]:
    """Advantages of samples laid out as one row per question.

    Args:
        rewards: float [questions, samples]; values of failed samples are ignored.
        failed: bool [questions, samples].

    Returns:
        float64 [questions, samples]; NaN for samples that are not trained on: the failed ones
        and all of a group that has no spread among the rest.
    """
    values = np.asarray(rewards, dtype=np.float64)
    lost = np.asarray(failed, dtype=bool)
    if values.ndim != 2 or values.shape != lost.shape:
        raise ValueError(f"rewards {values.shape} and failed {lost.shape} must be equal 2-d shapes")
    advantages = np.full(values.shape, np.nan)
    for row, out, keep in zip(values, advantages, ~lost, strict=True):
        group = row[keep]
        if len(group) >= 2 and np.ptp(group) > 0:
            out[keep] = (group - group.mean()) / (group.std(ddof=1) + EPSILON)
    return advantages


def kept_groups(advantages: NDArray[np.float64]) -> int:
    """Groups with anything to train on."""
    return int((~np.isnan(advantages)).any(axis=1).sum())


def shuffled(rewards: ArrayLike, failed: ArrayLike, seed: int, step: int) -> NDArray[np.float64]:
    """The rewards of a step permuted among its samples that did not fail: a control experiment."""
    values = np.array(rewards, dtype=np.float64)
    usable = ~np.asarray(failed, dtype=bool)
    values[usable] = np.random.default_rng([seed, step]).permutation(values[usable])
    return values
