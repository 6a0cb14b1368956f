"""Clusters of several raylets on this machine, and projects to run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forage import app
from forage.app import runtime

pytest.importorskip("ray", reason="needs the extra `ray`")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head has one CPU; tests add nodes, and take away those they added."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20, include_dashboard=False)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def add_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Adds nodes for one test."""
    added: list[Any] = []

    def add(**resources: Any) -> Any:
        added.append(cluster.add_node(object_store_memory=100 << 20, **resources))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Callable[..., app.App]]:
    """Starts the app of a test on the cluster; it ends with the test."""

    def start_app(**options: Any) -> app.App:
        address = cluster.head_node.address
        return app.init("nodes", engine="ray", address=address, run_dir=tmp_path / "run", **options)

    yield start_app
    if runtime.is_running():
        runtime.current().close(cancel=True)  # type: ignore[attr-defined]
