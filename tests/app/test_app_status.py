"""What an app tells about itself: status, events, warnings."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_probes import until
from app_services import Rank, Worker

from forage import app
from forage.app import fleet


def test_status_is_plain_data_about_sessions_and_resources(
    start: Callable[..., app.App], tmp_path: Path
) -> None:
    start("cpu=4,mem=1g,gpu=0")
    worker = Worker.options(resreq="cpu=2", warmup=1).remote()
    gate = tmp_path / "gate"
    running = worker.wait_for.remote(str(gate))
    until(running.running)
    queued = worker.wait_for.remote(str(gate))
    status = json.loads(json.dumps(app.status()))
    assert status["app"] == "contract"
    assert status["total"] == "cpu=4,mem=1g"
    (session,) = status["sessions"]
    assert (session["session"], session["kind"], session["state"]) == ("Worker", "elastic", "open")
    assert session["running"] == 1
    assert session["executors"][0]["calls"] == ["Worker.wait_for"]
    assert session["executors"][0]["phase"] == "busy"
    gate.touch()
    app.wait([running, queued])
    until(lambda: app.status()["sessions"][0]["running"] == 0)


def test_events_tell_an_executors_life(
    running: app.App, events: Callable[[str], list[dict[str, Any]]]
) -> None:
    worker = Worker.options(warmup=1).remote()
    pid = worker.pid.remote().result()
    worker.close()
    (opened,) = events("session_opened")
    (started,) = events("executor_started")
    (ready,) = events("executor_ready")
    (released,) = events("executor_released")
    (closed,) = events("session_closed")
    assert opened["session"] == closed["session"] == worker.id
    assert started["executor"] == ready["executor"] == released["executor"]
    times = [event["time"] for event in (opened, started, ready, released, closed)]
    assert times == sorted(times)
    assert pid > 0


def test_who_waits_for_resources_is_logged_with_who_holds_them(
    start: Callable[..., app.App],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fleet, "_WARN_S", 0.2)
    start("cpu=2")
    holder = Worker.options(warmup=2).remote()
    waiter = Rank.options(autoscale=False, warmup=2).remote()
    with caplog.at_level(logging.WARNING, "forage.app"):
        until(lambda: caplog.messages)
    (message,) = caplog.messages
    assert message == (
        f"session {waiter.id} waits for 2 executors of cpu=1; resources are held by {holder.id}"
    )
    assert app.status()["waiting"] == [waiter.id]


def test_a_run_directory_is_kept_and_a_temporary_one_is_not(engine: str, tmp_path: Path) -> None:
    with app.init("kept", engine=engine, resources="cpu=1", run_dir=tmp_path / "run"):
        pass
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"events.jsonl", "logs"}
    with app.init("gone", engine=engine, resources="cpu=1") as temporary:
        assert temporary.run_dir.stat().st_mode & 0o077 == 0
    assert not temporary.run_dir.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_the_runtime_reaches_everybody(running: app.App) -> None:
    """A fault in the controller must not leave anybody waiting."""
    worker = Worker.remote()
    future = worker.sleep.remote(60)
    until(future.running)

    def fail() -> None:
        raise RuntimeError("a fault")

    running._controller.post(fail)
    with pytest.raises(app.AppError, match="the runtime failed: RuntimeError: a fault"):
        future.result(timeout=10)
    running._controller._thread.join()
    with pytest.raises(app.AppError, match="the app has ended: a fault"):
        app.status()
