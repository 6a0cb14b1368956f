"""What this process may use of its machine: affinity, control groups, visible GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from forage.app.placement import Node
from forage.app.resources import format_milli, parse_amounts

_CGROUPS = Path("/sys/fs/cgroup")


def local_node(resources: str | None) -> Node:
    """Return this machine as the scheduler sees it; `resources` overrides what it names.

    Raises:
        ValueError: `resources` is malformed, or names a fraction of a GPU.
    """
    named = {} if resources is None else parse_amounts(resources)
    gpus = _visible_gpus()
    if "gpu" in named:
        gpus = _named_gpus(named["gpu"], gpus)
    return Node(
        name="local",
        millicpu=named.get("cpu", _usable_millicpu()),
        mem=named.get("mem", _usable_memory()),
        gpus=gpus,
    )


def _named_gpus(milligpu: int, visible: tuple[str, ...]) -> tuple[str, ...]:
    if milligpu % 1000:
        raise ValueError(f"resources gpu={format_milli(milligpu)}: a machine has whole GPUs")
    count = milligpu // 1000
    extra = (str(index) for index in range(count) if str(index) not in visible)
    return tuple([*visible, *extra][:count])


def _usable_millicpu() -> int:
    cpus = len(os.sched_getaffinity(0)) * 1000
    return max(1, min([cpus, *_cpu_quotas()]))


def _cpu_quotas() -> Iterator[int]:
    for folder in _cgroup_folders(""):
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            yield int(fields[0]) * 1000 // int(fields[1])
    for folder in _cgroup_folders("cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            yield int(quota) * 1000 // int(period)


def _usable_memory() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_memory_limits()])


def _memory_limits() -> Iterator[int]:
    for folder in _cgroup_folders(""):
        limit = _read(folder / "memory.max").strip()
        if limit.isdigit():
            yield int(limit)
    for folder in _cgroup_folders("memory"):
        limit = _read(folder / "memory.limit_in_bytes").strip()
        if limit.isdigit():
            yield int(limit)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield this process's control group and its parents; `""` is the hierarchy of version 2."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") or (controllers and not controller):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        own = root / path.lstrip("/")
        # Inside a container the path may name the host's hierarchy: then only the root is there.
        for folder in [own, *own.parents]:
            yield folder
            if folder == root:
                break


def _visible_gpus() -> tuple[str, ...]:
    """GPU ids as `CUDA_VISIBLE_DEVICES` takes them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        ids = (part.strip() for part in visible.split(","))
        # CUDA itself ignores what follows an empty or negative id.
        usable: list[str] = []
        for gpu in ids:
            if not gpu or gpu.startswith("-"):
                break
            usable.append(gpu)
        return tuple(usable)
    devices = (re.fullmatch(r"nvidia(\d+)", name) for name in os.listdir("/dev"))
    return tuple(sorted((match[1] for match in devices if match), key=int))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
