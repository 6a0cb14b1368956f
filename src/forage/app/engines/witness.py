"""Watches one executor on a cluster node: carries its output to the driver, and its end.

A process of its own beside the executor, since a dead process can't report: Ray says that a worker
is gone, but neither how it ended nor what it wrote last, and leaves its descendants alive. When the
driver is gone, whatever ended it, the executor and its descendants end too. Run as a file with no
site packages, so that it is up within milliseconds.

Usage: witness.py, with a JSON object on its standard input; see `Orders`.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import TypedDict

OUTPUT, ENDED, KILL = b"o", b"e", b"k"
HEAD = struct.Struct("<cQ")
"""What precedes a message to the driver: its kind and length."""

# linux/pidfd.h: how a process ended, for whoever holds its pidfd. Linux 6.15 and newer.
_INFO = struct.Struct("<QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3
_REAPED_S = 1.0  # how long the end of a process may take to be known
_MEMORY_CHECK_S = 1.0


class Orders(TypedDict):
    """What to watch, and whom to tell. Descriptors are inherited."""

    host: str
    port: int
    greeting: str  # hexadecimal; sent first
    pidfd: int
    output: int  # reading end of the executor's standard output and error
    pid: int
    marker: str  # in the environment of the executor's descendants
    mem: int  # bytes of anonymous memory that the executor may hold; 0 is no limit


class End(TypedDict):
    """How the executor ended: as `Popen.returncode` says it, None where the system doesn't tell.

    `held` is what it held in memory, where it was killed for that.
    """

    status: int | None
    held: int


def main() -> None:
    """Watch until the executor's end."""
    from reaper import kill_marked  # type: ignore[import-not-found]  # it lies beside this file

    orders: Orders = json.load(sys.stdin)
    # The executor goes on once the driver knows of its witness, so that no end goes unwitnessed.
    with socket.create_connection((orders["host"], orders["port"])) as driver:
        driver.sendall(bytes.fromhex(orders["greeting"]))
        if os.fork():  # Ray kills the children of a worker that ends: this must be nobody's child
            os._exit(0)
        held = _watch(orders, driver)
        end = End(status=exit_status(orders["pidfd"]), held=held)
        while kill_marked(orders["marker"]):
            time.sleep(0.01)
        os.set_blocking(orders["output"], False)
        while _forward(orders["output"], driver):
            pass
        _tell(driver, ENDED, json.dumps(end).encode())


def _watch(orders: Orders, driver: socket.socket) -> int:
    """Wait for the executor's end; returns the bytes it held if it held too many."""
    from processes import anonymous_memory  # type: ignore[import-not-found]

    executor, output, limit = orders["pidfd"], orders["output"], orders["mem"]
    watched: list[int | socket.socket] = [executor, output, driver]
    held, next_check = 0, 0.0
    while True:
        ready, _, _ = select.select(watched, [], [], _MEMORY_CHECK_S if limit else None)
        if limit and not held and time.monotonic() >= next_check:
            next_check = time.monotonic() + _MEMORY_CHECK_S
            used = anonymous_memory({orders["pid"]})[orders["pid"]]
            if used > limit:
                held = used
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(executor, signal.SIGKILL)
        if output in ready and not _forward(output, driver):
            watched.remove(output)
        if driver in ready and driver.recv(1) in (KILL, b""):
            watched.remove(driver)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(executor, signal.SIGKILL)
        if executor in ready:
            return held


def _forward(output: int, driver: socket.socket) -> bool:
    try:
        text = os.read(output, 1 << 16)
    except BlockingIOError:
        return False
    if text:
        _tell(driver, OUTPUT, text)
    return bool(text)


def _tell(driver: socket.socket, kind: bytes, content: bytes) -> None:
    with suppress(OSError):  # the driver is gone; what else is to be done is done all the same
        driver.sendall(HEAD.pack(kind, len(content)) + content)


def exit_status(pidfd: int) -> int | None:
    """How a process ended, as `Popen.returncode` says it; None where the system doesn't tell."""
    deadline = time.monotonic() + _REAPED_S
    while time.monotonic() < deadline:
        info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(pidfd, _GET_INFO, info)
        except OSError:
            return None
        mask, *_, status = _INFO.unpack(info)
        if mask & _WITH_EXIT:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)  # it isn't reaped yet
    return None


if __name__ == "__main__":
    main()
