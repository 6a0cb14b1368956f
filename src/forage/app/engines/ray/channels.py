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
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from forage.app.engines.sockets import Bell, Outbox

EXECUTOR, WITNESS = b"x", b"w"

_CHUNK = 1 << 16  # Python allocates as much for every read, and larger blocks cost a mapping
_GREETING = struct.Struct("<32scQ")


@dataclass(slots=True, eq=False)
class Channel:
    """One connection. Until it has greeted, `role` is empty and `head` what it has said so far."""

    sock: socket.socket
    outbox: Outbox
    role: bytes = b""
    serial: int = 0
    head: bytes = b""
    open: bool = True


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
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._bell = Bell(self._selector)

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
            if key.fileobj is self._bell.heard:
                self._bell.hush()
            elif key.fileobj is self._server:
                self._accept()
            elif key.data.open:  # it may have ended a moment ago
                if ready & selectors.EVENT_WRITE:
                    key.data.outbox.flush()
                if ready & selectors.EVENT_READ:
                    self._read(key.data, news)
        return news

    def send(self, channel: Channel, data: bytes) -> None:
        """Send now what the connection takes, the rest when it can."""
        if channel.open:
            channel.outbox.send(data)

    def hang_up(self, channel: Channel) -> None:
        """End a connection."""
        if channel.open:
            channel.open = False
            self._selector.unregister(channel.sock)
            channel.sock.close()

    def wake(self) -> None:
        """Make `poll` return; from any thread."""
        self._bell.ring()

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Channel):
                self.hang_up(key.data)
        self._selector.close()
        self._server.close()
        self._bell.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is gone again
            sock, _ = self._server.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            channel = Channel(sock, Outbox(sock, self._selector))
            self._selector.register(sock, selectors.EVENT_READ, channel)

    def _read(self, channel: Channel, news: list[News]) -> None:
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
