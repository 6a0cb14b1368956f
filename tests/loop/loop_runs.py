"""Real training runs in processes of their own, small enough for a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forage.loop.files import read_json
from forage.loop.metrics import WALL_TIMES
from forage.loop.rundir import RunDir
from forage.loop.store import read_trajectories

HERE = Path(__file__).parent
DEADLINE_S = 240

SMALL = {
    "data": "atlas",
    "prompt": "plain",
    "reward": "loop_rewards:arbitrary",
    "heldout": 6,
    "steps": 4,
    "prompts_per_step": 4,
    "prompts_per_task": 2,
    "group_size": 3,
    "top_k": 1,
    "max_searches": 1,
    "max_turn_tokens": 12,
    "max_tokens": 64,
    "learning_rate": 1e-4,
    "eval_every": 2,
    "checkpoint_every": 2,
    "max_rollouts": 1,
    "resources": "cpu=4,mem=8g",
}


class Run:
    """One `forage train`, whose processes carry a mark that tells them from all others."""

    def __init__(self, out: Path, *words: str, **changes: object) -> None:
        self.dir = RunDir(out)
        self.mark = uuid.uuid4().hex
        flags = [
            word
            for key, value in {**SMALL, **changes, "out": os.path.relpath(out, HERE)}.items()
            for word in (f"--{key.replace('_', '-')}", str(value))
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forage.cli", "train", *flags, *words],
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FORAGE_TEST_MARK": self.mark, "OMP_NUM_THREADS": "1"},
        )

    def finish(self) -> str:
        """Wait for a good end; returns what was printed."""
        try:
            out, errors = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert self.process.returncode == 0, errors
        return out

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait while the run goes on."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def wait_until_still(self) -> None:
        """Wait until the run records nothing new: it waits for an executor that was stopped."""
        seen = -1
        while seen != (seen := len(self.metrics)):
            assert self.process.poll() is None
            time.sleep(2)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End the driver with a signal; returns its exit code once nothing of the run is left."""
        folders = [path.name for path in self.dir.path.glob("forage-*")]
        self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_S)
        assert folders, "the object cache has no folder in the run directory"
        shared = [root / name for name in folders for root in (self.dir.path, Path("/dev/shm"))]
        deadline = time.monotonic() + 30
        while left := [*self.processes(), *filter(Path.exists, shared)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        return self.process.returncode

    def processes(self) -> dict[int, str]:
        """Processes of this run that live, by id, with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
            except (OSError, ValueError):
                continue
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The steps recorded so far."""
        return read_json(self.dir.metrics)


def lasting(run: RunDir) -> dict[str, Any]:
    """All of a run that doesn't depend on the clock, for comparison."""
    aside = WALL_TIMES | {"published_bytes", "calls_retried"}
    metrics = [
        {key: value for key, value in record.items() if key not in aside}
        for record in read_json(run.metrics)
    ]
    samples = {
        path.name: [record | {"search_ms": None} for record in read_trajectories(path)]
        for path in sorted(run.trajectories.iterdir())
    }
    newest = json.loads(run.newest.read_text())
    folder = run.path / newest["checkpoint"]
    weights = {
        name: (folder / name).read_bytes()
        for name in ("policy/model.safetensors", "masters.safetensors")
    }
    return {
        "metrics": metrics,
        "evals": read_json(run.evals),
        "samples": samples,
        "newest": newest,
        "weights": weights,
    }
