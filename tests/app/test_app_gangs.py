"""Gangs: all or none, ranks, broadcast, breaking and reforming."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from app_probes import alive, until
from app_services import Rank, UserError, Worker

from forage import app
from forage.app import gang as gangs

Gang = Rank.options(autoscale=False, warmup=3)


def test_ranks_and_their_context(running: app.App) -> None:
    gang = Gang.remote()
    places = gang.place.broadcast().result()
    assert [place.rank for place in places] == [0, 1, 2]
    assert {place.size for place in places} == {3}
    assert {place.generation for place in places} == {0}
    assert {place.session for place in places} == {gang.id}
    assert {place.app for place in places} == {"contract"}
    assert len({place.executor for place in places}) == 3
    assert len({place.rendezvous for place in places}) == 1


def test_a_plain_call_goes_to_rank_zero(running: app.App) -> None:
    gang = Gang.remote()
    assert [gang.add.remote(1).result() for _ in range(3)] == [(0, 1), (0, 2), (0, 3)]


def test_broadcasts_come_in_the_same_order_everywhere(running: app.App) -> None:
    gang = Gang.remote()
    futures = [gang.add.broadcast(n) for n in range(20)]
    for n, future in enumerate(futures):
        assert future.result() == [(rank, n * (n + 1) // 2) for rank in range(3)]


def test_large_values_are_broadcast_by_reference(running: app.App) -> None:
    import numpy as np

    gang = Gang.remote()
    array = np.ones(100_000)
    results = gang.add.broadcast(array).result()
    assert [total.sum() for _, total in results] == [100_000] * 3
    worker = Worker.remote()
    assert len(worker.echo.remote(gang.place.broadcast()).result()) == 3
    del results
    until(lambda: running.status()["cache"]["shared_bytes"] == 0)


def test_a_gang_of_one_is_the_default(running: app.App) -> None:
    gang = Rank.options(autoscale=False).remote()
    assert gang.add.broadcast(1).result() == [(0, 1)]


def test_the_rendezvous_can_be_listened_on(running: app.App) -> None:
    gang = Gang.remote()
    first = gang.listen.broadcast().result()
    gang.reform()
    second = gang.listen.broadcast().result()
    assert len({*first}) == len({*second}) == 1
    assert first[0] != second[0]


def test_a_rank_that_raises_fails_the_broadcast_but_not_the_gang(running: app.App) -> None:
    gang = Gang.remote()
    future = gang.fail_on.broadcast(1, 0.3)
    with pytest.raises(UserError, match="code 1: on this rank"):
        future.result()
    assert gang.add.broadcast(1).result() == [(0, 1), (1, 1), (2, 1)]


def test_peers_that_never_finish_break_the_gang(
    running: app.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gangs, "PEER_GRACE_S", 0.3)
    gang = Gang.remote()
    future, later = gang.fail_on.broadcast(1, 60.0), gang.add.broadcast(1)
    with pytest.raises(UserError):
        future.result()
    with pytest.raises(app.GangBroken, match="rank 0 was still in Rank.fail_on 0.3 s after rank 1"):
        later.result()


def test_a_lost_member_breaks_the_gang_until_it_is_reformed(
    running: app.App, events: Callable[[str], list[dict[str, Any]]]
) -> None:
    gang = Gang.remote()
    pids = gang.pid.broadcast().result()
    rendezvous = gang.place.remote().result().rendezvous
    in_flight, queued = gang.die_on.broadcast(2), gang.add.broadcast(1)
    for future in (in_flight, queued, gang.add.remote(1)):
        with pytest.raises(app.GangBroken) as caught:
            future.result()
        assert (caught.value.rank, caught.value.exit) == (2, "exit code 4")
        assert "rank 2 says goodbye" in caught.value.log
        assert "reform()" in str(caught.value)
    gang.reform()
    assert gang.add.broadcast(1).result() == [(0, 1), (1, 1), (2, 1)]
    place = gang.place.remote().result()
    assert place.generation == 1
    assert place.rendezvous != rendezvous
    assert not {*pids} & {*gang.pid.broadcast().result()}
    assert not any(map(alive, pids))
    assert [e["generation"] for e in events("gang_formed")] == [0, 1]
    assert len(events("gang_broken")) == 1


def test_a_member_killed_while_idle_breaks_the_gang(running: app.App) -> None:
    gang = Gang.remote()
    os.kill(gang.pid.broadcast().result()[1], signal.SIGKILL)
    until(lambda: running.status()["sessions"][0]["state"] == "failed")
    with pytest.raises(app.GangBroken, match="rank 1 .* signal SIGKILL"):
        gang.add.broadcast(1).result()


def test_gang_calls_are_never_retried(running: app.App, tmp_path: Any) -> None:
    gang = Worker.options(autoscale=False, retries=5).remote()
    marker = tmp_path / "marker"
    with pytest.raises(app.GangBroken):
        gang.die_once.remote(str(marker)).result()
    assert marker.read_text() == "x"


def test_a_timeout_breaks_the_gang(running: app.App) -> None:
    gang = Gang.remote()
    gang.add.broadcast(1).result()
    timed, later = gang.sleep.options(timeout=0.3).broadcast(60), gang.add.broadcast(1)
    with pytest.raises(TimeoutError, match="Rank.sleep timed out after 0.3 s"):
        timed.result()
    with pytest.raises(app.GangBroken, match="timed out"):
        later.result()
    gang.reform()
    assert len(gang.add.broadcast(1).result()) == 3


def test_reform_ends_what_is_left_of_a_whole_gang(running: app.App) -> None:
    gang = Gang.remote()
    pids = gang.pid.broadcast().result()
    stuck = gang.sleep.broadcast(60)
    until(stuck.running)
    gang.reform()
    with pytest.raises(app.GangBroken, match="was reformed"):
        stuck.result()
    assert gang.place.remote().result().generation == 1
    until(lambda: not any(map(alive, pids)))


def test_a_constructor_that_fails_on_one_rank_fails_the_gangs_calls(running: app.App) -> None:
    gang = Gang.remote(fail_rank=1)
    with pytest.raises(UserError, match="code 6: rank 1"):
        gang.add.broadcast(1).result()
    with pytest.raises(UserError, match="code 6: rank 1"):
        gang.add.remote(1).result()
    until(lambda: not running.status()["sessions"][0]["executors"])


def test_a_gang_waits_until_all_of_it_fits(
    start: Callable[..., app.App], events: Callable[[str], list[dict[str, Any]]]
) -> None:
    start("cpu=3")
    first = Rank.options(autoscale=False, warmup=2).remote()
    second = Rank.options(autoscale=False, warmup=2).remote()
    later = second.add.broadcast(1)
    assert first.add.broadcast(1).result() == [(0, 1), (1, 1)]
    assert not later.done()
    (waiting,) = events("waiting")
    assert (waiting["session"], waiting["holders"]) == (second.id, [first.id])
    started = {event["session"] for event in events("executor_started")}
    assert started == {first.id}
    first.close()
    assert later.result() == [(0, 1), (1, 1)]


def test_elastic_executors_make_room_for_a_gang_at_their_next_call_boundary(
    start: Callable[..., app.App],
) -> None:
    start("cpu=2")
    worker = Worker.remote()
    calls = [worker.sleep.remote(0.2) for _ in range(12)]
    until(lambda: sum(call.running() for call in calls) == 2)
    gang = Rank.options(autoscale=False, warmup=2).remote()
    assert gang.add.broadcast(1).result() == [(0, 1), (1, 1)]
    assert not all(call.done() for call in calls)
    gang.close()
    assert len([call.result() for call in calls]) == 12


def test_gangs_that_need_the_same_resources_never_deadlock(start: Callable[..., app.App]) -> None:
    start("cpu=3")
    gangs = [Rank.options(autoscale=False, warmup=2).remote() for _ in range(3)]
    futures = [gang.add.broadcast(1) for gang in gangs]
    for gang, future in zip(gangs, futures, strict=True):
        assert future.result() == [(0, 1), (1, 1)]
        gang.close()


def test_members_are_constructed_concurrently(running: app.App) -> None:
    """Each constructor waits for the others' files: one by one they would never finish."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        gang = Meeting.options(autoscale=False, warmup=3).remote(folder)
        assert gang.met.broadcast().result() == [True] * 3


@app.service
class Meeting:
    """Constructed only together with its peers."""

    def __init__(self, folder: str) -> None:
        deadline = time.monotonic() + 20
        here = app.context()
        open(os.path.join(folder, str(here.rank)), "w").close()
        self.complete = False
        while not self.complete and time.monotonic() < deadline:
            self.complete = len(os.listdir(folder)) == here.size
            time.sleep(0.01)

    def met(self) -> bool:
        return self.complete
