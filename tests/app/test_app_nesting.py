"""Handles and the cache inside executors, and calls that wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_probes import until
from app_services import Caller, Rank, UserError, Worker, square

from forage import app


def test_handles_work_inside_executors(running: app.App) -> None:
    caller, worker = Caller.options(max_executors=1).remote(), Worker.remote()
    assert caller.call.remote(worker, "double", 4).result() == 8
    assert caller.call_many.remote(worker, 5).result() == [0, 2, 4, 6, 8]
    assert caller.call_in_threads.remote(worker, 3).result() == [0, 2, 4]
    assert caller.call_async.remote(worker, 5).result() == 10
    assert caller.chain.remote(worker, 3).result() == 12
    gang = Rank.options(autoscale=False, warmup=2).remote()
    assert caller.broadcast.remote(gang, 3).result() == [(0, 3), (1, 3)]


def test_a_thread_left_behind_goes_on_calling(running: app.App) -> None:
    caller, worker = Caller.options(max_executors=1).remote(), Worker.remote()
    worker.add.remote().result()  # it is there
    caller.begin_counting.remote(worker, 1.5).result()
    assert caller.counted_while_asleep.remote(0.5).result() > 5
    assert [caller.counted_while_asleep.remote(0).result() >= 0 for _ in range(50)] == [True] * 50
    assert caller.count_to_the_end.remote().result() > 10


def test_errors_cross_two_executors(running: app.App) -> None:
    with pytest.raises(UserError, match="code 9") as caught:
        Caller.remote().call.remote(Worker.remote(), "fail", 9).result()
    assert "in call" in str(caught.value.__cause__)


def test_large_values_between_executors_are_freed(running: app.App) -> None:
    caller, worker = Caller.remote(), Worker.remote()
    assert caller.pass_array.remote(worker, np.ones(100_000)).result() == 200_000
    caller.chain.remote(worker, 1).result()  # carries the news of the dropped result
    until(lambda: running.status()["cache"]["shared_bytes"] == 0)


def test_the_cache_works_inside_executors(running: app.App) -> None:
    caller = Caller.options(max_executors=1).remote()
    ref = caller.put.remote(np.arange(100_000), "weights/0").result()
    assert (ref.key, ref.version) == ("weights/0", 1)
    assert app.get(ref)[-1] == 99_999
    assert caller.append.remote(ref, "part").result().version == 2
    assert app.fetch(ref, since=1).parts == ("part",)
    with pytest.raises(ValueError, match="has 1 parts"):
        caller.get.remote(ref).result()
    with pytest.raises(app.VersionConflict):
        caller.put.remote(1, "weights/0").result()
    assert app.delete("weights") == 1
    with pytest.raises(app.ObjectLost):
        caller.get.remote(ref).result()


def test_what_an_executor_put_survives_it(running: app.App) -> None:
    caller = Caller.options(warmup=1).remote()
    ref = caller.put.remote(np.ones(100_000)).result()
    caller.close()
    assert app.get(ref).sum() == 100_000


def test_a_result_held_by_a_dead_caller_is_freed(running: app.App, tmp_path: Path) -> None:
    worker = Worker.remote()

    @app.service
    class Dies:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def keep(self, session: app.Session) -> None:
            self.kept.append(session.double.remote(np.ones(100_000)))
            self.kept[0].result()

        def die(self) -> None:
            import os

            os._exit(1)

    session = Dies.options(warmup=1, retries=0).remote()  # type: ignore[attr-defined]
    session.keep.remote(worker).result()
    assert running.status()["cache"]["shared_bytes"] > 0
    with pytest.raises(app.ExecutorLost):
        session.die.remote().result()
    until(lambda: running.status()["cache"]["shared_bytes"] == 0)


def test_sessions_and_apps_are_the_drivers_to_open(running: app.App) -> None:
    caller = Caller.remote()
    with pytest.raises(app.AppError, match="can't open a session of Worker in an executor"):
        caller.open.remote().result()
    with pytest.raises(app.AppError, match="can't start app 'inner'"):
        caller.start_app.remote().result()


def test_functions_in_executors_use_the_drivers_session(running: app.App) -> None:
    caller = Caller.remote()
    with pytest.raises(app.AppError, match="call it once in the driver first"):
        caller.square.remote(3).result()
    square.remote(1).result()
    assert caller.square.remote(3).result() == 9


def test_cancelling_inside_an_executor(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(max_executors=1).remote()
    gate = tmp_path / "gate"
    assert Caller.remote().cancel.remote(worker, str(gate)).result() == (True, False)


def test_a_session_may_call_itself_as_deep_as_it_fits(running: app.App) -> None:
    caller = Caller.remote()
    assert caller.count_down.remote(caller, 5).result() == 5


def deadlocked(future: Any) -> app.Deadlock:
    with pytest.raises(app.Deadlock) as caught:
        future.result(timeout=20)
    return caught.value


def test_too_deep_a_recursion_is_a_deadlock(start: Callable[..., app.App]) -> None:
    start("cpu=2")
    caller = Caller.remote()
    error = deadlocked(caller.count_down.remote(caller, 5))
    assert error.sessions == (caller.id,)


@pytest.mark.parametrize("method", ["call_many", "call_in_threads", "call_async", "chain"])
def test_executors_that_all_wait_for_a_session_that_gets_none(
    start: Callable[..., app.App], method: str
) -> None:
    """Rollouts hold every executor and wait for a retriever that can't get one."""
    start("cpu=2")
    rollouts, retriever = Caller.options(warmup=2).remote(), Worker.remote()
    futures = [getattr(rollouts, method).remote(retriever, 2) for _ in range(2)]
    for future in futures:
        error = deadlocked(future)
        assert error.sessions == (rollouts.id, retriever.id)
        assert "Worker.double can never start" in str(error)
        assert "give Worker a warmup" in str(error)


def test_a_gang_that_calls_itself_is_a_deadlock(running: app.App) -> None:
    gang = Caller.options(autoscale=False).remote()
    error = deadlocked(gang.count_down.remote(gang, 1))
    assert error.sessions == (gang.id,)


def test_waiting_for_a_slow_call_is_no_deadlock(start: Callable[..., app.App]) -> None:
    start("cpu=2")
    caller, worker = Caller.options(warmup=1).remote(), Worker.options(warmup=1).remote()
    slow = worker.sleep.remote(4.0)
    assert caller.call.remote(worker, "double", 2).result() == 4
    assert slow.done()


def test_waiting_for_room_that_will_come_is_no_deadlock(start: Callable[..., app.App]) -> None:
    """The executor above warm-up that stands in the way ends, busy as it is."""
    start("cpu=2")
    caller, other, worker = Caller.remote(), Worker.remote(), Worker.remote()
    blocking = other.sleep.remote(4.0)
    until(blocking.running)
    assert caller.call.remote(worker, "double", 2).result() == 4
