"""Every example runs, on each engine, and finds what it is meant to find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = 60

BOTH = pytest.mark.parametrize("engine", ["local", "ray"])
RAY_IS_SLOW = pytest.mark.parametrize(
    "engine", ["local", pytest.param("ray", marks=pytest.mark.slow)]
)
"""Starting Ray takes most of an example's time: one of them does for the quick tests."""


def _run(name: str, engine: str, *words: str) -> str:
    if engine == "ray":
        pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--engine", engine, *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@RAY_IS_SLOW
def test_pi(engine: str) -> None:
    shown = _run("pi", engine, "--calls=12", "--darts=100000")
    found = re.search(r"pi = ([\d.]+), off by ([\d.]+); calls by executor: (.*)", shown)
    assert found is not None
    # The seeds are fixed, so the estimate is too, whoever throws.
    assert float(found[1]) == 3.14091
    assert sum(int(share.split()[1]) for share in found[3].split(", ")) == 12


@RAY_IS_SLOW
def test_parameter_server(engine: str) -> None:
    distances = re.findall(
        r"step +(\d+): about ([\d.]+) from the truth", _run("parameter_server", engine)
    )
    assert [int(step) for step, _ in distances] == [0, 20, 40, 60, 80]
    assert float(distances[0][1]) > 3
    assert float(distances[-1][1]) < 0.05


@RAY_IS_SLOW
def test_replay_buffer(engine: str) -> None:
    shown = _run("replay_buffer", engine)
    rounds = re.findall(r"version +(\d+): (\d+) new episodes", shown)
    assert rounds == [(str(1 + 6 * count), "6") for count in range(1, 6)]
    assert "best arm: 2" in shown


@BOTH
def test_sweep(engine: str) -> None:
    shown = _run("sweep", engine)
    assert shown.count("error") == 11  # 10 settings, and the best
    assert shown.count("ridge must not be negative, and is -1.0") == 5
    assert "best: degree 7, ridge 0.01, error 0.0102" in shown


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < LINES, path.name
