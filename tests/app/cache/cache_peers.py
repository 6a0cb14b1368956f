"""Real processes that use a cache as executors do: files by themselves, the rest by message."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from forage.app.cache import Client, Directory, Store


class Peer:
    """A process whose client asks `directory` over a socket. `name` is its writer's name."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._connection = Connection(ours.detach())
        self._connection.send((directory.places, name))

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `function(client, *args)` there; EOFError if the process dies under it."""
        future: Future[Any] = Future()
        threading.Thread(target=self._converse, args=(function, args, future)).start()
        return future

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(client, *args)` there and wait for its result."""
        return self.start(function, *args).result(timeout=120)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _converse(self, function: Any, args: Any, future: Future[Any]) -> None:
        try:
            self._connection.send_bytes(cloudpickle.dumps((function, args)))
            while True:
                kind, content = self._connection.recv()
                if kind == "result":
                    return future.set_result(content)
                if kind == "error":
                    return future.set_exception(content)
                self._connection.send(_attempt(self._directory.call, *content))
        except (EOFError, OSError) as error:
            future.set_exception(error)


def _serve(connection: Connection) -> None:
    def call(operation: str, *args: Any) -> Any:
        connection.send(("call", (operation, *args)))
        kind, content = connection.recv()
        if kind == "error":
            raise content
        return content

    client = Client(Store(*connection.recv()), call)
    while True:
        function, args = cloudpickle.loads(connection.recv_bytes())
        connection.send(_attempt(function, client, *args))


def _attempt(function: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    try:
        return "result", function(*args)
    except Exception as error:
        return "error", error


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
