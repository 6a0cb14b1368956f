"""What an executor hears from its driver, read by whichever thread has the time.

The main thread reads while it runs no call, so that a call costs no change of threads. While it
runs one, another thread reads in its place, but only where an answer or the end of a call is
awaited: else nothing can come.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NoReturn

from forage.app.link import Link, end_process_group
from forage.app.wire import Answer, Construct, Exit, Invoke, Settled, read_message

Order = Construct | Invoke | Exit
"""What is for the main thread to do."""


class Inlet:
    """The reading side of an executor's connection."""

    def __init__(self, sock: socket.socket, stream: BinaryIO, link: Link) -> None:
        self._stream = stream
        self._link = link
        self._lock = threading.Lock()
        self._away = False  # the main thread runs a call
        self._covered = False  # the other thread reads, until it has read an order
        self._cover = threading.Semaphore(0)
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        link.expects_messages = self._expect
        _start(self._read_in_place, "forage-reader")
        _start(lambda: _watch(sock), "forage-watch")

    def next(self) -> Order:
        """The next order; only the main thread calls this."""
        if not self._covered:
            return self._read()
        order = self._orders.get()
        self._covered = False
        return order

    @contextmanager
    def away(self) -> Iterator[None]:
        """The main thread is at work and doesn't read."""
        with self._lock:
            self._away = True
            if self._link.awaits_messages:
                self._call_cover()
        try:
            yield
        finally:
            with self._lock:
                self._away = False

    def _expect(self) -> None:
        """A message is awaited: somebody has to read."""
        with self._lock:
            if self._away:
                self._call_cover()

    def _call_cover(self) -> None:
        if not self._covered:
            self._covered = True
            self._cover.release()

    def _read_in_place(self) -> None:
        while True:
            self._cover.acquire()
            self._orders.put(self._read())

    def _read(self) -> Order:
        """Read until an order comes; hand on what else does."""
        try:
            while True:
                message = read_message(self._stream)
                if not isinstance(message, Answer | Settled):
                    return message  # type: ignore[no-any-return]
                self._link.receive(message)
        except (EOFError, ConnectionError):
            end_process_group()


def _start(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


def _watch(sock: socket.socket) -> NoReturn:
    """End with the driver, also while nobody reads."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll()
    end_process_group()
