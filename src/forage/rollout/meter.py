"""How long an executor is busy while calls overlap."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock


class BusyMeter:
    """Counts the seconds in which at least one call was under way, each once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells the time in seconds."""
        self._clock = clock
        self._lock = Lock()
        self._inside = 0
        self._since = 0.0

    def enter(self) -> None:
        """A call begins."""
        with self._lock:
            if self._inside == 0:
                self._since = self._clock()
            self._inside += 1

    def leave(self) -> float:
        """A call ends; the busy seconds that no other call was told of."""
        with self._lock:
            self._inside -= 1
            now = self._clock()
            busy, self._since = now - self._since, now
            return busy
