"""Joins or starts the Ray cluster of an app."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import ray

from forage.app.cache.directory import Directory
from forage.app.engines.base import Site
from forage.app.engines.processes import dismiss_reaper, start_reaper
from forage.app.engines.ray import cluster
from forage.app.engines.ray.actors import start_keeper
from forage.app.engines.ray.engine import RayEngine
from forage.app.engines.ray.store import RayPlaces
from forage.app.errors import AppError
from forage.app.packaging import packaged
from forage.app.resources import parse_amounts

_START_S = 600.0  # what nodes may take to make the project's environment


def open_ray(site: Site) -> tuple[RayEngine, Directory]:
    """Start the engine and the cache of an app.

    Raises:
        ValueError: the site's address or resources are malformed.
        AppError: this process uses Ray already, there is no such cluster, or it can't run this
            project; see `packaged`.
    """
    if ray.is_initialized():
        raise AppError(
            "this process uses Ray already",
            remedy="let app.init start or join the cluster: call ray.shutdown() first",
        )
    if site.resources is not None:
        parse_amounts(site.resources)
    package = packaged()
    folder = Path(tempfile.mkdtemp(prefix="forage-package-"))
    reaper = start_reaper(site.token, [folder, *([site.run_dir] if site.temporary else [])])
    try:
        archive = folder / "project.zip"
        package.write(archive)
        cluster.connect(site, package, archive, site.token)
        keeper = start_keeper(f"keeper-{site.token}")
        ray.get(keeper.find.remote(""), timeout=_START_S)
        places = RayPlaces(site.app, f"keeper-{site.token}", site.token)
        return RayEngine(site, package, keeper, reaper), Directory(places, disk_budget=0)
    except BaseException as error:
        ray.shutdown()
        dismiss_reaper(reaper)
        if not isinstance(error, ray.exceptions.RayError):
            raise
        raise AppError("the cluster can't run this project", why=cluster.reason(error)) from None
    finally:
        shutil.rmtree(folder)
