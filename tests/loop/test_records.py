"""What is recorded of steps and evaluations."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from loop_samples import trajectory

from forage.agent.types import Question
from forage.errors import UserError
from forage.loop.advantage import group_advantages
from forage.loop.batch import make_batch
from forage.loop.evaluate import EvalRecord, Evaluation, refuse_all_failed, summarize
from forage.loop.metrics import METRICS, WALL_TIMES, StepMetrics, sample_means, search_times
from forage.loop.store import read_trajectories, write_trajectories

NAMES = [
    "step",
    "weight_version",
    "reward_mean",
    "exact_match",
    "searches_mean",
    "groups_kept",
    "groups_total",
    "samples_trained",
    "samples_failed",
    "tokens_trained",
    "rollout_s",
    "update_s",
    "publish_s",
    "sync_s",
    "step_s",
    "published_bytes",
    "changed_fraction",
    "kl",
    "entropy",
    "clip_fraction",
    "mismatch_mean",
    "mismatch_p99",
    "grad_norm",
    "lr",
    "rollout_idle_fraction",
    "trainer_idle_fraction",
    "search_ms_p50",
    "search_ms_p99",
    "lag_max",
]
"""Names that other programs rely on."""

EVAL_NAMES = [
    "step",
    "weight_version",
    "n",
    "exact_match",
    "ci_low",
    "ci_high",
    "f1",
    "searches_mean",
    "sampled_exact_match",
]


def test_the_promised_names_are_there_and_explained() -> None:
    fields = [field.name for field in dataclasses.fields(StepMetrics)]
    assert [name for name in fields if name in NAMES] == NAMES
    assert list(METRICS) == fields
    assert set(fields) > WALL_TIMES
    evals = [field.name for field in dataclasses.fields(EvalRecord)]
    assert evals[: len(EVAL_NAMES)] == EVAL_NAMES


def test_the_documentation_explains_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    escaped = {name: about.replace("|", "\\|") for name, about in METRICS.items()}
    assert {name: rows.get(name) for name in METRICS} == escaped


def test_failed_samples_are_in_no_mean() -> None:
    samples = [
        trajectory(reward=1.0, searches=2),
        trajectory(reward=0.0, searches=1),
        trajectory(reward=0.0, searches=9, failure="retriever: connection refused"),
    ]
    assert sample_means(samples) == {
        "reward_mean": 0.5,
        "exact_match": 0.5,
        "searches_mean": 1.5,
    }
    assert sample_means(samples[2:])["reward_mean"] is None


def test_search_times_are_over_all_searches() -> None:
    times = [float(ms) for ms in range(1, 101)]
    samples = [trajectory(search_ms=tuple(times[:30])), trajectory(search_ms=tuple(times[30:]))]
    found = search_times(samples)
    assert found["search_ms_p50"] == pytest.approx(50.5)
    assert found["search_ms_p99"] == pytest.approx(99.01)
    assert search_times([trajectory()])["search_ms_p50"] is None


def test_a_batch_holds_exactly_the_samples_with_an_advantage() -> None:
    samples = [
        trajectory("a", 0, reward=1.0, sampled=2),
        trajectory("a", 1, reward=0.0, sampled=5),
        trajectory("b", 0, reward=1.0),
        trajectory("b", 1, reward=1.0),
        trajectory("c", 0, reward=1.0, failure="lost"),
        trajectory("c", 1, reward=0.0),
    ]
    rewards = np.reshape([s.reward for s in samples], (3, 2))
    failed = np.reshape([s.failure is not None for s in samples], (3, 2))
    batch = make_batch(samples, group_advantages(rewards, failed))
    assert batch is not None
    assert batch.offsets.tolist() == [0, 5, 13]
    assert batch.offsets.dtype == np.int64
    for i, sample in enumerate(samples[:2]):
        part = slice(batch.offsets[i], batch.offsets[i + 1])
        np.testing.assert_array_equal(batch.token_ids[part], sample.token_ids)
        np.testing.assert_array_equal(batch.mask[part], sample.mask)
        np.testing.assert_array_equal(batch.logprobs[part], sample.logprobs)
    np.testing.assert_allclose(batch.advantages, [0.7071058, -0.7071058], atol=1e-6)
    assert make_batch(samples[2:4], group_advantages([[1.0, 1.0]], [[False, False]])) is None


def test_trajectories_read_back_exactly_and_alike_each_time(tmp_path: Path) -> None:
    odd = dataclasses.replace(
        trajectory("q1", 1, reward=0.5, version=3, search_ms=(0.1,)),
        logprobs=np.array([0, 0, 0, -0.1, -1e-30, -3.3333333, -88.0], np.float32),
        answer=None,
        failure="retriever",
    )
    questions = [Question("q1", "Who?", ("A", "B"), kind="2hop")]
    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    for path in (one, two):
        write_trajectories(path, [odd], questions)
    assert one.read_bytes() == two.read_bytes()
    (record,) = read_trajectories(one)
    np.testing.assert_array_equal(np.array(record["logprobs"], np.float32), odd.logprobs)
    assert record["token_ids"] == odd.token_ids.tolist()
    assert record["weight_versions"] == [-1, -1, -1, 3, 3, 3, 3]
    assert record["segments"][0] == {"kind": "prompt", "text": "ask", "tokens": 3}
    assert (record["question"], record["answers"], record["kind"]) == ("Who?", ["A", "B"], "2hop")
    assert (record["answer"], record["failure"], record["sample"]) == (None, "retriever", 1)


def _questions(count: int) -> list[Question]:
    return [Question(str(i), "?", ("a",), kind="2hop" if i % 4 else "1hop") for i in range(count)]


def test_an_evaluation_counts_questions_answered() -> None:
    questions = _questions(8)
    greedy = [
        trajectory(q.id, reward=float(i < 5), failure="lost" if i == 7 else None)
        for i, q in enumerate(questions)
    ]
    sampled = [trajectory(q.id, k, reward=float(k)) for q in questions for k in range(2)]
    evaluation = Evaluation(tuple(greedy), tuple(sampled))
    before = {q.id: 0.0 for q in questions[:4]}
    record = summarize(evaluation, questions, 10, 9, before)
    assert (record.step, record.weight_version, record.n, record.failed) == (10, 9, 7, 1)
    assert record.exact_match == pytest.approx(5 / 7)
    assert record.ci_low < 5 / 7 < record.ci_high
    assert record.sampled_exact_match == pytest.approx(0.5)
    assert record.difference == 1.0  # All four that were answered both times.
    assert record.by_kind["1hop"] == {"n": 2, "exact_match": 1.0, "sampled_exact_match": 0.5}
    assert record.by_kind["2hop"]["n"] == 5


def test_the_first_evaluation_has_nothing_to_compare_with() -> None:
    questions = _questions(2)
    only = Evaluation(tuple(trajectory(q.id, reward=1.0) for q in questions), ())
    record = summarize(only, questions, 0, 0, None)
    assert (record.difference, record.sampled_exact_match) == (None, None)


def test_when_everything_fails_the_run_stops_with_the_reason() -> None:
    failed = [trajectory(failure="retriever http://x: connection refused")] * 3
    with pytest.raises(UserError, match="every sample of step 3 failed: retriever http://x"):
        refuse_all_failed(failed, "step 3")
    refuse_all_failed([*failed, trajectory()], "step 3")
