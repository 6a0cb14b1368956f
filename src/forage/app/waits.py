"""Which calls of an executor wait for others, told to the driver only when it takes long.

The driver needs this to recognise deadlocks. A thread registers what it blocks on; a watcher, that
runs only while there is anything to watch, reports what has been there for a while.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from forage.app.futures import CallFuture

_LONG_S = 1.0

Stuck = tuple[tuple[int, tuple[int, ...]], ...]

running_call: ContextVar[int | None] = ContextVar("running_call", default=None)
"""The call that the current thread or task runs."""


class Waits:
    """What this executor's calls block on. `report` gets (call, calls it waits for) pairs."""

    def __init__(self, report: Callable[[Stuck], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._entries: dict[object, tuple[float, int | None, Sequence[Future[Any]]]] = {}
        self._threads: dict[int, int] = {}  # call: thread that runs it
        self._watching = False
        self._reported: Stuck = ()

    @contextmanager
    def entered(self, futures: Sequence[Future[Any]]) -> Iterator[None]:
        """The current thread blocks until one of `futures` ends."""
        token = self.add(futures)
        try:
            yield
        finally:
            self.remove(token)

    def add(self, futures: Sequence[Future[Any]]) -> object:
        """The current call waits for `futures`."""
        token = object()
        with self._lock:
            self._entries[token] = (time.monotonic(), running_call.get(), futures)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="forage-waits", daemon=True).start()
        return token

    def remove(self, token: object) -> None:
        """It does no longer."""
        with self._lock:
            self._entries.pop(token, None)

    @contextmanager
    def running(self, call: int) -> Iterator[None]:
        """The current thread runs `call`."""
        mark = running_call.set(call)
        self._threads[call] = threading.get_ident()
        try:
            yield
        finally:
            del self._threads[call]
            running_call.reset(mark)

    def _watch(self) -> None:
        while True:
            time.sleep(_LONG_S / 2)
            with self._lock:
                entries = list(self._entries.values())
                if not entries and not self._reported:
                    self._watching = False
                    return
            stuck = self._stuck(entries)
            if stuck != self._reported:
                self._reported = stuck
                self._report(stuck)

    def _stuck(self, entries: Sequence[tuple[float, int | None, Sequence[Future[Any]]]]) -> Stuck:
        waits: dict[int, set[int]] = {}
        now = time.monotonic()
        for since, call, futures in entries:
            awaited = _awaited_calls(futures)
            if awaited and now - since >= _LONG_S:
                for one in [call] if call is not None else self._calls_at_rest():
                    waits.setdefault(one, set()).update(awaited)
        return tuple(sorted((call, tuple(sorted(on))) for call, on in waits.items()))

    def _calls_at_rest(self) -> list[int]:
        """Calls whose own thread waits on a lock, as it does when threads of its own work for it.

        A thread that a user's code started can't be told apart from others; if it waits for a
        call, these are the calls that may wait for it.
        """
        frames = sys._current_frames()
        return [
            call
            for call, thread in list(self._threads.items())
            if thread in frames and frames[thread].f_code.co_filename == threading.__file__
        ]


def _awaited_calls(futures: Sequence[Future[Any]]) -> set[int]:
    """The calls one of which has to end before one of `futures` can.

    None where something else, another kind of future, may end the wait.
    """
    calls: set[int] = set()
    for future in futures:
        if future.done():
            continue
        if not isinstance(future, CallFuture):
            return set()
        held_by = [other for other in future.depends if not other.done()]
        deeper = _awaited_calls(held_by) if held_by else {future.call}
        if not deeper:
            return set()
        calls |= deeper
    return calls
