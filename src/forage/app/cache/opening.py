"""Where an app's cache lies, and how much it may hold by default."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from forage.app.cache.directory import Directory
from forage.app.cache.store import Places


def open_directory(
    app: str,
    *,
    budget: int | None = None,
    disk_budget: int | None = None,
    shared_root: Path = Path("/dev/shm"),
    disk_root: Path | None = None,
) -> Directory:
    """Make an app's cache: private directories under `shared_root` and `disk_root`.

    `budget` and `disk_budget` are bytes; by default half of the free shared memory (at most half
    of the machine's memory), and 80 % of the free disk. `disk_root` is by default the system's
    temporary directory.
    """
    disk_root = disk_root or Path(tempfile.gettempdir())
    for root in (shared_root, disk_root):
        if not os.access(root, os.W_OK | os.X_OK):
            raise ValueError(f"the object cache needs a writable directory, which {root} is not")
    if budget is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        budget = min(shutil.disk_usage(shared_root).free, memory) // 2
    if disk_budget is None:
        disk_budget = shutil.disk_usage(disk_root).free * 8 // 10
    if budget < 0 or disk_budget < 0:
        raise ValueError(f"budgets are bytes, not {budget} and {disk_budget}")
    shared = Path(tempfile.mkdtemp(prefix="forage-", dir=shared_root))
    disk = Path(tempfile.mkdtemp(prefix="forage-cache-", dir=disk_root))
    return Directory(Places(app, shared, disk, budget), disk_budget)
