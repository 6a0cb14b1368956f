"""Connections from executors on a cluster: what the driver hears, and whom it believes.

Every executor connects twice: its own process, and the witness beside it. A connection begins with
a greeting that holds the app's secret, which Ray has carried to the executor; before that nothing
is read but its few bytes, and nothing is unpickled.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

EXECUTOR, WITNESS = b"x", b"w"

_CHUNK = 1 << 16  # Python allocates as much for every read, and larger blocks cost a mapping
_GREETING = struct.Struct("<32scQ")


@dataclass(slots=True, eq=False)
class Channel:
    """One connection. Until it has greeted, `role` is empty and `head` what it has said so far."""

    sock: socket.socket
    role: bytes = b""
    serial: int = 0
    head: bytes = b""
    open: bool = True
    unsent: deque[memoryview] = field(default_factory=deque)


class News(NamedTuple):
    """`data` is what a channel said, empty at its end, None when it has just greeted."""

    channel: Channel
    data: bytes | None


class Switchboard:
    """All connections of an app. One thread calls all methods but `wake`."""

    def __init__(self, host: str) -> None:
        self._secret = secrets.token_bytes(32)
        self._server = socket.create_server((host, 0))
        self._server.setblocking(False)
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._alarm, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that executors connect to."""
        host, port = self._server.getsockname()[:2]
        return host, port

    def greeting(self, role: bytes, serial: int) -> bytes:
        """What a connection of `role` for executor `serial` has to begin with."""
        return _GREETING.pack(self._secret, role, serial)

    def poll(self, timeout: float | None) -> list[News]:
        """Wait for news."""
        news: list[News] = []
        for key, ready in self._selector.select(timeout):
            if key.fileobj is self._alarm:
                with suppress(BlockingIOError):
                    while self._alarm.recv(4096):
                        pass
            elif key.fileobj is self._server:
                self._accept()
            else:
                if ready & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if ready & selectors.EVENT_READ:
                    self._read(key.data, news)
        return news

    def send(self, channel: Channel, data: bytes) -> None:
        """Send now what the connection takes, the rest when it can."""
        if channel.open:
            channel.unsent.append(memoryview(data))
            if len(channel.unsent) == 1:
                self._flush(channel)

    def hang_up(self, channel: Channel) -> None:
        """End a connection."""
        if channel.open:
            channel.open = False
            self._selector.unregister(channel.sock)
            channel.sock.close()

    def wake(self) -> None:
        """Make `poll` return; from any thread."""
        with suppress(BlockingIOError, OSError):
            self._bell.send(b"\0")

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Channel):
                self.hang_up(key.data)
        self._selector.close()
        for sock in (self._server, self._alarm, self._bell):
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is gone again
            sock, _ = self._server.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._selector.register(sock, selectors.EVENT_READ, Channel(sock))

    def _read(self, channel: Channel, news: list[News]) -> None:
        if not channel.open:
            return
        wanted = _CHUNK if channel.role else _GREETING.size - len(channel.head)
        try:
            data = channel.sock.recv(wanted)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up(channel)
        if channel.role:
            news.append(News(channel, data))
        elif data and self._greets(channel, data):
            news.append(News(channel, None))

    def _greets(self, channel: Channel, data: bytes) -> bool:
        """Whether the greeting is whole and right; a wrong one ends the connection."""
        channel.head += data
        if len(channel.head) < _GREETING.size:
            return False
        secret, role, serial = _GREETING.unpack(channel.head)
        if not hmac.compare_digest(secret, self._secret):
            self.hang_up(channel)
            return False
        channel.role, channel.serial = role, serial
        return True

    def _flush(self, channel: Channel) -> None:
        unsent = channel.unsent
        try:
            while unsent:
                sent = channel.sock.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:  # its end is noticed when it is read
            unsent.clear()
        if channel.open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            if self._selector.get_key(channel.sock).events != wanted:
                self._selector.modify(channel.sock, wanted, channel)
