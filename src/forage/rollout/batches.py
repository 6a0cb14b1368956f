"""How calls reach the engine: one after the other, or all in one running batch.

Both take calls from several threads. `submit` returns at once where calls share a batch; `change`
has the engine to itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from forage.rollout.collect import Collector, Work
from forage.rollout.engine import Engine


class Batches(Protocol):
    """Where a call brings its samples."""

    engine: Engine

    def submit(self, work: Sequence[Work]) -> Future[None]:
        """Take samples to their ends; the future is done when all have ended."""

    def change(self, apply: Callable[[], None]) -> float:
        """Call `apply` while no sample is running; returns the seconds that it took.

        Samples submitted before end before it, those submitted later start after it.
        """


class OneByOne:
    """Every call has the engine to itself, in its own thread: the reproducible way."""

    def __init__(self, make: Callable[[], Collector]) -> None:
        """`make` a collector for each call; they share their engine."""
        self._make = make
        self.engine = make().engine

    def submit(self, work: Sequence[Work]) -> Future[None]:
        """See `Batches.submit`; all have ended when it returns."""
        done: Future[None] = Future()
        self._make().run(work)
        done.set_result(None)
        return done

    def change(self, apply: Callable[[], None]) -> float:
        """See `Batches.change`."""
        started = time.perf_counter()
        apply()
        return time.perf_counter() - started


class Shared:
    """All calls run in one batch, which a thread of its own makes and drives.

    A failure of the engine fails the calls in flight and all later ones.
    """

    def __init__(self, make: Callable[[], Collector]) -> None:
        """`make` the collector, and its engine, in the thread that will use it.

        Raises:
            Exception: whatever `make` raised.
        """
        self._inbox: deque[tuple[Sequence[Work] | Callable[[], None], Future[None]]] = deque()
        self._came = threading.Condition()
        self._open: set[Future[None]] = set()
        self._failed: BaseException | None = None
        made: Future[Collector] = Future()
        threading.Thread(
            target=self._drive, args=(make, made), name="generation", daemon=True
        ).start()
        self.engine = made.result().engine

    def submit(self, work: Sequence[Work]) -> Future[None]:
        """See `Batches.submit`."""
        return self._bring(work)

    def change(self, apply: Callable[[], None]) -> float:
        """See `Batches.change`; waits for the samples submitted before."""
        took = 0.0

        def timed() -> None:
            nonlocal took
            started = time.perf_counter()
            apply()
            took = time.perf_counter() - started

        self._bring(timed).result()
        return took

    def _bring(self, what: Sequence[Work] | Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        with self._came:
            if self._failed is not None:
                raise self._failed
            self._open.add(done)
            self._inbox.append((what, done))
            self._came.notify()
        return done

    def _drive(self, make: Callable[[], Collector], made: Future[Collector]) -> None:
        try:
            collector = make()
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(collector)
        try:
            while True:
                self._take_in(collector)
                collector.advance()
        except BaseException as error:
            self._fail(error)

    def _take_in(self, collector: Collector) -> None:
        """Whatever came in its order; a change waits for all before it, and holds up the rest."""
        while True:
            with self._came:
                while not self._inbox and not collector.busy:
                    self._came.wait()
                if not self._inbox or (callable(self._inbox[0][0]) and collector.busy):
                    return
                what, done = self._inbox.popleft()
            if callable(what):
                self._change(what, done)
            elif what:
                collector.add(self._counted(what, done))
            else:
                self._settle(done, None)

    def _change(self, apply: Callable[[], None], done: Future[None]) -> None:
        try:
            apply()
        except Exception as error:  # the caller's to handle: the batch goes on
            self._settle(done, error)
        else:
            self._settle(done, None)

    def _counted(self, work: Sequence[Work], done: Future[None]) -> list[Work]:
        """`work` that settles `done` when the last of it has ended."""
        left = len(work)

        def ended() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._settle(done, None)

        return [replace(each, ended=ended) for each in work]

    def _settle(self, done: Future[None], error: BaseException | None) -> None:
        with self._came:
            self._open.discard(done)
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        with self._came:
            self._failed = error
            waiting, self._open = self._open, set()
        for done in waiting:
            done.set_exception(error)
