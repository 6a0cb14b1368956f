"""Evaluation: the same held-out questions every time, greedily and as training samples them.

Greedy accuracy moves in jumps when a habit becomes the likeliest one; accuracy of samples at the
training temperature is the smooth curve beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forage.agent.types import Question
from forage.app import Session
from forage.errors import UserError
from forage.loop.config import TrainConfig
from forage.loop.generation import Policy, ask
from forage.loop.metrics import mean
from forage.loop.statistics import paired_difference, wilson
from forage.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """One line of evals.jsonl.

    Attributes:
        n: held-out questions that were answered; `failed` are the others.
        exact_match: greedy, with its 95 % Wilson interval `ci_low`, `ci_high`.
        f1: greedy.
        searches_mean: searches per greedy sample.
        sampled_exact_match: at the training temperature, mean over samples; null without them.
        sampled_searches_mean: searches per such sample.
        difference: change of greedy exact match since step 0 on the questions answered both
            times, with its 95 % interval; null at step 0.
        by_kind: for each kind of question `n`, `exact_match` and `sampled_exact_match`.
    """

    step: int
    weight_version: int
    n: int
    exact_match: float
    ci_low: float
    ci_high: float
    f1: float
    searches_mean: float
    sampled_exact_match: float | None
    sampled_searches_mean: float | None
    failed: int
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    by_kind: dict[str, dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The samples of one evaluation."""

    greedy: tuple[Trajectory, ...]
    sampled: tuple[Trajectory, ...]

    def correct(self) -> dict[str, float]:
        """Greedy exact match of each question that was answered."""
        return {t.question_id: t.exact_match for t in self.greedy if t.failure is None}


def evaluate(
    rollouts: Session,
    questions: Sequence[Question],
    policy: Policy,
    config: TrainConfig,
    step: int,
) -> Evaluation:
    """Answer every question greedily once, and `config.eval_samples` times at the temperature.

    Raises:
        UserError: if not one greedy sample could be generated.
    """
    rows = config.prompts_per_task * config.group_size
    greedy = ask(
        rollouts,
        questions,
        policy,
        purpose="eval",
        step=step,
        samples=1,
        per_call=rows,
        greedy=True,
    )
    sampled: tuple[Trajectory, ...] = ()
    if config.eval_samples:
        sampled = (
            ask(
                rollouts,
                questions,
                policy,
                purpose="eval",
                step=step,
                samples=config.eval_samples,
                per_call=max(1, rows // config.eval_samples),
            )
            .collect()
            .trajectories
        )
    result = Evaluation(greedy.collect().trajectories, sampled)
    refuse_all_failed(result.greedy, f"the evaluation at step {step}")
    return result


def refuse_all_failed(trajectories: Sequence[Trajectory], what: str) -> None:
    """Stop a run in which nothing works, rather than let it count zeros."""
    if trajectories and all(t.failure is not None for t in trajectories):
        raise UserError(f"every sample of {what} failed: {trajectories[0].failure}")


def summarize(
    evaluation: Evaluation,
    questions: Sequence[Question],
    step: int,
    version: int,
    at_start: Mapping[str, float] | None,
) -> EvalRecord:
    """The numbers of an evaluation; `at_start` is `Evaluation.correct` of step 0."""
    valid = [t for t in evaluation.greedy if t.failure is None]
    sampled = [t for t in evaluation.sampled if t.failure is None]
    right = sum(t.exact_match for t in valid)
    low, high = wilson(right, len(valid))
    difference = _difference(evaluation.correct(), at_start)
    return EvalRecord(
        step=step,
        weight_version=version,
        n=len(valid),
        exact_match=right / len(valid),
        ci_low=low,
        ci_high=high,
        f1=sum(t.f1 for t in valid) / len(valid),
        searches_mean=sum(t.searches for t in valid) / len(valid),
        sampled_exact_match=mean(t.exact_match for t in sampled),
        sampled_searches_mean=mean(t.searches for t in sampled),
        failed=len(evaluation.greedy) - len(valid),
        difference=difference[0],
        difference_low=difference[1],
        difference_high=difference[2],
        by_kind=_by_kind(valid, sampled, questions),
    )


def _difference(
    now: Mapping[str, float], start: Mapping[str, float] | None
) -> tuple[float, float, float] | tuple[None, None, None]:
    common = [question for question in now if question in start] if start else []
    if start is None or not common:
        return None, None, None
    return paired_difference([start[q] for q in common], [now[q] for q in common])


def _by_kind(
    greedy: Sequence[Trajectory], sampled: Sequence[Trajectory], questions: Sequence[Question]
) -> dict[str, dict[str, float | None]]:
    kind = {question.id: question.kind for question in questions}
    once, often = defaultdict(list), defaultdict(list)
    for t in greedy:
        once[kind[t.question_id]].append(t.exact_match)
    for t in sampled:
        often[kind[t.question_id]].append(t.exact_match)
    return {
        name: {
            "n": len(once[name]),
            "exact_match": mean(once[name]),
            "sampled_exact_match": mean(often[name]),
        }
        for name in sorted(once)
        if name
    }
