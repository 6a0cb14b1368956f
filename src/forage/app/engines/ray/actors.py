"""Actors and placement groups: what the engine asks Ray to run, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util import placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from forage.app.engines.base import Launch
from forage.app.engines.processes import thread_environment
from forage.app.engines.ray.cluster import amounts
from forage.app.engines.ray.keeper import Keeper
from forage.app.engines.ray.seat import Seat
from forage.app.packaging import Package, import_path

_NODE_LABEL = "ray.io/node-id"
_ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""Only Forage retries."""


def start_keeper(name: str) -> Any:
    """Start the keeper on this process's node."""
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(Keeper)
        .options(
            name=name,
            num_cpus=0,
            max_concurrency=1000,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )
        .remote()
    )


def on_node(node_id: str) -> Any:
    """Place an actor on one node and nowhere else."""
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def gang_group(launches: Sequence[Launch], node_ids: Sequence[str]) -> Any:
    """Reserve all members' resources together, on the nodes that were chosen for them."""
    return placement_group(
        [amounts(launch.need) for launch in launches],
        strategy="PACK",
        bundle_label_selector=[{_NODE_LABEL: node_id} for node_id in node_ids],
    )


def in_group(group: Any, index: int) -> Any:
    """Place an actor in one bundle of a group."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


class Casting:
    """Starts executors of one app's project."""

    def __init__(self, package: Package, token: str) -> None:
        inside, outside = import_path(package)
        self._path = (inside, outside, _working_folders(package))
        self._token = token
        self._class = ray.remote(_actor_class())

    def start(self, launch: Launch, seat: Seat, where: Any) -> tuple[Any, Any]:
        """Start an executor; returns its actor, and a reference that is ready at its end."""
        held = amounts(launch.need)
        environment = {**thread_environment(launch.threads), "FORAGE_APP": self._token}
        actor = self._class.options(
            num_cpus=held.get("CPU", 0),
            num_gpus=held.get("GPU", 0),
            memory=launch.need.mem or None,
            scheduling_strategy=where,
            runtime_env={"env_vars": environment},
            **_ONCE,
        ).remote()
        return actor, actor.take.remote(self._path, seat)


def _working_folders(package: Package) -> list[str]:
    """Where executors work: as the driver does where its folder is there, or in the copy."""
    here = Path.cwd()
    inside = here.is_relative_to(package.root)
    return [str(here), str(here.relative_to(package.root)) if inside else "."]


def _actor_class() -> type:
    """The class of executors, defined here so that it travels by value.

    On its node nothing can be imported from a `src/` layout before the import path is set.
    """

    class Executor:
        def take(self, path: tuple[list[str], list[str], list[str]], seat: Any) -> None:
            import os
            import sys

            inside, outside, folders = path
            root = os.getcwd()  # the project's copy
            sys.path[:0] = [os.path.normpath(os.path.join(root, entry)) for entry in inside]
            sys.path += [p for p in outside if p not in sys.path and os.path.exists(p)]
            os.chdir(next((f for f in [*folders, root] if os.path.isdir(f)), root))

            import ray

            from forage.app.engines.ray.seat import take

            take(seat)
            ray.actor.exit_actor()

    return Executor
