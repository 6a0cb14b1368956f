"""What the driver and its executors say to each other, and how it is framed on a socket.

A frame is an 8-byte little-endian length and a pickled message. Only processes that one driver
started hold the sockets (inherited pairs, nothing listens), so unpickling is safe here.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NamedTuple

from forage.app.cache.refs import Parcel
from forage.app.contexts import Context

Packed = bytes | Parcel
"""A serialised value: inline, or by reference where it is large."""

_LENGTH = struct.Struct("<Q")


class Failure(NamedTuple):
    """An exception on its way: pickled where that works, described in any case."""

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str


class Values(NamedTuple):
    """What a call returned; of a broadcast one value per rank."""

    packed: tuple[Packed, ...]
    broadcast: bool


Outcome = Values | Failure
Fills = tuple[tuple[int | str, Values], ...]
"""Values of futures among the arguments, by position or keyword."""


class Submission(NamedTuple):
    """A call as its caller describes it. `held`: futures among its arguments are still open."""

    call: int
    session: str
    method: str
    args: Packed
    fills: Fills
    broadcast: bool
    retries: int
    timeout: float | None  # seconds from now
    held: bool


# Driver to executor.


class Construct(NamedTuple):
    """Build the service's object. `service` and `args` are packed values."""

    service: Packed
    args: Packed
    context: Context
    concurrency: int


class Invoke(NamedTuple):
    """Run a method."""

    call: int
    method: str
    args: Packed
    fills: Fills


class Answer(NamedTuple):
    """The answer to an `Ask`."""

    request: int
    value: Any
    failure: Failure | None


class Settled(NamedTuple):
    """A call that this executor submitted has ended."""

    call: int
    outcome: Outcome


class Exit(NamedTuple):
    """Finish and leave."""


# Executor to driver.


class Hello(NamedTuple):
    """The process is up; `address` and `port` are where a gang may meet if this is rank 0."""

    pid: int
    address: str
    port: int
    gpus: tuple[str, ...]


class Ready(NamedTuple):
    """The object is constructed."""


class NotReady(NamedTuple):
    """The constructor raised."""

    failure: Failure


class Finished(NamedTuple):
    """A call has ended in this executor."""

    call: int
    outcome: Packed | Failure


class Ask(NamedTuple):
    """A request that wants an `Answer`."""

    request: int
    op: str
    args: tuple[Any, ...]


class Submit(NamedTuple):
    """A call made inside this executor."""

    submission: Submission


class Supply(NamedTuple):
    """The futures that a held call waited for have ended: their values, or a failure."""

    call: int
    fills: Fills | Failure


class Drop(NamedTuple):
    """The caller has dropped the results of a call."""

    call: int


class Stuck(NamedTuple):
    """Calls that run here and have waited for others for a while: (call, those it waits for)."""

    waits: tuple[tuple[int, tuple[int, ...]], ...]


def frame(message: Any) -> bytes:
    """A message as it goes over the wire."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add what was read and return the messages that are now whole."""
        self._buffer += data
        messages: list[Any] = []
        start, end = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                stop = start + _LENGTH.size + length
                if stop > end:
                    break
                messages.append(pickle.loads(view[start + _LENGTH.size : stop]))
                start = stop
        del self._buffer[:start]
        return messages


def read_message(stream: Any) -> Any:
    """Read one message from a blocking binary stream; raises `EOFError` at its end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return pickle.loads(body)
