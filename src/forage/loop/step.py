"""One training step: generate, compare, update, publish.

Everything that a step draws depends on the seed and the step's number alone, so that a step done
again after an interruption is the same step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forage import app
from forage.agent.types import Question
from forage.errors import UserError
from forage.loop.advantage import group_advantages, kept_groups, shuffled
from forage.loop.batch import make_batch
from forage.loop.config import TrainConfig
from forage.loop.evaluate import refuse_all_failed
from forage.loop.generation import Policy, ask
from forage.loop.metrics import StepMetrics, sample_means, search_times
from forage.loop.rundir import RunDir
from forage.loop.services import Services
from forage.loop.store import write_trajectories
from forage.rollout.trajectory import Trajectory
from forage.trainer.batch import TrainBatch
from forage.trainer.service import UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What came of a batch; the defaults are those of a step that had none.

    Attributes:
        policy: the newest published policy.
        report: rank 0's, None if nothing was updated.
        busy_s: seconds that the trainers worked, on average over the ranks.
    """

    policy: Policy
    report: UpdateReport | None = None
    update_s: float = 0.0
    publish_s: float = 0.0
    busy_s: float = 0.0
    published_bytes: int = 0
    changed_fraction: float = 0.0


def train_step(
    step: int,
    questions: Sequence[Question],
    policy: Policy,
    config: TrainConfig,
    services: Services,
    run: RunDir,
) -> tuple[StepMetrics, Policy]:
    """Train on `questions` once; returns what to record, and the policy of the next step.

    Raises:
        UserError: if every sample failed, or the gradient was not finite.
    """
    started, retried = time.perf_counter(), services.calls_retried()
    generated = ask(
        services.rollouts,
        questions,
        policy,
        purpose="train",
        step=step,
        samples=config.group_size,
        per_call=config.prompts_per_task,
    ).collect()
    samples = generated.trajectories
    refuse_all_failed(samples, f"step {step}")
    advantages = step_advantages(samples, config, step)
    batch = make_batch(samples, advantages)
    keep = partial(write_trajectories, run.step_trajectories(step), samples, questions)
    learned = learn(batch, policy, services, meanwhile=keep)
    seconds = time.perf_counter() - started
    rollout_share = generated.busy_s / services.rollout_executors() / seconds
    metrics = StepMetrics(
        step=step,
        calls_retried=services.calls_retried() - retried,
        rollout_s=generated.wall_s,
        sync_s=generated.sync_s,
        step_s=seconds,
        rollout_idle_fraction=max(0.0, 1 - rollout_share),
        trainer_idle_fraction=max(0.0, 1 - learned.busy_s / seconds),
        **_of_samples(samples, advantages, policy.version),
        **_of_update(batch, learned),
    )
    return metrics, learned.policy


def step_advantages(
    samples: Sequence[Trajectory], config: TrainConfig, step: int
) -> NDArray[np.float64]:
    """Advantages [questions, samples] of question-major samples."""
    shape = (-1, config.group_size)
    rewards = np.reshape([sample.reward for sample in samples], shape)
    failed = np.reshape([sample.failure is not None for sample in samples], shape)
    if config.shuffle_rewards:
        rewards = shuffled(rewards, failed, config.seed, step)
    return group_advantages(rewards, failed)


def learn(
    batch: TrainBatch | None,
    policy: Policy,
    services: Services,
    meanwhile: Callable[[], None],
) -> Learned:
    """Let every trainer train on its share of the batch, then publish what they made of it.

    The driver does `meanwhile` while the trainers work.
    """
    if batch is None:
        meanwhile()
        return Learned(policy=policy)
    started = time.perf_counter()
    shared = app.put(batch)
    try:
        future = services.trainers.update.broadcast(shared)
        meanwhile()
        reports: list[UpdateReport] = future.result()
    finally:
        app.delete(shared)
    updated = time.perf_counter()
    report = reports[0]
    busy_s = sum(each.update_s for each in reports) / len(reports)
    if not report.updated:
        return Learned(policy=policy, update_s=updated - started, busy_s=busy_s)
    if not math.isfinite(report.grad_norm):
        raise UserError(
            f"training has diverged: the norm of the gradient is {report.grad_norm}; "
            "start a run with a lower --learning-rate"
        )
    published, manifest = services.trainers.publish.broadcast(policy.version + 1).result()[0]
    publish_s = time.perf_counter() - updated
    return Learned(
        policy=Policy(published.version, manifest),
        report=report,
        update_s=updated - started,
        publish_s=publish_s,
        busy_s=busy_s + publish_s,
        published_bytes=published.published_bytes,
        changed_fraction=published.changed_fraction,
    )


def _of_samples(
    samples: Sequence[Trajectory], advantages: NDArray[np.float64], version: int
) -> dict[str, Any]:
    """What is counted over the samples of a step, drawn when `version` was the newest."""
    in_batch = ~np.isnan(advantages.reshape(-1))
    trained = [sample for sample, kept in zip(samples, in_batch, strict=True) if kept]
    return {
        "groups_kept": kept_groups(advantages),
        "groups_total": len(advantages),
        "samples_trained": len(trained),
        "samples_failed": sum(sample.failure is not None for sample in samples),
        "lag_max": max((version - sample.version for sample in trained), default=0),
        **sample_means(samples),
        **search_times(samples),
    }


def _of_update(batch: TrainBatch | None, learned: Learned) -> dict[str, Any]:
    """What an update did; null where it takes an update to measure it."""
    report = learned.report
    measured = (
        *("kl", "entropy", "clip_fraction", "mismatch_mean", "mismatch_p99"),
        *("grad_norm", "lr"),
    )
    return {
        "weight_version": learned.policy.version,
        "tokens_trained": int(batch.mask.sum()) if batch else 0,
        "update_s": learned.update_s,
        "publish_s": learned.publish_s,
        "published_bytes": learned.published_bytes,
        "changed_fraction": learned.changed_fraction,
        **{name: getattr(report, name) if report else None for name in measured},
    }
