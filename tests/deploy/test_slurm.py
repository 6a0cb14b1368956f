"""The Slurm script: with programs in Slurm's place, which run steps here, and Ray."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "train.sbatch"

SRUN = """#!/usr/bin/env bash
echo "srun $*" >>"$CALLS"
while [[ $1 != ray ]]; do shift; done
exec "$@"
"""
"""Runs a step on this machine."""

FORAGE = """#!/usr/bin/env bash
echo "forage $* (limit $(ulimit -n), token ${RAY_AUTH_TOKEN:+given})" >>"$CALLS"
ray status --address "$5" | grep -c '^ 1 node_' >>"$CALLS"
trap 'echo "forage ended by TERM" >>"$CALLS"; exit 130' TERM
for _ in $(seq "${DRIVER_STEPS:-0}"); do sleep 0.1; done
exit "${DRIVER_EXIT:-0}"
"""
"""Stands for the driver: notes how it is started, and what cluster it finds."""

RAY = """#!/usr/bin/env bash
if [[ $1 == status ]]; then
  [[ -e $CALLS.1 ]] || exit 1
  for node in "$CALLS".[0-9]; do echo " 1 node_$node"; done
  exit
fi
echo "ray $*" >>"$CALLS"
[[ -z ${RAY_FAILS:-} ]] || exit 1
[[ $* == *--head* ]] && node=1 || node=2
touch "$CALLS.$node"
trap 'rm "$CALLS.$node"; exit' TERM
while :; do sleep 0.1; done
"""
"""Stands for Ray: a node is a file for as long as its process lives."""


def _programs(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these programs are found first."""
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    calls = folder / "calls"
    calls.touch()
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CALLS": str(calls), "SLURM_NNODES": "2"}


def _run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(SCRIPT), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_syntax() -> None:
    checked = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_asks_slurm_for_what_it_offers_to_executors() -> None:
    text = SCRIPT.read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    offered = dict(re.findall(r'"\$\{(NODE_\w+):=\$?\(*(\d+)', text))
    assert (asked["nodes"], asked["ntasks-per-node"]) == ("2", "1")
    assert asked["gpus-per-node"] == offered["NODE_GPUS"] == "8"
    assert int(asked["cpus-per-task"]) >= int(offered["NODE_CPUS"]) == 80
    assert int(offered["NODE_MEMORY"]) == 640
    held = int(offered["NODE_MEMORY"]) + int(offered["NODE_OBJECT_STORE"])
    assert int(asked["mem"].removesuffix("G")) >= held + 32


def test_starts_all_nodes_then_the_driver_and_takes_its_exit_code(tmp_path: Path) -> None:
    environment = _programs(tmp_path, srun=SRUN, forage=FORAGE, ray=RAY)
    job = _run(tmp_path, {**environment, "DRIVER_EXIT": "3"}, "--steps", "5", "--out", "a b")
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 3, output
    head, head_ray, others, other_ray, driver, nodes = _calls(tmp_path)
    host = socket.gethostname().partition(".")[0]
    assert f"--ntasks 1 --nodelist {host} ray start" in head
    assert f"--ntasks 1 --exclude {host} ray start" in others
    assert "--num-cpus 80 --num-gpus 8 --memory 687194767360" in head_ray
    address = re.search(r"--address (\S+:6379)", other_ray)
    assert address is not None
    assert driver.startswith(
        f"forage train --engine ray --address {address[1]} --steps 5 --out a b"
    )
    assert "token given" in driver
    assert nodes == "2"
    assert not list(tmp_path.glob("calls.*"))  # both nodes were ended


def test_passes_the_warning_of_its_time_limit_on_to_the_driver(tmp_path: Path) -> None:
    environment = _programs(tmp_path, srun=SRUN, forage=FORAGE, ray=RAY)
    job = _run(tmp_path, {**environment, "DRIVER_STEPS": "600"})
    deadline = time.monotonic() + 60
    while not any(line == "2" for line in _calls(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 130, output
    assert _calls(tmp_path)[-1] == "forage ended by TERM"
    assert not list(tmp_path.glob("calls.*"))


def test_ends_where_ray_does_not_start(tmp_path: Path) -> None:
    environment = _programs(tmp_path, srun=SRUN, forage=FORAGE, ray=RAY)
    job = _run(tmp_path, {**environment, "RAY_FAILS": "1"})
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 1, output
    assert not any(line.startswith("forage") for line in _calls(tmp_path))


@pytest.mark.slow
def test_with_ray(tmp_path: Path) -> None:
    """Two nodes of real Ray, both on this machine."""
    pytest.importorskip("ray")
    environment = _programs(tmp_path, srun=SRUN, forage=FORAGE)
    small = {"NODE_CPUS": "1", "NODE_GPUS": "0", "NODE_MEMORY": "500000000"}
    small["NODE_OBJECT_STORE"] = "100000000"
    with socket.socket() as free:
        free.bind(("", 0))
        small["PORT"] = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # paths of sockets must be
        job = _run(tmp_path, {**environment, **small, "RAY_TMPDIR": short})
        output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    assert _calls(tmp_path)[-1] == "2"
