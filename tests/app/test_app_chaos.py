"""Executors die at random; every call ends exactly once, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
from app_probes import alive, until
from app_services import Caller, Worker

from forage import app


class Killer:
    """Kills random executors, `kills` of them.

    Constructed ones: five deaths in a row before that are the session's end by contract.
    """

    def __init__(self, running: app.App, seed: int, kills: int) -> None:
        self.killed: list[int] = []
        self._running = running
        self._random = random.Random(seed)
        self._kills = kills
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while len(self.killed) < self._kills:
            if self._over.wait(self._random.uniform(0.02, 0.3)):
                return
            pids = [
                executor["pid"]
                for session in self._running.status()["sessions"]
                for executor in session["executors"]
                if executor["phase"] in ("idle", "busy")
            ]
            if pids:
                victim = self._random.choice(pids)
                self.killed.append(victim)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_call_ends_once_while_executors_are_killed(
    start: Callable[..., app.App], seed: int
) -> None:
    running = start("cpu=6")
    worker = Worker.options(warmup=2, max_executors=3, retries=50).remote()
    caller = Caller.options(max_executors=2, retries=50).remote()
    ended: list[int] = []
    array = np.ones(50_000)
    with Killer(running, seed, 25) as killer:
        futures = []
        for number in range(500):
            if number % 50 == 0:  # kills go on while calls come
                until(lambda number=number: len(killer.killed) >= number // 25)
                future = caller.call.remote(worker, "double", array)
            elif number % 10 == 0:
                future = worker.double.remote(array)
            else:
                future = worker.echo.remote(number)
            future.add_done_callback(lambda _, number=number: ended.append(number))
            futures.append(future)
        for number, future in enumerate(futures):
            result = future.result(timeout=120)
            if number % 10 == 0:
                assert float(result.sum()) == 100_000
            else:
                assert result == number
            del result
    assert sorted(ended) == list(range(500))
    assert len(killer.killed) >= 18
    del future
    futures.clear()
    until(lambda: running.status()["cache"]["objects"] == 0)
    until(lambda: not any(map(alive, killer.killed)))
