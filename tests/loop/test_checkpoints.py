"""Checkpoints: whole or absent, named last, pruned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forage.errors import UserError
from forage.loop.checkpoint import (
    Checkpoint,
    Counters,
    drop_unfinished,
    newest_checkpoint,
    save_checkpoint,
)
from forage.loop.config import TrainConfig
from forage.loop.export import export
from forage.loop.rundir import RunDir
from forage.loop.targets import find_target


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.path.mkdir()
    made.create(TrainConfig(out=str(made.path)))
    return made


def _save(run: RunDir, step: int, keep: int = 2, text: str = "weights") -> Path:
    def write(folder: str) -> None:
        policy = Path(folder) / "policy"
        policy.mkdir()
        (policy / "model.safetensors").write_text(f"{text} of step {step}")

    counters = Counters(step=step, position=7 * step, weight_version=step, samples_failed=1)
    return save_checkpoint(run, counters, write, keep)


def test_the_newest_is_named_and_read_back(run: RunDir) -> None:
    assert newest_checkpoint(run) is None
    path = _save(run, 20)
    found = newest_checkpoint(run)
    assert found == Checkpoint(path, Counters(20, 140, 20, 1, 0))
    named = json.loads(run.newest.read_text())
    assert named == {"checkpoint": "checkpoints/step-000020", "step": 20, "weight_version": 20}


def test_only_the_newest_are_kept(run: RunDir) -> None:
    for step in (5, 10, 100, 1_000_000):
        _save(run, step, keep=2)
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    assert kept == ["step-000100", "step-1000000"]


def test_a_death_while_saving_leaves_the_one_before(run: RunDir) -> None:
    before = _save(run, 5)

    def die(folder: str) -> None:
        (Path(folder) / "masters.safetensors").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(run, Counters(step=10), die, 2)
    found = newest_checkpoint(run)
    assert found is not None
    assert found.path == before
    drop_unfinished(run, found)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000005"]


def test_a_death_before_naming_is_done_over(run: RunDir) -> None:
    _save(run, 5)
    named = run.newest.read_text()
    _save(run, 10, text="unnamed")
    run.newest.write_text(named)  # As if the driver had died just before this write.
    found = newest_checkpoint(run)
    assert found is not None
    assert found.counters.step == 5
    _save(run, 10, text="redone")
    again = newest_checkpoint(run)
    assert again is not None
    assert "redone" in (again.path / "policy" / "model.safetensors").read_text()


def test_without_any_checkpoint_everything_unfinished_goes(run: RunDir) -> None:
    _save(run, 10)
    run.newest.unlink()
    drop_unfinished(run, newest_checkpoint(run))
    assert list(run.checkpoints.iterdir()) == []


def test_damaged_names_are_told(run: RunDir) -> None:
    path = _save(run, 5)
    (path / "driver.json").write_text("{}x")
    with pytest.raises(UserError, match="not a complete checkpoint"):
        newest_checkpoint(run)
    run.newest.write_text("[]")
    with pytest.raises(UserError, match="names no checkpoint"):
        newest_checkpoint(run)


def test_runs_checkpoints_and_models_are_told_apart(run: RunDir) -> None:
    with pytest.raises(UserError, match="has no checkpoint yet"):
        find_target(str(run.path))
    old, new = _save(run, 5), _save(run, 10)
    of_run, of_old = find_target(str(run.path)), find_target(str(old))
    assert (of_run.model, of_run.step) == (str(new / "policy"), 10)
    assert (of_old.model, of_old.weight_version) == (str(old / "policy"), 5)
    assert of_run.config == TrainConfig(out=str(run.path))
    assert find_target("Qwen/Qwen2.5-3B").config is None


def test_export_copies_the_policy_into_a_new_folder(run: RunDir, tmp_path: Path) -> None:
    _save(run, 5)
    out = export(str(run.path), str(tmp_path / "deep" / "model"))
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    with pytest.raises(UserError, match="exists already"):
        export(str(run.path), str(out))
    with pytest.raises(UserError, match="neither a run nor a checkpoint"):
        export(str(out), str(tmp_path / "other"))
