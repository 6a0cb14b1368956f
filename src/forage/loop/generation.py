"""Questions out to the rollout executors, trajectories back in the order of asking."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from forage import app
from forage.agent.types import Question
from forage.rollout.trajectory import Trajectory
from forage.rollout.types import GenerateRequest, GenerateResult


@dataclass(frozen=True, slots=True)
class Policy:
    """Which weights to generate with: version 0 without a manifest is the model as loaded."""

    version: int = 0
    manifest: app.Ref | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """What one round of calls brought back.

    Attributes:
        trajectories: question-major, in the order of the questions.
        busy_s: seconds that executors worked, summed over the executors.
        sync_s: seconds that the slowest call spent on fetching and applying weights.
        wall_s: seconds from the first call to the last result.
    """

    trajectories: tuple[Trajectory, ...]
    busy_s: float
    sync_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """Calls on their way; `collect` waits for them."""

    futures: Sequence[Future[GenerateResult]]
    started: float

    def collect(self) -> Generated:
        """Wait for all results; the first call to fail raises its error at once."""
        for future in app.as_completed(self.futures):
            future.result()
        results = [future.result() for future in self.futures]
        return Generated(
            trajectories=tuple(t for result in results for t in result.trajectories),
            busy_s=sum(result.busy_s for result in results),
            sync_s=max(result.sync_s for result in results),
            wall_s=time.perf_counter() - self.started,
        )


def bare(question: Question) -> Question:
    """The question without its paragraphs and evidence: the index has them."""
    return replace(question, paragraphs=(), supporting=(), evidence=())


def ask(
    rollouts: app.Session,
    questions: Sequence[Question],
    policy: Policy,
    *,
    purpose: str,
    step: int,
    samples: int,
    per_call: int,
    greedy: bool = False,
) -> Round:
    """Submit `questions` in calls of `per_call`, each to be answered `samples` times."""
    started = time.perf_counter()
    futures = [
        rollouts.generate.remote(
            GenerateRequest(
                purpose=purpose,
                step=step,
                questions=tuple(map(bare, questions[i : i + per_call])),
                samples=samples,
                greedy=greedy,
                manifest=policy.manifest,
                weight_version=policy.version,
            )
        )
        for i in range(0, len(questions), per_call)
    ]
    return Round(futures, started)
