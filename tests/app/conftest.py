"""One fixture runs every contract test on each engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from app_probes import until

from forage import app
from forage.app import runtime


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def ray_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A small Ray cluster on this machine, one for all tests: starting one takes seconds."""
    pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    head = cluster.add_node(
        num_cpus=8, num_gpus=4, object_store_memory=200 << 20, include_dashboard=False
    )
    yield head.address
    cluster.shutdown()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def start(
    engine: str, run_dir: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., app.App]]:
    """Starts the app of a test, with 8 CPUs whatever the machine has; it ends with the test."""
    cluster = {"address": request.getfixturevalue("ray_address")} if engine == "ray" else {}

    def start_app(resources: str = "cpu=8", **options: Any) -> app.App:
        options = {**cluster, **options}
        return app.init("contract", engine=engine, resources=resources, run_dir=run_dir, **options)

    yield start_app
    if runtime.is_running():
        runtime.current().close(cancel=True)  # type: ignore[attr-defined]


@pytest.fixture
def running(start: Callable[..., app.App]) -> app.App:
    return start()


@pytest.fixture
def events(run_dir: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The events of one kind so far."""

    def read(kind: str) -> list[dict[str, Any]]:
        lines = (run_dir / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    return read


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Runs a script as a program of its own; returns what it prints."""

    def run(source: str, code: int = 0) -> str:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source))
        ended = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        assert ended.returncode == code, ended.stderr
        return ended.stdout

    return run


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an app or descriptors behind (Ray keeps some of its own: see ray/)."""
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert not runtime.is_running()
    parameters = getattr(request.node, "callspec", None)
    if "cluster" in request.fixturenames or (parameters and "ray" in parameters.params.values()):
        return
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, 5.0)
