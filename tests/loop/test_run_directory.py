"""The run directory: what survives a death, and who may write."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.errors import UserError
from forage.loop import files
from forage.loop.config import TrainConfig
from forage.loop.configfile import load_config
from forage.loop.rundir import RunDir, check_out


def _lines(steps: list[int]) -> str:
    return "".join(json.dumps({"step": step, "reward": step / 3}) + "\n" for step in steps)


@given(st.integers(0, 12), st.integers(-1, 15), st.text('{}": abc0', max_size=9))
def test_resuming_leaves_what_an_uninterrupted_run_had_written(
    tmp_path_factory: pytest.TempPathFactory, written: int, checkpoint: int, torn: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_text(_lines(list(range(1, written + 1))) + torn)
    files.keep_until(path, checkpoint)
    assert path.read_text() == _lines(list(range(1, min(written, checkpoint) + 1)))


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_json(path, {"step": 1})
    files.append_json(path, {"step": 2, "kl": float("nan"), "text": "é\n"})
    with path.open("a") as file:
        file.write('{"step": 3, "rew')
    assert files.read_json(path) == [{"step": 1}, {"step": 2, "kl": None, "text": "é\n"}]
    assert files.read_json(tmp_path / "absent.jsonl") == []


def test_later_trajectories_are_forgotten(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.create(TrainConfig())
    for step in (19, 20, 21, 1_000_000):
        run.step_trajectories(step).touch()
        run.eval_trajectories(step, "greedy").touch()
    run.forget_after(20)
    kept = sorted(path.name for path in run.trajectories.iterdir())
    assert kept == [
        "eval-000019-greedy.jsonl.gz",
        "eval-000020-greedy.jsonl.gz",
        "step-000019.jsonl.gz",
        "step-000020.jsonl.gz",
    ]


def test_only_one_process_writes_in_a_run(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from forage.loop.rundir import RunDir\n"
        "with RunDir(Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    run = RunDir(tmp_path)
    with pytest.raises(UserError, match="another run is writing there"), run.locked():
        pass
    other.kill()
    other.communicate()
    with run.locked():
        pass


def test_an_output_folder_must_be_new_or_the_runs_own(tmp_path: Path) -> None:
    config = TrainConfig(out=str(tmp_path / "run"))
    check_out(config, resume=False)
    with pytest.raises(UserError, match="holds no run"):
        check_out(config, resume=True)
    run = RunDir(Path(config.out))
    with run.locked():
        check_out(config, resume=False)  # Its own lock doesn't make it another's.
        run.create(config)
    check_out(config, resume=True)
    assert load_config(run.config) == config
    with pytest.raises(UserError, match="holds another run; continue it with --resume"):
        check_out(config, resume=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        check_out(TrainConfig(out=str(tmp_path / "full")), resume=False)


def test_resuming_as_another_experiment_names_the_key(tmp_path: Path) -> None:
    config = TrainConfig(out=str(tmp_path))
    RunDir(tmp_path).create(config)
    longer = dataclasses.replace(config, steps=500, rollouts=3, eval_every=7)
    check_out(longer, resume=True)
    other = dataclasses.replace(config, learning_rate=1e-3)
    with pytest.raises(UserError, match=r"--learning-rate is 0\.001, but the run in .* has 1e-06"):
        check_out(other, resume=True)
