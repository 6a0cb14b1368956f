"""The one thread that owns the state of an app.

Nothing in it is locked: other threads post actions, the engine delivers events, timers fire, and
at the end of a round the owner may tidy up. If it fails, that is told to everybody who waits.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from forage.app.engines.base import Engine
from forage.app.errors import AppError

T = TypeVar("T")

_PULSE_S = 1.0  # the longest time between two rounds


class Loop(ABC):
    """Rounds of events, actions and timers, in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: deque[Callable[[], None]] = deque()
        self._rung = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = itertools.count()
        self._running = True
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="forage-controller", daemon=True)

    # From any thread

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` in the loop's thread; takes no lock, so even a finalizer may call it."""
        self._inbox.append(action)
        if not self._rung:
            self._rung = True
            self.engine.wake()

    def ask(self, question: Callable[[], T]) -> T:
        """Run `question` in the loop's thread and return or raise what it does."""
        if threading.current_thread() is self._thread:  # a callback of a future
            return question()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # belongs to the one who asked
                answer.set_exception(error)

        self.post(run)
        while not answer.done():
            if not self._thread.is_alive():
                raise AppError("the app has ended", why=str(self._fault or ""))
            wait((answer,), _PULSE_S)
        return answer.result()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the engine with it."""
        self.post(self._end)
        self._thread.join()

    # In the loop's thread

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` later."""
        entry = (time.monotonic() + seconds, next(self._timer_ids), action)
        heapq.heappush(self._timers, entry)

    @abstractmethod
    def receive(self, serial: int, message: Any) -> None:
        """An event of the engine."""

    @abstractmethod
    def finish_round(self) -> bool:
        """End a round; True asks for another one at once."""

    @abstractmethod
    def fail_all(self, error: AppError) -> None:
        """Tell everybody who waits that nothing more will come."""

    def _end(self) -> None:
        self._running = False

    def _main(self) -> None:
        again = False
        try:
            while self._running:
                for serial, message in self.engine.poll(0.0 if again else self._patience()):
                    self.receive(serial, message)
                self._rung = False
                while self._inbox:
                    self._inbox.popleft()()
                while self._timers and self._timers[0][0] <= time.monotonic():
                    heapq.heappop(self._timers)[2]()
                again = self.finish_round()
        except BaseException as error:  # a fault of ours: nobody may wait for ever
            self._fault = error
            self.fail_all(AppError("the runtime failed", why=f"{type(error).__name__}: {error}"))
            raise
        finally:
            self.engine.close()

    def _patience(self) -> float:
        if self._inbox:
            return 0.0
        if not self._timers:
            return _PULSE_S
        return min(_PULSE_S, max(0.0, self._timers[0][0] - time.monotonic()))
