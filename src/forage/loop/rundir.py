"""The folder of one run: what lies where, who may write in it, and how a resumed run cleans it.

config.toml                resolved configuration, written first
metrics.jsonl              one line per step
evals.jsonl                one line per evaluation
trajectories/              every sample: step-000001.jsonl.gz, eval-000000-greedy.jsonl.gz, ...
checkpoints/step-000020/   complete checkpoints; checkpoint.json names the newest
index/                     BM25 index of the corpus
warmstart/                 the model that a warm start built, if one was asked for
logs/, events.jsonl        of the executors
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError
from forage.loop import files
from forage.loop.config import KEYS, TrainConfig, flag
from forage.loop.configfile import load_config, to_toml

LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class RunDir:
    """Where the parts of a run lie."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evals(self) -> Path:
        return self.path / "evals.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def newest(self) -> Path:
        """The file that names the newest checkpoint."""
        return self.path / "checkpoint.json"

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def warm_start(self) -> Path:
        return self.path / "warmstart"

    def step_trajectories(self, step: int) -> Path:
        """Samples that a step trained on."""
        return self.trajectories / f"step-{step:06d}.jsonl.gz"

    def eval_trajectories(self, step: int, mode: str) -> Path:
        """Samples of an evaluation; `mode` is greedy or sampled."""
        return self.trajectories / f"eval-{step:06d}-{mode}.jsonl.gz"

    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def create(self, config: TrainConfig) -> None:
        """Write the configuration first: from then on the folder is a run's."""
        for folder in (self.trajectories, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        files.write_whole(self.config, to_toml(config))

    def forget_after(self, step: int) -> None:
        """Remove what a run wrote after its checkpoint of `step`, which it will now do again."""
        files.keep_until(self.metrics, step)
        files.keep_until(self.evals, step)
        for path in self.trajectories.iterdir():
            match = re.match(r"(?:step|eval)-(\d+)", path.name)
            if match and int(match[1]) > step:
                path.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, made if need be, until the end of the block.

        Raises:
            UserError: if another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"--out {self.path}: another run is writing there right now") from None
        try:
            yield
        finally:
            os.close(descriptor)


def check_out(config: TrainConfig, resume: bool) -> None:
    """Whether the run may use its output folder; reads only."""
    run = RunDir(Path(config.out))
    if resume:
        if not run.holds_run():
            raise UserError(f"--resume: {run.path} holds no run (there is no config.toml)")
        check_same_run(load_config(run.config), config)
    elif run.holds_run():
        raise UserError(
            f"--out {run.path} holds another run; "
            "continue it with --resume or choose another folder"
        )
    elif run.path.exists() and (not run.path.is_dir() or set(os.listdir(run.path)) - {LOCK}):
        raise UserError(f"--out {run.path} exists and is not an empty folder; choose another one")
    files.check_writable(run.path, "--out")


def check_same_run(before: TrainConfig, now: TrainConfig) -> None:
    """Raise `UserError` naming the first key that makes `now` another experiment."""
    for key, option in KEYS.items():
        old, new = getattr(before, key), getattr(now, key)
        if old != new and not option.may_change:
            raise UserError(
                f"--resume: {flag(key)} is {new!r}, but the run in {now.out} has {old!r}; "
                "leave it out or start another run"
            )
