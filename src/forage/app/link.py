"""The runtime inside an executor: everything goes to the driver over one socket."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from forage.app import failures
from forage.app.cache.client import Client
from forage.app.cache.storage import Places
from forage.app.errors import AppError
from forage.app.futures import CallFuture
from forage.app.ledger import writer_name
from forage.app.services import Service
from forage.app.waits import Waits
from forage.app.wire import (
    Answer,
    Ask,
    Drop,
    Failure,
    Fills,
    Settled,
    Stuck,
    Submission,
    Submit,
    Supply,
    frame,
)

_CALLS_PER_PROCESS = 1 << 40


class Link:
    """See `forage.app.runtime.Runtime`."""

    def __init__(self, sock: socket.socket, serial: int, places: Places) -> None:
        self.name = places.app
        self.cache = Client(places.open(writer_name(serial)), self._ask)
        self.waits = Waits(lambda stuck: self.send(Stuck(stuck)))
        self.expects_messages: Callable[[], None] = lambda: None
        """Called where one is awaited from now on."""
        self._sock = sock
        self._sending = threading.Lock()
        self._call_numbers = itertools.count(serial * _CALLS_PER_PROCESS)
        self._requests = itertools.count()
        self._answers: dict[int, concurrent.futures.Future[Any]] = {}
        self._futures: dict[int, CallFuture[Any]] = {}
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._send_drops, name="forage-drops", daemon=True).start()

    def send(self, message: Any) -> None:
        """Send to the driver; from any thread."""
        data = frame(message)
        try:
            with self._sending:
                self._sock.sendall(data)
        except OSError:
            end_process_group()

    @property
    def awaits_messages(self) -> bool:
        """Whether an answer or the end of a call is still to come."""
        return bool(self._answers or self._futures)

    def receive(self, message: Answer | Settled) -> None:
        """Take what the driver sends to this runtime; in the thread that reads."""
        if isinstance(message, Answer):
            answer = self._answers.pop(message.request)
            if message.failure is None:
                answer.set_result(message.value)
            else:
                answer.set_exception(failures.decode(message.failure))
        else:
            future = self._futures.pop(message.call, None)
            if future is not None:
                future.settle(message.outcome)

    # Runtime

    def new_call(self) -> int:
        """Numbers carry the executor's serial, so that no two processes give the same one."""
        return next(self._call_numbers)

    def submit(self, submission: Submission, future: CallFuture[Any]) -> None:
        """Send the call."""
        self._futures[submission.call] = future
        self.expects_messages()
        self.send(Submit(submission))

    def supply(self, call: int, fills: Fills | Failure) -> None:
        """Send the values."""
        self.send(Supply(call, fills))

    def cancel(self, future: CallFuture[Any]) -> bool:
        """The driver knows whether the call has begun."""
        if future.done() or not self._ask("cancel", future.call):
            return False
        self._futures.pop(future.call, None)
        return future.mark_cancelled()

    def drop(self, call: int) -> None:
        """Leave it to a thread: this may run in a finalizer, where no lock may be taken."""
        self._dropped.put(call)

    def waiting(
        self, futures: Sequence[concurrent.futures.Future[Any]]
    ) -> AbstractContextManager[object]:
        """Note that this thread waits, for the deadlock check."""
        return self.waits.entered(futures)

    def open(self, service: Service[Any], args: Any, kwargs: Any) -> NoReturn:
        """Sessions are the driver's to open."""
        raise AppError(
            f"can't open a session of {service.name} in an executor",
            remedy="open it in the driver and pass the session as an argument",
        )

    def function_session(self, service: Service[Any]) -> str:
        """The session that the driver has opened for this function."""
        return str(self._ask("function_session", service.key))

    def close_session(self, session: str, timeout: float | None) -> None:
        """Ask the driver, and wait."""
        self._ask("close", session, timeout=timeout)

    def reform(self, session: str) -> None:
        """Ask the driver."""
        self._ask("reform", session)

    def _send_drops(self) -> None:
        while True:
            self.send(Drop(self._dropped.get()))

    def _ask(self, op: str, *args: Any, timeout: float | None = None) -> Any:
        request = next(self._requests)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._answers[request] = answer
        self.expects_messages()
        self.send(Ask(request, op, args))
        return answer.result(timeout)


def end_process_group() -> NoReturn:
    """The driver is gone: end this executor and all that it has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
