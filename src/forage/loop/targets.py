"""What a person points at: a run, one of its checkpoints, or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError
from forage.loop.checkpoint import DRIVER, POLICY, Checkpoint, newest_checkpoint, read_checkpoint
from forage.loop.config import TrainConfig
from forage.loop.configfile import load_config
from forage.loop.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Target:
    """A policy.

    Attributes:
        model: what a rollout can load.
        config: of the run that it belongs to; None for a model of elsewhere.
        step, weight_version: where in its run it stands; 0 for a model of elsewhere.
    """

    model: str
    config: TrainConfig | None = None
    step: int = 0
    weight_version: int = 0


def find_target(text: str) -> Target:
    """The policy behind a path or name; of a run, its newest checkpoint.

    Raises:
        UserError: if it is a run without a checkpoint.
    """
    path = Path(text)
    if (path / DRIVER).is_file():
        return _of_checkpoint(read_checkpoint(path))
    run = RunDir(path)
    if run.holds_run():
        newest = newest_checkpoint(run)
        if newest is None:
            raise UserError(f"{path}: the run has no checkpoint yet")
        return _of_checkpoint(newest)
    return Target(text)


def _of_checkpoint(checkpoint: Checkpoint) -> Target:
    return Target(
        str(checkpoint.path / POLICY),
        load_config(RunDir(checkpoint.path).config),
        checkpoint.counters.step,
        checkpoint.counters.weight_version,
    )
