"""What is recorded of each step: the names that other programs may rely on.

`METRICS` explains each; docs/training.md shows the same table. A value is null where a step had
nothing to measure, as when every group was dropped and no update was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from forage.rollout.trajectory import Trajectory

SETTLING_STEPS = 2
"""Averages leave out the first steps, which pay for whole weights and first-time work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of metrics.jsonl. `METRICS` says what each field means."""

    step: int
    weight_version: int
    reward_mean: float | None
    exact_match: float | None
    searches_mean: float | None
    groups_kept: int
    groups_total: int
    samples_trained: int
    samples_failed: int
    calls_retried: int
    tokens_trained: int
    rollout_s: float
    update_s: float
    publish_s: float
    sync_s: float
    step_s: float
    published_bytes: int
    changed_fraction: float
    kl: float | None
    entropy: float | None
    clip_fraction: float | None
    mismatch_mean: float | None
    mismatch_p99: float | None
    grad_norm: float | None
    lr: float | None
    rollout_idle_fraction: float
    trainer_idle_fraction: float
    search_ms_p50: float | None
    search_ms_p99: float | None
    lag_max: int


METRICS: dict[str, str] = {
    "step": "training step, from 1",
    "weight_version": "version of the published policy after the step",
    "reward_mean": "mean reward of the samples that did not fail",
    "exact_match": "share of them whose answer is a gold answer",
    "searches_mean": "searches per sample",
    "groups_kept": "questions whose samples differ in reward; only these are trained on",
    "groups_total": "questions asked",
    "samples_trained": "samples in the batch",
    "samples_failed": "samples that failed (as when a retriever was down): neither right nor wrong",
    "calls_retried": "rollout calls that ran again because their executor was lost",
    "tokens_trained": "sampled tokens in the batch",
    "rollout_s": "seconds from the first call to the last result",
    "update_s": "seconds of the update, as the driver sees it",
    "publish_s": "seconds of the publication, as the driver sees it",
    "sync_s": "seconds that the slowest call spent fetching and applying weights",
    "step_s": "seconds of the step, without evaluation and checkpoint",
    "published_bytes": "bytes of weights published",
    "changed_fraction": "share of bf16 weights that the update changed",
    "kl": "mean k3 estimate of KL(policy || starting model) per trained token",
    "entropy": "mean entropy of the policy per trained token, in nats",
    "clip_fraction": "share of trained tokens whose ratio was clipped",
    "mismatch_mean": "mean |log-probability of the trainer - of the generation engine|",
    "mismatch_p99": "its 99th percentile",
    "grad_norm": "norm of the gradient before clipping",
    "lr": "learning rate",
    "rollout_idle_fraction": "share of rollout executors' time in the step without work",
    "trainer_idle_fraction": "share of the trainers' time in the step without work",
    "search_ms_p50": "median time of a search in milliseconds",
    "search_ms_p99": "99th percentile of it",
    "lag_max": "weight versions between the oldest token trained on and the policy it trained",
}

WALL_TIMES = frozenset(
    {
        "rollout_s",
        "update_s",
        "publish_s",
        "sync_s",
        "step_s",
        "rollout_idle_fraction",
        "trainer_idle_fraction",
        "search_ms_p50",
        "search_ms_p99",
    }
)
"""What depends on the clock; all else of a run is reproducible, `published_bytes` and
`calls_retried` aside (a resumed run publishes whole weights first)."""


def sample_means(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Means over the samples that did not fail."""
    valid = [trajectory for trajectory in trajectories if trajectory.failure is None]
    return {
        "reward_mean": mean(trajectory.reward for trajectory in valid),
        "exact_match": mean(trajectory.exact_match for trajectory in valid),
        "searches_mean": mean(trajectory.searches for trajectory in valid),
    }


def search_times(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Percentiles over all searches of the step."""
    times = [ms for trajectory in trajectories for ms in trajectory.search_ms]
    p50, p99 = np.percentile(times, [50, 99]).tolist() if times else (None, None)
    return {"search_ms_p50": p50, "search_ms_p99": p99}


def mean(values: Iterable[float]) -> float | None:
    """Mean in order of appearance, or None of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
