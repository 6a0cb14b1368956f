"""How an app ends: drained, cancelled, or with its driver killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from app_probes import alive, until
from app_services import Caller, Rank, Worker

from forage import app

DRIVER = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    from app_services import Rank, Worker
    from forage import app

    folder = Path(sys.argv[1])
    running = app.init("doomed", engine={engine!r}, resources="cpu=8", run_dir=folder / "run")
    worker = Worker.options(warmup=2).remote()
    gang = Rank.options(autoscale=False, warmup=2).remote()
    pids = gang.pid.broadcast().result() + [worker.spawn_child.remote().result()]
    pids += [f.result() for f in [worker.sleep.remote(0.2) for _ in range(3)]]
    app.put(np.ones(1_000_000), "kept")
    (folder / "cache").write_text(":".join(map(str, running.directory.places.folders)))
    (folder / "pids").write_text(" ".join(map(str, {{*pids}})))
    calls = [worker.sleep.remote(30) for _ in range(4)]
    (folder / "ready").touch()
    {end}
"""


def shared_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("forage-")}


def start_driver(folder: Path, engine: str, end: str) -> subprocess.Popen[str]:
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(DRIVER.format(engine=engine, end=end)))
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )


def marked(token_file: Path) -> list[int]:
    return [int(pid) for pid in token_file.read_text().split() if alive(int(pid))]


def test_shutdown_drains_all_sessions_together(engine: str) -> None:
    with app.init("drain", engine=engine, resources="cpu=4"):
        caller, worker = Caller.options(warmup=1).remote(), Worker.options(warmup=1).remote()
        calls = [caller.call.remote(worker, "sleep", 0.1) for _ in range(4)]
        gang = Rank.options(autoscale=False, warmup=2).remote()
        later = gang.add.broadcast(1)
    assert all(call.result() > 0 for call in calls)
    assert later.result() == [(0, 1), (1, 1)]
    assert not any(alive(call.result()) for call in calls)


def test_shutdown_drains_a_gang_that_waits_for_one_that_is_done(engine: str) -> None:
    with app.init("drain", engine=engine, resources="cpu=2"):
        first = Rank.options(autoscale=False, warmup=2).remote()
        second = Rank.options(autoscale=False, warmup=2).remote()
        first.add.broadcast(1)
        later = second.add.broadcast(1)
    assert later.result() == [(0, 1), (1, 1)]


def test_an_exception_cancels(engine: str) -> None:
    calls, pids = [], []

    def fail_in(running: app.App) -> None:
        with running:
            worker = Worker.options(max_executors=1).remote()
            pids.append(worker.pid.remote().result())
            calls.extend(worker.sleep.remote(60) for _ in range(3))
            raise ZeroDivisionError

    cancelled = app.init("cancel", engine=engine, resources="cpu=4")
    with pytest.raises(ZeroDivisionError):
        fail_in(cancelled)
    for call in calls:
        with pytest.raises(app.SessionClosed, match="app 'cancel' has ended"):
            call.result(timeout=1)
    assert not alive(pids[0])
    assert not any(folder.exists() for folder in cancelled.directory.places.folders)
    assert not cancelled.run_dir.exists()
    with pytest.raises(app.AppError, match="no app is running"):
        Worker.remote()


def test_an_app_can_follow_another(engine: str) -> None:
    for start in (1, 2):
        with app.init("again", engine=engine, resources="cpu=2"):
            session, ref = Worker.remote(start), app.put(start)
            assert session.add.remote().result() == start + 1
    with app.init("again", engine=engine, resources="cpu=2"):
        with pytest.raises(ValueError, match="belongs to app"):
            app.get(ref)
        with pytest.raises(app.SessionClosed):
            session.add.remote().result()


def test_init_without_a_block(engine: str) -> None:
    app.init("plain", engine=engine, resources="cpu=2")
    future = Worker.remote().add.remote()
    app.shutdown()
    assert future.result() == 1
    app.shutdown()


def test_at_exit_the_app_drains(engine: str, run_script: Callable[..., str]) -> None:
    output = run_script(
        f"""
        from app_services import echo
        from forage import app
        app.init("exit", engine={engine!r}, resources="cpu=2")
        echo.remote(1).add_done_callback(lambda future: print("ended with", future.result()))
        print("script is over")
        """
    )
    assert output.splitlines() == ["script is over", "ended with 1"]


def test_at_exit_after_an_exception_the_app_cancels(
    engine: str, run_script: Callable[..., str]
) -> None:
    began = time.monotonic()
    run_script(
        f"""
        from app_services import Worker
        from forage import app
        app.init("exit", engine={engine!r}, resources="cpu=2")
        Worker.remote().sleep.remote(300)
        raise SystemError
        """,
        code=1,
    )
    assert time.monotonic() - began < 60


def test_executors_do_not_run_the_script_again(running: app.App) -> None:
    assert Path(Worker.remote().main_file.remote().result() or "").name != "script.py"


@pytest.mark.parametrize("end", ["time.sleep(60)", "worker.close()", "[c.result() for c in calls]"])
def test_ctrl_c_ends_within_seconds(engine: str, tmp_path: Path, end: str) -> None:
    driver = start_driver(tmp_path, engine, f"with running: {end}")
    until(lambda: (tmp_path / "ready").exists(), 60)
    time.sleep(0.3)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    until(lambda: not marked(tmp_path / "pids"))


def test_nothing_survives_the_drivers_death(engine: str, tmp_path: Path) -> None:
    driver = start_driver(tmp_path, engine, "time.sleep(60)")
    until(lambda: (tmp_path / "ready").exists(), 60)
    cache = [Path(line) for line in (tmp_path / "cache").read_text().split(":") if line]
    assert len(marked(tmp_path / "pids")) >= 4
    assert any(list(folder.iterdir()) for folder in cache) or engine == "ray"
    driver.kill()
    driver.communicate()
    until(lambda: not marked(tmp_path / "pids"))
    until(lambda: not any(folder.exists() for folder in cache))


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(30))
def test_nothing_survives_the_drivers_death_at_any_moment(
    engine: str, tmp_path: Path, round_: int
) -> None:
    before = shared_files()
    driver = start_driver(tmp_path, engine, "time.sleep(60)")
    time.sleep(random.Random(round_).uniform(0.05, 3.0))
    driver.kill()
    driver.communicate()
    until(lambda: shared_files() <= before)
    until(lambda: not descendants(str(tmp_path)))


def descendants(folder: str) -> list[str]:
    """Processes that still mention a driver's folder in their command or files."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().decode()
                output = os.readlink(f"/proc/{entry}/fd/1")
            except OSError:
                continue
            if folder in command or folder in output:
                found.append(command)
    return found
