"""What each executor asks for where the configuration leaves it open."""

from __future__ import annotations

from forage.app.capacity import local_node
from forage.app.placement import Node
from forage.app.resources import parse_resreq
from forage.errors import UserError
from forage.loop.config import TrainConfig

NOTHING = "cpu=0"
"""Resources of executors that a command doesn't have."""


def rollout_resources(config: TrainConfig) -> str:
    """Resources of a rollout executor; of a supervised start, which has none, nothing."""
    if config.rollouts == 0:
        return NOTHING
    return config.rollout_resources or _fair_part(config, "--rollout-resources")


def trainer_resources(config: TrainConfig) -> str:
    """Resources of a trainer; of an evaluation, which has none, nothing."""
    if config.trainers == 0:
        return NOTHING
    return config.trainer_resources or _fair_part(config, "--trainer-resources")


def gpu_share(resources: str) -> float:
    """Of one GPU's memory that an executor with these resources may use."""
    return min(1.0, parse_resreq(resources).milligpu / 1000)


def this_machine(config: TrainConfig) -> Node:
    """What the run may use of this machine."""
    try:
        return local_node(config.resources)
    except (ValueError, TypeError) as error:
        raise UserError(f"--resources: {error}") from None


def _fair_part(config: TrainConfig, flag: str) -> str:
    """One CPU, and of this machine's GPUs a whole one, or as large a part as lets all fit."""
    if config.address is not None:
        raise UserError(f"{flag} is not given; a cluster has to be asked, as with cpu=8,gpu=1")
    gpus = len(this_machine(config).gpus)
    if gpus == 0:
        return "cpu=1"
    sharing = -(-(config.rollouts + config.trainers) // gpus)
    return f"cpu=1,gpu={1000 // sharing / 1000}"
