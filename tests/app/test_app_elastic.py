"""Elastic sessions: size, concurrency, lost executors, broken constructors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_probes import alive, until
from app_services import Broken, UserError, Worker

from forage import app

Events = Callable[[str], list[dict[str, Any]]]


def executors(running: app.App, session: app.Session) -> list[dict[str, Any]]:
    sessions = {s["session"]: s for s in running.status()["sessions"]}
    return list(sessions[session.id]["executors"])


def test_a_session_starts_with_its_warmup_and_grows_with_pending_calls(
    running: app.App, tmp_path: Path
) -> None:
    worker = Worker.options(warmup=1, max_executors=3).remote()
    assert len(executors(running, worker)) == 1
    futures = [worker.meet.remote(str(tmp_path), 3) for _ in range(5)]
    assert all(future.result() for future in futures)
    assert len(executors(running, worker)) == 3


def test_no_warmup_starts_nothing_before_the_first_call(running: app.App) -> None:
    worker = Worker.remote()
    assert executors(running, worker) == []
    worker.add.remote().result()
    assert len(executors(running, worker)) == 1


def test_idle_executors_above_warmup_are_released(
    running: app.App, tmp_path: Path, events: Events
) -> None:
    worker = Worker.options(warmup=1, max_executors=3, idle_timeout=0.1).remote()
    hall = tmp_path / "hall"
    hall.mkdir()
    assert all([f.result() for f in [worker.meet.remote(str(hall), 3) for _ in range(3)]])
    pids = {int(entry.name.partition("-")[0]) for entry in hall.iterdir()}
    assert len(pids) == 3
    until(lambda: len(executors(running, worker)) == 1)
    until(lambda: sum(map(alive, pids)) == 1)
    assert events("executor_released")
    assert worker.add.remote().result() == 1  # warm ones stay


def test_capacity_bounds_growth(start: Callable[..., app.App]) -> None:
    running = start("cpu=2")
    worker = Worker.remote()
    pids = {f.result() for f in [worker.sleep.remote(0.05) for _ in range(10)]}
    assert len(pids) <= 2
    assert running.status()["free"].startswith("cpu=")


def test_concurrency_runs_plain_methods_on_threads(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(concurrency=3, max_executors=1).remote()
    calls = [worker.meet.remote(str(tmp_path), 3) for _ in range(3)]
    assert all(call.result() for call in calls)
    assert len(executors(running, worker)) == 1


def test_concurrency_runs_async_methods_on_a_loop(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(concurrency=4, max_executors=1).remote()
    calls = [worker.meet_async.remote(str(tmp_path), n, 4) for n in range(4)]
    assert all(call.result() for call in calls)


def test_concurrency_counts_in_the_target(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(concurrency=2).remote()
    gate = tmp_path / "gate"
    calls = [worker.wait_for.remote(str(gate)) for _ in range(5)]
    until(lambda: len(executors(running, worker)) == 3)
    until(lambda: all(call.running() for call in calls))
    assert len(executors(running, worker)) == 3
    gate.touch()
    assert len({call.result() for call in calls}) == 3


def test_a_lost_executors_calls_run_again_elsewhere(
    running: app.App, tmp_path: Path, events: Events
) -> None:
    worker = Worker.remote()
    assert worker.die_once.remote(str(tmp_path / "marker")).result() == 2
    (retried,) = events("call_retried")
    assert (retried["call"], retried["exit"]) == ("Worker.die_once", "exit code 3")


def test_retries_are_counted(running: app.App, tmp_path: Path) -> None:
    worker = Worker.remote()
    with pytest.raises(app.ExecutorLost, match="Worker.die lost its executor") as caught:
        worker.die.remote(11).result()
    assert caught.value.exit == "exit code 11"
    assert "last words" in caught.value.log
    assert "last words" in str(caught.value)
    assert len(executors(running, worker)) <= 1
    assert running.status()["sessions"][0]["retried"] == 2


def test_no_retries_where_a_call_must_not_run_twice(running: app.App, tmp_path: Path) -> None:
    worker = Worker.remote()
    marker = tmp_path / "marker"
    with pytest.raises(app.ExecutorLost):
        worker.die_once.options(retries=0).remote(str(marker)).result()
    assert marker.read_text() == "x"


def test_a_killed_executor_is_replaced(running: app.App, tmp_path: Path, events: Events) -> None:
    worker = Worker.options(warmup=2).remote()
    marker = tmp_path / "pids"
    future = worker.sleep.remote(1.0, str(marker))
    until(lambda: marker.exists() and marker.read_text().endswith("\n"))
    victim = int(marker.read_text())
    os.kill(victim, signal.SIGKILL)
    assert future.result() != victim
    assert events("executor_lost")[0]["exit"] == "signal SIGKILL"
    until(lambda: len(executors(running, worker)) == 2)


def test_a_lost_executors_descendants_go_with_it(running: app.App) -> None:
    worker = Worker.options(max_executors=1).remote()
    child = worker.spawn_child.remote().result()
    assert alive(child)
    with pytest.raises(app.ExecutorLost):
        worker.die.options(retries=0).remote().result()
    until(lambda: not alive(child))


def test_an_idle_executors_death_is_noticed(running: app.App) -> None:
    worker = Worker.options(warmup=1).remote()
    victim = worker.pid.remote().result()
    os.kill(victim, signal.SIGKILL)
    assert worker.pid.remote().result() != victim


@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_constructor_may_fail_four_times(running: app.App, tmp_path: Path, how: str) -> None:
    session = Broken.remote(str(tmp_path / "marker"), 4, how)
    assert session.ping.remote().result() == "pong"


def test_a_constructor_that_fails_five_times_fails_the_calls(
    running: app.App, tmp_path: Path, events: Events
) -> None:
    marker = tmp_path / "marker"
    session = Broken.remote(str(marker), 99)
    calls = [session.ping.remote() for _ in range(3)]
    for call in calls:
        with pytest.raises(UserError, match="code 5: constructor") as caught:
            call.result()
        assert "in __init__" in str(caught.value.__cause__)
    with pytest.raises(UserError):
        session.ping.remote().result()
    assert len(events("constructor_failed")) >= 5
    assert len(executors(running, session)) == 0 or until(
        lambda: len(executors(running, session)) == 0
    )


def test_a_constructor_that_dies_five_times_fails_the_calls(
    running: app.App, tmp_path: Path
) -> None:
    session = Broken.options(max_executors=1).remote(str(tmp_path / "marker"), 99, "die")
    with pytest.raises(app.ExecutorLost, match="exit code 9"):
        session.ping.remote().result()


def test_a_closed_session_drains_and_takes_no_more(running: app.App, tmp_path: Path) -> None:
    worker = Worker.options(max_executors=1).remote()
    gate = tmp_path / "gate"
    pid = worker.pid.remote().result()
    calls = [worker.wait_for.remote(str(gate)), worker.add.remote()]
    with pytest.raises(TimeoutError, match="still has calls"):
        worker.close(timeout=0.1)
    with pytest.raises(app.SessionClosed, match="session Worker is closed"):
        worker.add.remote().result()
    gate.touch()
    worker.close()
    assert calls[1].result() == 1
    assert not alive(pid)
    worker.close()
    with pytest.raises(app.SessionClosed):
        worker.add.remote().result()
    with Worker.remote() as other:
        assert other.add.remote().result() == 1


def test_executors_log_to_the_run_directory(running: app.App, run_dir: Path) -> None:
    worker = Worker.remote()
    with pytest.raises(app.ExecutorLost):
        worker.die.options(retries=0).remote().result()
    logs = list((run_dir / "logs").iterdir())
    assert any("last words" in log.read_text() for log in logs)
