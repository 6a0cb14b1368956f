"""Calls: values, errors, futures, timeouts, cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_probes import until
from app_services import UserError, Worker, echo, square
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forage import app

BIG = 200_000  # float64: far above what travels inline


@pytest.mark.parametrize(
    "value", [None, 0, "text", b"bytes", {"nested": [1, (2, {3})]}, Path("a/b"), square]
)
def test_values_arrive_as_they_were(running: app.App, value: Any) -> None:
    assert Worker.remote().echo.remote(value).result() == value


def test_arguments_by_position_and_name(running: app.App) -> None:
    assert Worker.remote().echo.remote(1, 2, a=3).result() == ((1, 2), {"a": 3})


def test_state_stays_between_calls_in_order(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote(10)
    futures = [worker.add.remote(n) for n in range(50)]
    assert [f.result() for f in futures] == [10 + n * (n + 1) // 2 for n in range(50)]


@pytest.mark.parametrize("size", [10, BIG])
def test_arrays_arrive_read_only(running: app.App, size: int) -> None:
    worker = Worker.remote()
    array = np.arange(size, dtype=np.float64)
    assert worker.kind.remote(array).result() == ("ndarray", False)
    result = worker.double.remote(array).result()
    assert not result.flags.writeable
    np.testing.assert_array_equal(result, array * 2)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from([100, 128 * 1024 - 400, 128 * 1024 + 1, 1 << 20]), st.integers(0, 3))
def test_bytes_round_trip_around_the_inline_limit(
    running: app.App, size: int, content: int
) -> None:
    value = bytes([content]) * size
    assert echo.remote(value).result() == value


def test_large_values_are_freed_when_nobody_holds_them(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote()
    array = np.ones(BIG)

    def shared() -> int:
        return int(running.status()["cache"]["shared_bytes"])

    assert worker.kind.remote(array).result()[0] == "ndarray"
    until(lambda: shared() == 0)  # the argument went with the call
    future = worker.double.remote(array)
    result = future.result()
    assert shared() >= array.nbytes
    del future
    until(lambda: shared() == 0)
    assert result.sum() == 2 * BIG  # what is mapped stays
    worker.double.remote(array)  # whose future nobody keeps
    until(lambda: shared() == 0)


def test_a_constructor_takes_large_values(running: app.App) -> None:
    worker = Worker.options(warmup=2).remote(np.ones(BIG))
    assert [f.result() for f in [worker.size.remote() for _ in range(4)]] == [BIG] * 4


def test_a_constructor_takes_futures(running: app.App) -> None:
    first = Worker.remote(1)
    assert Worker.remote(first.add.remote(4)).add.remote(1).result() == 6


def test_refs_arrive_as_refs(running: app.App) -> None:
    ref = app.put(np.arange(BIG))
    worker = Worker.remote()
    assert worker.kind.remote(ref).result()[0] == "Ref"
    assert app.get(worker.echo.remote(ref).result())[-1] == BIG - 1
    assert app.get([ref, worker.add.remote(2)])[1] == 2


def test_futures_arrive_as_values(running: app.App) -> None:
    worker = Worker.options(warmup=2).remote()
    assert worker.double.remote(worker.double.remote(3)).result() == 12
    assert worker.echo.remote(0, a=worker.double.remote(4)).result() == ((0,), {"a": 8})
    array = worker.double.remote(worker.double.remote(np.ones(BIG)))
    assert array.result().sum() == 4 * BIG
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert worker.double.remote(pool.submit(lambda: 21)).result() == 42


def test_a_future_that_fails_fails_the_call(running: app.App) -> None:
    worker = Worker.options(warmup=2).remote()
    with pytest.raises(UserError, match="code 8"):
        worker.double.remote(worker.fail.remote(8)).result()


def test_a_future_inside_a_value_is_refused(running: app.App) -> None:
    worker = Worker.remote()
    future = worker.add.remote()
    with pytest.raises(TypeError, match=r"argument 0 of Worker.echo\[0\].*future travels only"):
        worker.echo.remote([future])
    assert future.result() == 1


def test_unpicklable_values_are_named(running: app.App) -> None:
    worker = Worker.remote()
    with pytest.raises(TypeError, match=r"can't pickle argument 1 of Worker.echo\['lock'\]"):
        worker.echo.remote(1, {"lock": threading.Lock()})
    with pytest.raises(TypeError, match=r"can't pickle key of Worker.echo"):
        worker.echo.remote(key=threading.Lock())
    with pytest.raises(TypeError, match=r"argument 0 of Worker's constructor"):
        Worker.remote(threading.Lock())
    with pytest.raises(TypeError, match=r"can't pickle the result of unpicklable\['lock'\]"):
        worker.unpicklable.remote().result()


def test_an_exception_arrives_with_its_type_and_remote_traceback(running: app.App) -> None:
    future = Worker.remote().fail.remote(5)
    with pytest.raises(UserError, match="code 5: as asked") as caught:
        future.result()
    assert (caught.value.code, caught.value.hint) == (5, "as asked")
    assert "in fail" in str(caught.value.__cause__)
    assert "app_services.py" in str(caught.value.__cause__)
    assert future.exception() is caught.value


def test_what_cannot_travel_arrives_as_a_remote_error(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote()
    with pytest.raises(app.RemoteError, match="Unpicklable: holds a lock") as caught:
        worker.fail_unpicklable.remote().result()
    assert caught.value.type_name.endswith("Unpicklable")
    assert "in fail_unpicklable" in caught.value.traceback
    with pytest.raises(app.RemoteError, match="SystemExit: 7"):
        worker.leave.remote().result()
    assert worker.add.remote().result() == 1  # the executor lives on


def test_wrong_arguments_raise_at_the_caller(running: app.App) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'amonut'"):
        Worker.remote().add.remote(amonut=1).result()


def test_exceptions_are_never_retried(running: app.App, tmp_path: Path) -> None:
    marker = tmp_path / "calls"

    @app.service
    def fail() -> None:
        with marker.open("a") as file:
            file.write("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail.remote().result()  # type: ignore[attr-defined]
    assert marker.read_text() == "x"


def test_as_completed_and_wait(running: app.App) -> None:
    worker = Worker.options(warmup=2).remote()
    slow, fast = worker.sleep.remote(1.0), worker.add.remote()
    assert next(iter(app.as_completed([slow, fast]))) is fast
    done, rest = app.wait([slow, fast], return_when=concurrent.futures.FIRST_COMPLETED)
    assert (done, rest) == ({fast}, {slow})
    with pytest.raises(TimeoutError):
        list(app.as_completed([slow], timeout=0.05))
    assert app.wait([slow, fast]).__class__ is tuple
    assert list(app.as_completed([])) == []


def test_futures_can_be_awaited(running: app.App) -> None:
    worker = Worker.options(warmup=2).remote()

    async def both() -> list[int]:
        futures = [asyncio.wrap_future(worker.double.remote(n)) for n in (1, 2)]
        return await asyncio.gather(*futures)

    async def failing() -> None:
        await asyncio.wrap_future(worker.fail.remote(3))

    assert asyncio.run(both()) == [2, 4]
    with pytest.raises(UserError, match="code 3"):
        asyncio.run(failing())


def test_a_queued_call_can_be_cancelled_and_a_running_one_cannot(
    running: app.App, tmp_path: Path
) -> None:
    worker = Worker.options(max_executors=1).remote()
    gate = tmp_path / "gate"
    running_call = worker.wait_for.remote(str(gate))
    until(running_call.running)
    queued = worker.add.remote(100)
    assert queued.cancel()
    assert queued.cancelled()
    assert not running_call.cancel()
    dependent = worker.add.remote(queued)
    gate.touch()
    assert running_call.result() > 0
    with pytest.raises(concurrent.futures.CancelledError):
        queued.result()
    with pytest.raises(concurrent.futures.CancelledError):
        dependent.result()
    assert worker.add.remote().result() == 1
    assert list(app.as_completed([queued])) == [queued]


def test_a_timeout_while_running_ends_the_executor(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote()
    before = worker.pid.remote().result()
    with pytest.raises(TimeoutError, match=r"Worker.sleep timed out after 0.3 s: it was running"):
        worker.sleep.options(timeout=0.3).remote(30).result()
    assert worker.pid.remote().result() != before


def test_a_timeout_counts_from_submission(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(max_executors=1).remote()
    gate = tmp_path / "gate"
    holder = worker.wait_for.remote(str(gate))
    until(holder.running)
    with pytest.raises(TimeoutError, match="it hadn't started"):
        worker.add.options(timeout=0.2).remote().result()
    held = worker.add.options(timeout=0.2).remote(holder)
    with pytest.raises(TimeoutError, match="it hadn't started"):
        held.result()
    gate.touch()
    assert holder.result() > 0
    assert worker.add.remote().result() == 1


def test_timeouts_of_methods_and_services(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote()
    with pytest.raises(TimeoutError, match="after 0.5 s"):
        worker.slow.remote().result()
    with pytest.raises(TimeoutError, match="after 0.4 s"):
        Worker.options(timeout=0.4).remote().sleep.remote(30).result()
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0, not -1"):
        worker.add.options(timeout=-1)


def test_code_of_main_travels_by_value(engine: str, run_script: Callable[..., str]) -> None:
    output = run_script(
        f"""
        from forage import app

        print("main runs")

        class Error(Exception):
            pass

        @app.service
        class Local:
            def fail(self):
                raise Error("mine")
            def name(self):
                return __name__

        with app.init("main", engine={engine!r}, resources="cpu=2"):
            local = Local.remote()
            try:
                local.fail.remote().result()
            except Error as error:
                print("caught", error)
        """
    )
    assert output.splitlines() == ["main runs", "caught mine"]
