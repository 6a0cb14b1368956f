"""How an app stands: its sessions, executors, resources and cache, as plain data."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from forage.app.cache import Directory
from forage.app.fleet import Fleet
from forage.app.placement import Room
from forage.app.pool import Pool


def describe(fleet: Fleet, directory: Directory) -> dict[str, Any]:
    """All of it; what `app.status()` returns but for the app's name."""
    now = time.monotonic()
    total, free = Room.of(fleet.engine.nodes).total(), Room.of(fleet.engine.nodes)
    for executor in fleet.executors.values():
        free.take(fleet.pools[executor.session].options.need, executor.placement)
    return {
        "engine": fleet.engine.name,
        "total": str(total),
        "free": str(free.total()),
        "sessions": [_session(pool, now) for pool in fleet.pools.values()],
        "waiting": [blocked.session for blocked in fleet.blocked],
        "cache": dataclasses.asdict(directory.usage()),
    }


def _session(pool: Pool, now: float) -> dict[str, Any]:
    view = pool.view(now)
    return {
        "session": pool.id,
        "kind": "gang" if pool.gang else "elastic",
        "resreq": str(view.need),
        "state": "closing" if pool.closing else "failed" if pool.failure else "open",
        "generation": pool.generation,
        "pending": view.pending,
        "running": view.running,
        "retried": pool.retried,
        "executors": [
            {
                "executor": executor.name,
                "pid": executor.pid,
                "rank": executor.rank,
                "phase": executor.phase.value,
                "gpus": list(executor.placement.gpus),
                "calls": [call.label for call in executor.calls.values()],
            }
            for executor in pool.executors.values()
        ],
    }
