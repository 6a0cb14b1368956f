"""Starts the engine of an app, and the object cache that belongs to it."""

from __future__ import annotations

import importlib.util
import os

from forage.app.cache import Directory, open_directory
from forage.app.capacity import local_node
from forage.app.engines.base import Engine, Site
from forage.app.engines.local import LocalEngine
from forage.app.errors import AppError

ENGINES = ("local", "ray")


def open_engine(kind: str, site: Site) -> tuple[Engine, Directory]:
    """Start engine `kind`, one of `ENGINES`; whoever opens it closes both.

    Raises:
        ValueError: the site's resources or address are malformed.
        AppError: the engine can't be had here; the message says what to do.
    """
    if kind == "ray":
        return _open_ray(site)
    if site.address is not None:
        raise ValueError(f"address={site.address!r} is for engine='ray'; engine='local' has none")
    node = local_node(site.resources)
    directory = open_directory(site.app, budget=site.cache, disk_root=site.run_dir)
    folders = [*directory.places.folders, *([site.run_dir] if site.temporary else [])]
    return LocalEngine(node, site.token, site.logs, folders), directory


def _open_ray(site: Site) -> tuple[Engine, Directory]:
    if importlib.util.find_spec("ray") is None:
        raise AppError(
            "engine 'ray' needs Ray, which isn't installed",
            remedy="pip install 'forage-rl[ray]'",
        )
    # A question that comes too late, after the app has left its cluster, must not start another.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    from forage.app.engines.ray.opening import open_ray  # Ray is an extra, and slow to import

    return open_ray(site)
