"""Non-blocking sockets under a selector: a bell that ends its wait, and what is yet to be sent."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from contextlib import suppress


class Bell:
    """Makes a selector's `select` return, from any thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.heard, self._rope = socket.socketpair()
        """What `select` reports once it has been rung."""
        self.heard.setblocking(False)
        self._rope.setblocking(False)
        selector.register(self.heard, selectors.EVENT_READ)

    def ring(self) -> None:
        """Ring; a full buffer means that it rings already."""
        with suppress(BlockingIOError, OSError):
            self._rope.send(b"\0")

    def hush(self) -> None:
        """Forget how often it was rung."""
        with suppress(BlockingIOError):
            self.heard.recv(4096)

    def close(self) -> None:
        """Take it down."""
        self.heard.close()
        self._rope.close()


class Outbox:
    """What is yet to be sent through a socket that the selector watches for reading."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self._sock = sock
        self._selector = selector
        self._unsent: deque[memoryview] = deque()
        self._stuck = False  # the selector waits until the socket takes more

    def send(self, data: bytes) -> None:
        """Send now what the socket takes, the rest when it can; never blocks."""
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what the socket takes. Of a dying one the end is noticed where it is read."""
        unsent = self._unsent
        try:
            while unsent:
                sent = self._sock.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()
        if self._stuck != bool(unsent):
            self._stuck = bool(unsent)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            self._selector.modify(self._sock, wanted, self._selector.get_key(self._sock).data)
