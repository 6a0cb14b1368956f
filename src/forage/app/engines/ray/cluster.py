"""The Ray cluster of an app: found or started here, and its nodes as the scheduler sees them."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.experimental.internal_kv import _internal_kv_get

from forage.app.capacity import local_node
from forage.app.engines.base import Site
from forage.app.errors import AppError
from forage.app.packaging import Package
from forage.app.placement import Node
from forage.app.resources import Resources, format_size, parse_amounts

_CONNECT_S = 5.0
_DEFAULT_STORE = 2 << 30  # bytes, of a cluster that is started here, without `cache=`
_REASON_CHARS = 600
_DETAIL = re.compile(r"(class_name|actor_id|pid|namespace|ip|node_id): ")
_EXIT_CODE = re.compile(r"Worker exits with an exit code (\d+)")
_V1_STATUS, _V2_ENABLED = b"__autoscaling_status", b"__autoscaler_v2_enabled"
_LOOKED_ON = "node_"
_FIXED = 1_000  # Ray's own precision is finer


def connect(site: Site, package: Package, archive: Path, namespace: str) -> None:
    """Join the cluster at `site.address` or `RAY_ADDRESS`, or start one on this machine.

    Raises:
        ValueError: the address is none that a driver can use, or a cache is asked for as well.
        AppError: nothing answers there.
    """
    runtime_env: dict[str, Any] = {"working_dir": str(archive)}
    if site.install and package.requirements:
        runtime_env["pip"] = {"packages": list(package.requirements), "pip_check": False}
    options: dict[str, Any] = {
        "namespace": namespace,
        "runtime_env": runtime_env,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    address = site.address or os.environ.get("RAY_ADDRESS")
    if address and site.cache is not None:
        raise ValueError(
            f"cache={format_size(site.cache)}: the cluster at {address} has a store of its own; "
            "leave cache out, and give its nodes --object-store-memory"
        )
    where = _checked(address) if address else _start_options(site)
    # A submitted job has an environment already; the one given here is all that executors need.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    try:
        ray.init(**options, **where)
    except Exception as error:  # of whatever type: Ray's own don't leave the engine
        what = f"can't join Ray at {address!r}" if address else "can't start Ray"
        raise AppError(what, why=reason(error)) from None


def nodes(resources: str | None) -> dict[str, Node]:
    """The living nodes by Ray's id, the driver's own first; `resources` caps them in all."""
    own = ray.get_runtime_context().get_node_id()
    alive = [entry for entry in ray.nodes() if entry["Alive"]]
    alive.sort(key=lambda entry: (entry["NodeID"] != own, _name(entry)))
    found = {entry["NodeID"]: _node(entry) for entry in alive}
    return found if resources is None else _capped(found, parse_amounts(resources))


def grows() -> bool:
    """Whether an autoscaler with node types of its own looks after the cluster.

    Ray runs one everywhere; where it can only look on, it names a type after each node.
    """
    if _internal_kv_get(_V2_ENABLED) == b"1":
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        types = [node.ray_node_type_name for node in [*status.active_nodes, *status.idle_nodes]]
    else:
        report = json.loads(_internal_kv_get(_V1_STATUS) or b"{}").get("autoscaler_report", {})
        types = list(report.get("node_type_mapping", {}).values())
    return any(not name.startswith(_LOOKED_ON) for name in types)


def amounts(need: Resources) -> dict[str, float]:
    """What an executor holds, in Ray's words."""
    named = {
        "CPU": need.millicpu / _FIXED,
        "GPU": need.milligpu / _FIXED,
        "memory": float(need.mem),
    }
    return {name: amount for name, amount in named.items() if amount}


def _start_options(site: Site) -> dict[str, Any]:
    here = local_node(site.resources)
    return {
        "address": "local",
        "num_cpus": max(1, -(-here.millicpu // 1000)),
        "num_gpus": len(here.gpus),
        "_memory": here.mem,
        "object_store_memory": site.cache or min(_DEFAULT_STORE, here.mem // 4),
        "include_dashboard": False,
    }


def _checked(address: str) -> dict[str, Any]:
    if address == "auto":
        return {"address": address}
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdigit():
        raise ValueError(
            f"address must be 'auto' or the host:port of a Ray head, not {address!r}; a driver "
            "runs on a node of the cluster (elsewhere: `ray job submit`)"
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise AppError(
            f"no Ray cluster answers at {address}",
            why=str(error),
            remedy="start one there (`ray start --head`), or leave out address to start one here",
        ) from None
    return {"address": address}


def _name(entry: dict[str, Any]) -> str:
    return f"{entry['NodeManagerAddress']}-{entry['NodeID'][:6]}"


def _node(entry: dict[str, Any]) -> Node:
    held = entry["Resources"]
    return Node(
        name=_name(entry),
        millicpu=round(held.get("CPU", 0) * _FIXED),
        mem=int(held.get("memory", 0)),
        gpus=tuple(str(index) for index in range(int(held.get("GPU", 0)))),
    )


def _capped(found: dict[str, Node], limits: dict[str, int]) -> dict[str, Node]:
    """Nodes of which no more is used than `limits` says, in order."""
    left = dict(limits)
    capped = {}
    for id, node in found.items():
        gpus = node.gpus
        if "gpu" in left:
            gpus = gpus[: left["gpu"] // 1000]
            left["gpu"] -= 1000 * len(gpus)
        capped[id] = replace(
            node,
            millicpu=_take(left, "cpu", node.millicpu),
            mem=_take(left, "mem", node.mem),
            gpus=gpus,
        )
    return capped


def _take(left: dict[str, int], key: str, amount: int) -> int:
    if key not in left:
        return amount
    taken = min(left[key], amount)
    left[key] -= taken
    return taken


def reason(error: BaseException) -> str:
    """What an error of Ray says, in one line."""
    text = str(error)
    told = _EXIT_CODE.search(text)
    if told:
        return f"exit code {told[1]}"
    if "worker process has died" in text:
        return "its process died, and its node's system doesn't tell how"
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not _DETAIL.match(line)]
    return " ".join(kept)[:_REASON_CHARS] or type(error).__name__
