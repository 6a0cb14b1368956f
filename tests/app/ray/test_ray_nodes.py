"""Several nodes: gangs across them, values that outlive their writers, and losing one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_probes import until
from ray_services import Rank, Worker

from forage import app

pytestmark = pytest.mark.slow  # a cluster of several nodes for each


def test_a_gang_spans_nodes_and_meets_at_its_rendezvous(
    add_node: Callable[..., Any], start: Callable[..., app.App]
) -> None:
    add_node(num_cpus=1)
    start()
    results = Rank.remote().sum_of_ranks.broadcast().result(120)
    assert [total for total, _ in results] == [3.0, 3.0]
    assert len({node for _, node in results}) == 2


def test_a_value_outlives_the_executor_that_put_it(
    add_node: Callable[..., Any], start: Callable[..., app.App]
) -> None:
    """Also where the executor was on another node than the driver."""
    node = add_node(num_cpus=2)
    start()
    workers = Worker.options(resreq="cpu=2", retries=0).remote()  # fits on the new node only
    ref = workers.put.remote(300_000).result(60)
    assert workers.node.remote().result() == node.node_id
    with pytest.raises(app.ExecutorLost, match="exit code 3|doesn't tell how"):
        workers.die.remote().result()
    value = app.get(ref)
    assert not value.flags.writeable
    np.testing.assert_array_equal(value, np.arange(300_000))
    assert app.delete(ref) == 1


def test_calls_of_a_lost_node_run_again_elsewhere(
    cluster: Any, add_node: Callable[..., Any], start: Callable[..., app.App], tmp_path: Path
) -> None:
    node = add_node(num_cpus=2)
    start()
    workers = Worker.options(resreq="cpu=2").remote()
    gate = tmp_path / "gate"
    future = workers.node_after.remote(str(gate))
    begun = tmp_path / "gate.begun"
    until(lambda: begun.exists() and begun.read_text().endswith("\n"), 60)
    other = add_node(num_cpus=2)
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: len(begun.read_text().splitlines()) == 2, 60)
    gate.touch()
    assert future.result(30) == other.node_id
    assert begun.read_text().splitlines() == [node.node_id, other.node_id]


def test_a_gang_breaks_with_its_node_and_can_be_reformed(
    cluster: Any, add_node: Callable[..., Any], start: Callable[..., app.App]
) -> None:
    node = add_node(num_cpus=1)
    running = start()
    gang = Rank.remote()
    assert gang.generation.broadcast().result(60) == [0, 0]
    waiting = gang.wait.broadcast()
    cluster.remove_node(node, allow_graceful=False)
    with pytest.raises(app.GangBroken, match="was lost") as broken:
        waiting.result(60)
    assert broken.value.rank == 1
    gang.reform()
    later = gang.generation.broadcast()
    until(lambda: running.status()["waiting"] == [gang.id], 30)  # the head alone has no room
    add_node(num_cpus=1)
    assert later.result(60) == [1, 1]


def test_what_never_fits_is_infeasible(cluster: Any, start: Callable[..., app.App]) -> None:
    start()
    with pytest.raises(app.Infeasible, match=r"needs 1 x \(cpu=5\).*there is cpu=1"):
        Worker.options(resreq="cpu=5").remote()
    with pytest.raises(app.Infeasible, match="whole GPUs"):
        Rank.options(resreq="gpu=0.5").remote()
