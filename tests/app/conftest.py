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

# Of the contract on Ray `make test` runs one test of each kind, `make test-slow` all: every test
# there starts an app and its executors anew, which takes seconds.
QUICK_ON_RAY = frozenset(
    [
        "test_a_lost_executors_calls_run_again_elsewhere",
        "test_a_lost_member_breaks_the_gang_until_it_is_reformed",
        "test_a_timeout_while_running_ends_the_executor",
        "test_an_exception_arrives_with_its_type_and_remote_traceback",
        "test_code_of_main_travels_by_value",
        "test_concurrency_runs_async_methods_on_a_loop",
        "test_executors_log_to_the_run_directory",
        "test_executors_see_their_gpus_and_threads",
        "test_functions_run_in_executors",
        "test_futures_arrive_as_values",
        "test_gang_members_get_distinct_gpus",
        "test_idle_executors_above_warmup_are_released",
        "test_large_values_are_freed_when_nobody_holds_them",
        "test_memory_is_enforced_where_given",
        "test_ranks_and_their_context",
        "test_refs_arrive_as_refs",
        "test_too_deep_a_recursion_is_a_deadlock",
        "test_unpicklable_values_are_named",
        "test_what_an_executor_put_survives_it",
    ]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        on_ray = parameters is not None and parameters.params.get("engine") == "ray"
        if on_ray and item.originalname not in QUICK_ON_RAY:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine's name; apps on Ray join the tests' cluster, in this process and in scripts."""
    if request.param == "ray":
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("ray_address"))
    return str(request.param)


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
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
def start(engine: str, run_dir: Path) -> Iterator[Callable[..., app.App]]:
    """Starts the app of a test, with 8 CPUs whatever the machine has; it ends with the test."""

    def start_app(resources: str = "cpu=8,gpu=0", **options: Any) -> app.App:
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
