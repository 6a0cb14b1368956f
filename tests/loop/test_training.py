"""Training on real processes: what a run leaves behind, and that nothing can hurt it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_runs import HERE, Run, lasting

from forage.loop.files import read_json
from forage.loop.rundir import RunDir
from forage.loop.store import read_trajectories


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model, barely warm-started."""
    out = tmp_path_factory.mktemp("warm") / "run"
    Run(out, warm_start_steps=20, steps=0, reward="em").finish()
    assert [record["step"] for record in read_json(RunDir(out).evals)] == [0]
    return str(out / "warmstart")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[RunDir, str]:
    """A run that nothing disturbed, and what it printed."""
    run = Run(tmp_path_factory.mktemp("whole") / "run", model=model)
    printed = run.finish()
    return run.dir, printed


def _forage(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "forage.cli", *words],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_on_ray_a_run_is_the_same_bit_for_bit(
    tmp_path: Path, whole: tuple[RunDir, str], model: str
) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    run = Run(tmp_path / "run", model=model, engine="ray")
    run.finish()
    assert lasting(run.dir) == lasting(whole[0])


def test_every_step_learns_and_publishes(whole: tuple[RunDir, str]) -> None:
    metrics = read_json(whole[0].metrics)
    assert [record["step"] for record in metrics] == [1, 2, 3, 4]
    assert [record["weight_version"] for record in metrics] == [1, 2, 3, 4]
    for record in metrics:
        assert record["groups_total"] == 4
        assert record["samples_trained"] == 3 * record["groups_kept"] > 0
        assert record["grad_norm"] > 0
        assert 0 < record["changed_fraction"] <= 1
        assert record["samples_failed"] == record["calls_retried"] == record["lag_max"] == 0
        assert record["mismatch_p99"] < 0.05
        assert 0 <= record["rollout_idle_fraction"] <= 1
        assert 0 <= record["trainer_idle_fraction"] <= 1


def test_the_same_questions_are_evaluated_each_time(whole: tuple[RunDir, str]) -> None:
    evals = read_json(whole[0].evals)
    assert [record["step"] for record in evals] == [0, 2, 4]
    assert [record["weight_version"] for record in evals] == [0, 2, 4]
    asked = [
        [
            record["question_id"]
            for record in read_trajectories(whole[0].eval_trajectories(step, mode))
        ]
        for step in (0, 2, 4)
        for mode in ("greedy", "sampled")
    ]
    assert all(questions == asked[0] for questions in asked)
    assert len(asked[0]) == 6
    trained = {
        record["question_id"]
        for step in range(1, 5)
        for record in read_trajectories(whole[0].step_trajectories(step))
    }
    assert not trained & set(asked[0])


def test_trajectories_hold_what_was_trained_on(whole: tuple[RunDir, str]) -> None:
    for step in range(1, 5):
        records = read_trajectories(whole[0].step_trajectories(step))
        assert len(records) == 12
        metrics = read_json(whole[0].metrics)[step - 1]
        assert np.mean([r["reward"] for r in records]) == pytest.approx(metrics["reward_mean"])
        for record in records:
            mask = np.array(record["mask"])
            versions = np.array(record["weight_versions"])
            assert sum(s["tokens"] for s in record["segments"]) == len(mask)
            assert set(versions[mask == 1]) == {step - 1}
            assert set(versions[mask == 0]) <= {-1}


def test_the_end_says_what_came_of_it(whole: tuple[RunDir, str]) -> None:
    run, printed = whole
    for text in (
        "exact match over steps",
        "before training:",
        "mean of steps 3 to 4",
        os.path.relpath(run.path, HERE),
    ):
        assert text in printed
    assert printed.count("\nstep ") == 4
    assert "\x1b" not in printed


def test_a_checkpoint_evaluates_and_exports(whole: tuple[RunDir, str], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = whole
    again = json.loads(_forage("eval", str(run.path), "--json"))
    last = read_json(run.evals)[-1]
    compared = set(last) - {"difference", "difference_low", "difference_high"}
    assert {key: again[key] for key in compared} == {key: last[key] for key in compared}
    _forage("export", str(run.path), "--out", str(tmp_path / "model"))
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("Question", return_tensors="pt").input_ids
    assert policy(ids).logits.shape[-1] >= len(tokenizer)


@pytest.mark.parametrize(
    ("moment", "resumed_from"),
    [
        pytest.param("before the first checkpoint", 0, marks=pytest.mark.slow),
        ("within a step", 2),
        pytest.param("between two steps", 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(
    whole: tuple[RunDir, str], model: str, tmp_path: Path, moment: str, resumed_from: int
) -> None:
    run = Run(tmp_path / "run", model=model)
    reached = {
        "before the first checkpoint": run.dir.step_trajectories(1).exists,
        "within a step": run.dir.step_trajectories(3).exists,
        "between two steps": lambda: len(run.metrics) >= 3,
    }
    run.wait_until(reached[moment])
    # The driver has received results of every kind, and still has no torch.
    assert "libtorch" not in Path(f"/proc/{run.process.pid}/maps").read_text()
    run.kill()
    named = run.dir.newest
    assert (json.loads(named.read_text())["step"] if named.exists() else 0) == resumed_from
    Run(tmp_path / "run", "--resume", model=model).finish()
    assert lasting(run.dir) == lasting(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_tidily_and_can_be_resumed(
    whole: tuple[RunDir, str], model: str, tmp_path: Path, number: signal.Signals
) -> None:
    run = Run(tmp_path / "run", model=model, steps=1000)
    run.wait_until(lambda: len(run.metrics) >= 3)
    assert run.kill(number) == 130
    done = json.loads(run.dir.newest.read_text())["step"]
    Run(tmp_path / "run", "--resume", model=model, steps=done + 2).finish()
    assert [record["step"] for record in run.metrics] == list(range(1, done + 3))
    assert lasting(run.dir)["metrics"][:4] == lasting(whole[0])["metrics"]


def test_a_lost_rollout_executor_costs_nothing_but_time(
    whole: tuple[RunDir, str], model: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", model=model)
    run.wait_until(run.dir.evals.exists)
    (rollout,) = [pid for pid, command in run.processes().items() if "Rollout-" in command]
    os.kill(rollout, signal.SIGSTOP)
    run.wait_until_still()
    os.kill(rollout, signal.SIGKILL)
    run.finish()
    assert lasting(run.dir) == lasting(whole[0])
    assert sum(record["calls_retried"] for record in run.metrics) >= 1


@pytest.mark.parametrize(
    ("step", "place"),
    [
        pytest.param(1, "starting again from the model", marks=pytest.mark.slow),
        (3, "restoring the checkpoint of step 2"),
    ],
)
def test_lost_trainers_are_replaced_and_the_run_goes_on(
    whole: tuple[RunDir, str], model: str, tmp_path: Path, step: int, place: str
) -> None:
    run = Run(tmp_path / "run", model=model)
    run.wait_until(lambda: bool(_trainers(run)))
    (trainer,) = _trainers(run)
    # Written while the trainer works on the same step.
    run.wait_until(run.dir.step_trajectories(step).exists)
    os.kill(trainer, signal.SIGKILL)
    printed = run.finish()
    assert "trainers were lost: " in printed
    assert "SIGKILL" in printed
    assert place in printed
    # A version once published is never published again, so that later ones are higher.
    versions = [record["weight_version"] for record in run.metrics]
    assert versions == sorted(set(versions))
    assert _without_versions(lasting(run.dir)) == _without_versions(lasting(whole[0]))


@pytest.mark.slow
def test_a_run_whose_trainers_are_always_lost_ends_in_one_line(model: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", model=model)
    killed: set[int] = set()
    while run.process.poll() is None:
        for pid in set(_trainers(run)) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.2)
    errors = run.process.communicate()[1]
    assert run.process.returncode == 2
    assert "trainers were lost 4 times before step 1 was done, last rank 0, " in errors
    assert errors.count("\n") == 1


def _trainers(run: Run) -> list[int]:
    return [pid for pid, command in run.processes().items() if "Trainer-" in command]


def _without_versions(found: Any) -> Any:
    """The same, but for the numbers that weights were published under."""
    if isinstance(found, dict):
        return {
            key: _without_versions(value)
            for key, value in found.items()
            if not key.startswith("weight_version")
        }
    return [_without_versions(value) for value in found] if isinstance(found, list) else found


def test_when_no_group_has_spread_nothing_moves(model: str, tmp_path: Path) -> None:
    changes = {"model": model, "reward": "loop_rewards:constant", "eval_every": 0}
    run = Run(tmp_path / "run", steps=1, **changes)
    run.finish()
    Run(tmp_path / "run", "--resume", steps=2, **changes).finish()
    assert len(run.metrics) == 2
    for record in run.metrics:
        assert record["groups_kept"] == record["samples_trained"] == record["weight_version"] == 0
        assert record["grad_norm"] is None
        assert record["published_bytes"] == 0
    before, after = (
        (run.dir.checkpoints / f"step-00000{step}" / "masters.safetensors").read_bytes()
        for step in (1, 2)
    )
    assert before == after


def test_two_rollouts_and_two_trainers_do_the_same_work(
    whole: tuple[RunDir, str], model: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", model=model, rollouts=2, trainers=2, steps=1)
    run.finish()
    alone, together = read_json(whole[0].metrics)[0], run.metrics[0]
    for key in ("reward_mean", "groups_kept", "samples_trained", "tokens_trained"):
        assert together[key] == alone[key]
    assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)


def test_two_trainers_that_share_one_copy_do_the_same_work_and_one_goes_on(
    whole: tuple[RunDir, str], model: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", model=model, trainers=2, shard=2, steps=2)
    run.finish()
    Run(tmp_path / "run", "--resume", model=model, steps=3).finish()
    alone, together = read_json(whole[0].metrics)[0], run.metrics[0]
    for key in ("reward_mean", "samples_trained", "tokens_trained"):
        assert together[key] == alone[key]
    for key, apart in (("grad_norm", 1e-4), ("changed_fraction", 1e-2)):
        assert together[key] == pytest.approx(alone[key], rel=apart)
    assert [record["weight_version"] for record in run.metrics] == [1, 2, 3]
    # Rollouts hold what the trainers train.
    assert all(record["mismatch_p99"] < 0.05 for record in run.metrics)


@pytest.mark.slow
def test_shuffled_rewards_train_on_other_advantages(
    whole: tuple[RunDir, str], model: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", "--shuffle-rewards", model=model, steps=1)
    run.finish()
    real, control = read_json(whole[0].metrics)[0], run.metrics[0]
    assert control["reward_mean"] == real["reward_mean"]  # The rewards are the same,
    assert control["grad_norm"] != real["grad_norm"]  # but not in their places.
