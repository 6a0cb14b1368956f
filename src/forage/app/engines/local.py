"""The embedded engine: executors are processes of this machine, reached by socket pairs.

Nothing listens and nothing is installed. Each executor leads a session and process group of its
own; it and all its descendants carry a marker in their environment by which they are found and
ended with it. A reaper process does the same for all of them if the driver dies.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forage.app.engines import boot, reaper
from forage.app.engines.base import Demand, Event, Launch, Lost
from forage.app.engines.processes import (
    anonymous_memory,
    describe_exit,
    dismiss_reaper,
    log_tail,
    start_reaper,
    thread_environment,
)
from forage.app.engines.sockets import Bell, Outbox
from forage.app.placement import Node
from forage.app.resources import Resources, format_size
from forage.app.wire import Frames, frame

_CHUNK = 1 << 16  # Python allocates as much for every read, and larger blocks cost a mapping
_MEMORY_CHECK_S = 1.0
_EXIT_GRACE_S = 2.0  # between the end of an executor's socket and the end of its process


@dataclass(slots=True)
class _Process:
    launch: Launch
    popen: subprocess.Popen[bytes]
    pidfd: int
    sock: socket.socket
    outbox: Outbox
    log: Path
    frames: Frames = field(default_factory=Frames)
    hung_up: float | None = None  # when its socket ended
    reason: str = ""


class LocalEngine:
    """See `forage.app.engines.base.Engine`."""

    name = "local"
    grows = False

    def __init__(self, node: Node, token: str, logs: Path, folders: Sequence[Path]) -> None:
        self.nodes: Sequence[Node] = (node,)
        self._token = token
        self._logs = logs
        self._processes: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._bell = Bell(self._selector)
        self._limited: set[int] = set()  # executors with a memory limit
        self._silent: set[int] = set()  # executors whose sockets have ended
        self._stillborn: list[Event] = []
        self._next_memory_check = 0.0
        self._path = json.dumps([os.path.abspath(entry or ".") for entry in sys.path]).encode()
        self._reaper = start_reaper(token, folders)

    def refuses(self, need: Resources, *, gang: bool) -> str:
        """Nothing that fits."""
        return ""

    def want(self, demands: Sequence[Demand]) -> None:
        """One machine is all there is."""

    def start(self, launch: Launch) -> None:
        """Start the process and send it the driver's import path."""
        try:
            self._start(launch)
        except OSError as error:  # no process, memory or descriptor to be had
            self._stillborn.append(Event(launch.serial, Lost(f"can't be started: {error}", "")))

    def _start(self, launch: Launch) -> None:
        ours, theirs = socket.socketpair()
        log = self._logs / f"{launch.name}.log"
        try:
            with log.open("ab") as output:
                popen = subprocess.Popen(
                    [sys.executable, "-P", boot.__file__, str(theirs.fileno()), launch.name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=self._environment(launch),
                )
        finally:
            theirs.close()
        ours.setblocking(False)
        outbox = Outbox(ours, self._selector)
        process = _Process(launch, popen, os.pidfd_open(popen.pid), ours, outbox, log)
        self._processes[launch.serial] = process
        if launch.need.mem:
            self._limited.add(launch.serial)
        self._selector.register(ours, selectors.EVENT_READ, process)
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)
        outbox.send(len(self._path).to_bytes(8, "little") + self._path)

    def send(self, serial: int, message: Any) -> None:
        """Send now what the socket takes, the rest when it can; never blocks."""
        process = self._processes.get(serial)
        if process is not None and process.hung_up is None:
            process.outbox.send(frame(message))

    def kill(self, serial: int, reason: str = "") -> None:
        """SIGKILL the executor's process group; its other descendants follow when it is gone."""
        process = self._processes.get(serial)
        if process is not None:
            process.reason = process.reason or reason
            with suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for messages and deaths."""
        events, self._stillborn = self._stillborn, []
        for key, ready in self._selector.select(0 if events else self._bounded(timeout)):
            process = key.data
            if process is None:
                self._bell.hush()
            elif process.launch.serial not in self._processes:
                continue  # buried a moment ago
            elif key.fd == process.pidfd:
                self._bury(process, events)
            else:
                if ready & selectors.EVENT_WRITE:
                    process.outbox.flush()
                if ready & selectors.EVENT_READ:
                    self._read(process, events)
        self._check_memory()
        self._kill_silent()
        return events

    def wake(self) -> None:
        """Ring the bell."""
        self._bell.ring()

    def close(self) -> None:
        """Kill all executors, wait for them, and dismiss the reaper."""
        for serial in list(self._processes):
            self.kill(serial)
        for process in list(self._processes.values()):
            self._bury(process, [])
        reaper.kill_marked(f"FORAGE_APP={self._token}")
        dismiss_reaper(self._reaper)
        self._selector.close()
        self._bell.close()

    def _environment(self, launch: Launch) -> dict[str, str]:
        return {
            **os.environ,
            **thread_environment(launch.threads),
            "CUDA_VISIBLE_DEVICES": ",".join(launch.placement.gpus),
            "FORAGE_APP": self._token,
            "FORAGE_EXECUTOR": f"{self._token}.{launch.serial}",
            "FORAGE_SERIAL": str(launch.serial),
        }

    def _read(self, process: _Process, events: list[Event]) -> bool:
        """Read once; False where there was nothing."""
        try:
            data = process.sock.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if process.hung_up is None:
                self._selector.unregister(process.sock)
                process.hung_up = time.monotonic()
                self._silent.add(process.launch.serial)
            return False
        serial = process.launch.serial
        events.extend(Event(serial, message) for message in process.frames.feed(data))
        return True

    def _bury(self, process: _Process, events: list[Event]) -> None:
        """An executor's process has ended: take its last words, end its descendants."""
        serial = process.launch.serial
        os.waitid(os.P_PID, process.popen.pid, os.WEXITED | os.WNOWAIT)
        while process.hung_up is None and self._read(process, events):
            pass
        # Before the leader is reaped its process group can't be anybody else's.
        self.kill(serial)
        reaper.kill_marked(f"FORAGE_EXECUTOR={self._token}.{serial}")
        status = process.popen.wait()
        if process.hung_up is None:
            self._selector.unregister(process.sock)
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        process.sock.close()
        del self._processes[serial]
        self._limited.discard(serial)
        self._silent.discard(serial)
        how = process.reason or describe_exit(status)
        events.append(Event(serial, Lost(how, log_tail(process.log))))

    def _bounded(self, timeout: float | None) -> float | None:
        limits = [timeout] if timeout is not None else []
        if self._limited:
            limits.append(_MEMORY_CHECK_S)
        if self._silent:
            limits.append(_EXIT_GRACE_S / 4)
        return min(limits, default=None)

    def _check_memory(self) -> None:
        now = time.monotonic()
        if not self._limited or now < self._next_memory_check:
            return
        self._next_memory_check = now + _MEMORY_CHECK_S
        limited = {self._processes[serial].popen.pid: serial for serial in self._limited}
        for pid, used in anonymous_memory(set(limited)).items():
            launch = self._processes[limited[pid]].launch
            if used > launch.need.mem:
                limit, held = format_size(launch.need.mem), format_size(used)
                self.kill(launch.serial, f"out of memory: it held {held} of mem={limit}")

    def _kill_silent(self) -> None:
        """An executor that closed its socket but lives on can't be reached any more."""
        for serial in self._silent:
            since = self._processes[serial].hung_up
            if since is not None and time.monotonic() - since > _EXIT_GRACE_S:
                self.kill(serial, "closed its connection")
