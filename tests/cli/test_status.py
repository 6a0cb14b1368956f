"""`forage status`: what another process sees of a running app."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forage import app


class Worker:
    """Waits for a file, so that a test decides when its call ends."""

    def wait_for(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of an app with a gang at work, an elastic session's queue and a blocked gang."""
    run, gate = tmp_path / "run", str(tmp_path / "gate")
    with app.init("demo", resources="cpu=4,mem=8g", run_dir=run):
        elastic = app.service(Worker).options(warmup=1, max_executors=1).remote()
        gang = app.service(Worker).options(autoscale=False, warmup=2).remote()
        blocked = app.service(Worker).options(autoscale=False, warmup=4).remote()
        calls = [elastic.wait_for.remote(gate) for _ in range(3)]
        calls.append(gang.wait_for.broadcast(gate))
        app.put(bytes(1_000_000))
        yield run
        Path(gate).touch()
        app.get(calls)
        for session in (elastic, gang, blocked):
            session.close()


def _status(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forage.cli", "status", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _until(folder: Path, *words: str, shows: Callable[[str], bool]) -> str:
    """The command's output once it shows what the app is on its way to."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = _status(folder, *words)
        if done.returncode == 0 and shows(done.stdout):
            return done.stdout
    pytest.fail(f"status never showed it: {done.stdout}{done.stderr}")


def test_shows_sessions_resources_and_cache(run: Path) -> None:
    shown = _until(run, ".", shows=lambda text: "2 busy" in text and "1 busy" in text)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0].startswith("demo in .: engine local, driver ")
    assert "free cpu=1,mem=8g of cpu=4,mem=8g" in lines
    assert any(line.startswith("cache: 1 objects, 1.0 MB of") for line in lines)
    assert "waiting for resources: Worker.3" in lines
    assert "Worker elastic open 2 1 1 busy cpu=1" in lines
    assert "Worker.2 gang open 0 1 2 busy cpu=1" in lines
    assert "Worker.3 gang open 0 0 none cpu=1" in lines


def test_lists_executors_and_their_calls(run: Path) -> None:
    shown = _until(run, "--executors", shows=lambda text: text.count("busy  ") == 5)
    lines = {re.sub(r"pid \d+", "pid", " ".join(line.split())) for line in shown.splitlines()}
    assert "Worker-1 busy pid Worker.wait_for" in lines
    assert "Worker.2-2 rank 0 busy pid Worker.2.wait_for" in lines
    assert "Worker.2-3 rank 1 busy pid Worker.2.wait_for" in lines


def test_json_is_what_the_app_says_of_itself(run: Path) -> None:
    shown = json.loads(_until(run, "--json", shows=lambda text: text.count('"busy"') == 3))
    assert {key: shown[key] for key in ("sessions", "waiting", "cache", "free")} == {
        key: app.status()[key] for key in ("sessions", "waiting", "cache", "free")
    }


def test_finds_the_newest_app_near_here(run: Path) -> None:
    assert "demo in run:" in _until(run.parent, shows=lambda text: "Worker" in text)


def test_tells_that_a_driver_is_gone(run: Path, tmp_path: Path) -> None:
    status = json.loads(_until(run, "--json", shows=lambda text: "Worker" in text))
    left = tmp_path / "left"
    left.mkdir()
    (left / "status.json").write_text(json.dumps({**status, "time": time.time() - 7230}))
    assert "silent for 2 h 0 min: its driver was killed" in _status(left, str(left)).stdout


def test_an_app_that_ended_in_order_leaves_no_status(tmp_path: Path) -> None:
    with app.init("short", run_dir=tmp_path):
        app.service(Worker).remote()
    done = _status(tmp_path, ".")
    assert done.returncode == 2
    assert (
        done.stderr
        == "forage: no app runs in .: it has no status.json, which a running app keeps\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nowhere is no folder; give the run directory of an app"),
        ("half of a", "nowhere/status.json is no status of an app"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "nowhere").mkdir()
        (tmp_path / "nowhere" / "status.json").write_text(content)
    done = _status(tmp_path, "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"forage: {message}")
    assert done.stderr.count("\n") == 1
