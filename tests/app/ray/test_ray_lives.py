"""Apps on a cluster come and go without a trace; what their users do wrong is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_probes import alive, until
from ray_services import Worker

from forage import app

PROJECT = '[project]\nname = "sample"\nversion = "0"\ndependencies = {dependencies}\n'


def write_project(folder: Path, script: str, dependencies: str = "[]") -> Path:
    (folder / "pyproject.toml").write_text(PROJECT.format(dependencies=dependencies))
    program = folder / "program.py"
    program.write_text(textwrap.dedent(script))
    return program


def run(program: Path, *arguments: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=program.parent,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def test_nothing_survives_the_drivers_death(cluster: Any, tmp_path: Path) -> None:
    program = write_project(
        tmp_path,
        """
        import os, subprocess, sys, time
        from forage import app

        @app.service
        class Parent:
            def family(self):
                child = subprocess.Popen(["sleep", "600"], start_new_session=True)
                return os.getpid(), child.pid

        running = app.init("doomed", engine="ray", address=sys.argv[1])
        executor, child = Parent.remote().family.remote().result()
        print(executor, child, running.run_dir, flush=True)
        time.sleep(600)
        """,
    )
    driver = subprocess.Popen(
        [sys.executable, str(program), cluster.head_node.address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert driver.stdout is not None
    executor, child, run_dir = driver.stdout.readline().split()
    assert alive(int(executor))
    assert alive(int(child))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    until(lambda: not alive(int(executor)) and not alive(int(child)), 30)
    until(lambda: not os.path.exists(run_dir), 30)


def test_changed_code_is_never_stale(cluster: Any, tmp_path: Path) -> None:
    """A module in a `src/` layout that isn't installed, and changes between two runs."""
    program = write_project(
        tmp_path,
        """
        import sys
        from pathlib import Path
        sys.path.insert(0, str(Path(__file__).parent / "src"))
        from forage import app
        from sample.answers import answer

        @app.service
        def ask():
            return answer()

        if __name__ == "__main__":
            with app.init("fresh", engine="ray", address=sys.argv[1]):
                print("answer", ask.remote().result())
        """,
    )
    module = tmp_path / "src" / "sample" / "answers.py"
    module.parent.mkdir(parents=True)
    for answer in ("first", "second"):
        module.write_text(f"def answer():\n    return {answer!r}\n")
        assert f"answer {answer}" in run(program, cluster.head_node.address)


def test_missing_dependencies_are_named(cluster: Any, tmp_path: Path) -> None:
    program = write_project(
        tmp_path,
        """
        import sys
        from forage import app

        @app.service
        def ask():
            return 1

        with app.init("lacking", engine="ray", address=sys.argv[1]):
            try:
                ask.remote().result()
            except app.AppError as error:
                print(error)
        """,
        dependencies='["numpy>=1", "no-such-package>=3", "cloudpickle<1"]',
    )
    said = run(program, cluster.head_node.address)
    assert "lacks no-such-package>=3, cloudpickle<1 (it has" in said
    assert "install=True" in said


def test_a_program_without_a_project_runs_embedded_only(cluster: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            from forage import app

            engine, address = sys.argv[1:]
            try:
                app.init("bare", engine=engine, address=address or None).close()
                print("fine")
            except app.AppError as error:
                print(error)
            """
        )
    )
    assert run(program, "local", "") == "fine\n"
    assert "no pyproject.toml" in run(program, "ray", cluster.head_node.address)


@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        ("127.0.0.1:1", app.AppError, "no Ray cluster answers at 127.0.0.1:1.*ray start --head"),
        ("ray://127.0.0.1:10001", ValueError, "ray job submit"),
        ("nonsense", ValueError, "'auto' or the host:port"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        app.init("lost", engine="ray", address=address)


def test_a_running_cluster_has_a_store_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"cache=1g.*leave cache out"):
        app.init("lost", engine="ray", address="127.0.0.1:1", cache="1g")


def test_an_address_is_for_ray_only() -> None:
    with pytest.raises(ValueError, match="is for engine='ray'"):
        app.init("lost", engine="local", address="auto")


def test_a_process_that_uses_ray_already_keeps_it(cluster: Any) -> None:
    import ray

    ray.init(address=cluster.head_node.address, log_to_driver=False)
    with pytest.raises(app.AppError, match="uses Ray already"):
        app.init("second", engine="ray")
    assert ray.is_initialized()
    ray.shutdown()


def test_one_process_runs_apps_one_after_the_other(start: Callable[..., app.App]) -> None:
    """Each leaves the cluster; of its files nothing is left but a socket of Ray for each actor."""
    open_files = []
    for _ in range(3):
        running = start()
        assert Worker.options(resreq="cpu=0.1").remote().pid.remote().result(60)
        running.close()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[2] <= open_files[1] + 1


@pytest.mark.slow
def test_a_cluster_of_its_own_ends_with_the_driver(tmp_path: Path) -> None:
    program = write_project(
        tmp_path,
        """
        import os, time, subprocess
        from forage import app

        app.init("own", engine="ray", resources="cpu=1")
        mine = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())],
                              capture_output=True, text=True).stdout.split()
        print(*mine, flush=True)
        time.sleep(600)
        """,
    )
    driver = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert driver.stdout is not None
    processes = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(processes) > 2
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    until(lambda: not any(alive(pid) for pid in processes), 60)
