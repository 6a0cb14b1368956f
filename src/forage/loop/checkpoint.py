"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint folder holds the policy in Hugging Face layout, the trainers' fp32 masters and
optimizer, the driver's counters and the configuration. It appears under its name in one move,
after all of it is on disk; `checkpoint.json` in the run directory then names it as the newest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError
from forage.loop.files import sync_folder, write_whole
from forage.loop.rundir import RunDir

DRIVER = "driver.json"
POLICY = "policy"


@dataclass(slots=True)
class Counters:
    """Where the driver stands.

    Attributes:
        step: steps done.
        position: questions asked so far, across epochs.
        weight_version: version of the policy that the last step left.
        samples_failed: over the whole run.
        calls_retried: over the whole run.
    """

    step: int = 0
    position: int = 0
    weight_version: int = 0
    samples_failed: int = 0
    calls_retried: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    counters: Counters


def save_checkpoint(
    run: RunDir, counters: Counters, save_model: Callable[[str], object], keep: int
) -> Path:
    """Write a checkpoint, name it the newest, and remove all but the newest `keep`.

    `save_model` writes policy, masters and optimizer into the folder it is given.
    """
    final = run.checkpoints / f"step-{counters.step:06d}"
    part = run.checkpoints / f".{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    save_model(str(part.absolute()))  # executors may stand elsewhere
    write_whole(part / DRIVER, json.dumps(dataclasses.asdict(counters)) + "\n")
    shutil.copyfile(run.config, part / run.config.name)
    _sync_tree(part)
    if final.exists():  # Left by a run that died before it could name it.
        shutil.rmtree(final)
    part.rename(final)
    sync_folder(run.checkpoints)
    newest = {
        "checkpoint": str(final.relative_to(run.path)),
        "step": counters.step,
        "weight_version": counters.weight_version,
    }
    write_whole(run.newest, json.dumps(newest) + "\n")
    _prune(run, keep)
    return final


def newest_checkpoint(run: RunDir) -> Checkpoint | None:
    """The checkpoint that `checkpoint.json` names; None before the first.

    Raises:
        UserError: if the file or the checkpoint that it names can't be read.
    """
    if not run.newest.exists():
        return None
    try:
        path = run.path / json.loads(run.newest.read_text(encoding="utf-8"))["checkpoint"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{run.newest}: names no checkpoint") from None
    return read_checkpoint(path)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder."""
    try:
        values = json.loads((path / DRIVER).read_text(encoding="utf-8"))
        return Checkpoint(path, Counters(**values))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path}: not a complete checkpoint ({DRIVER} can't be read)") from None


def rewind(run: RunDir) -> Checkpoint | None:
    """Undo what was written after the newest checkpoint, and return that, if there is one."""
    newest = newest_checkpoint(run)
    drop_unfinished(run, newest)
    run.forget_after(newest.counters.step if newest else -1)
    return newest


def drop_unfinished(run: RunDir, newest: Checkpoint | None) -> None:
    """Remove what a run that died left of checkpoints it never named."""
    named = newest.counters.step if newest else -1
    for path in run.checkpoints.iterdir():
        if path.name.endswith(".part") or _step(path) > named:
            shutil.rmtree(path)


def _prune(run: RunDir, keep: int) -> None:
    saved = [path for path in run.checkpoints.iterdir() if path.name.startswith("step-")]
    for path in sorted(saved, key=_step)[:-keep]:
        shutil.rmtree(path)


def _step(path: Path) -> int:
    match = re.fullmatch(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            with (Path(parent) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))
