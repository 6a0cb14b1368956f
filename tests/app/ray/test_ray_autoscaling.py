"""A cluster that grows: what sessions lack is what its autoscaler sees."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_probes import until
from ray_services import Rank, Worker

from forage import app

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A head with one CPU and an autoscaler of which the test plays the part that adds nodes."""
    from ray.cluster_utils import Cluster

    lists = (
        "cluster_synced_files rsync_exclude rsync_filter setup_commands initialization_commands "
        "head_setup_commands worker_setup_commands head_start_ray_commands "
        "worker_start_ray_commands"
    )
    config = {
        "cluster_name": "growing",
        "max_workers": 0,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 1,
        "provider": {"type": "fake_multinode"},
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "pair": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        },
        **{name: [] for name in lists.split()},
    }
    path = tmp_path / "autoscaling.json"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    cluster = Cluster()
    cluster.add_node(
        num_cpus=1,
        object_store_memory=100 << 20,
        include_dashboard=False,
        autoscaling_config=str(path),
    )
    yield cluster
    cluster.shutdown()


def demanded() -> list[list[dict[str, float]]]:
    """The bundles of the placement groups that wait: what Ray reports to its autoscaler."""
    from ray.util import placement_group_table

    waiting = [g for g in placement_group_table().values() if g["state"] == "PENDING"]
    return [list(group["bundles"].values()) for group in waiting]


def test_what_sessions_lack_is_seen_until_nodes_come(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, run_dir = cluster.head_node.address, tmp_path / "run"
    with app.init("growing", engine="ray", address=address, run_dir=run_dir) as running:
        until(lambda: running._controller.engine.grows, 60)  # its autoscaler reports late
        with caplog.at_level(logging.WARNING, logger="forage.app"):
            gang = Rank.options(resreq="cpu=2").remote()
        assert "waits until the cluster has grown" in caplog.text
        until(lambda: demanded() == [[{"CPU": 2.0}] * 2], 60)
        calls = [Worker.options(resreq="cpu=3").remote().pid.remote() for _ in range(2)]
        until(lambda: [{"CPU": 3.0}] in demanded(), 60)
        for cpus in (4, 3):
            cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20)
        assert gang.generation.broadcast().result(120) == [0, 0]
        assert len({call.result(120) for call in calls}) == 2
        until(lambda: not demanded(), 60)
