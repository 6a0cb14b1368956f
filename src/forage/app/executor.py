"""An executor's process: constructs one object and runs its methods.

Plain methods run in the main thread (with `concurrency` above one in a pool of threads), `async`
methods on an event loop in a thread of its own.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from forage.app import contexts, failures, runtime
from forage.app.cache.storage import Places
from forage.app.inlet import Inlet
from forage.app.link import Link
from forage.app.services import CALL, Service
from forage.app.waits import running_call
from forage.app.wire import (
    Construct,
    Exit,
    Failure,
    Finished,
    Hello,
    Invoke,
    NotReady,
    Packed,
    Ready,
    read_message,
)

if TYPE_CHECKING:
    import asyncio


def serve(sock: socket.socket, stream: BinaryIO, serial: int, address: str = "127.0.0.1") -> None:
    """Serve the driver until it says that it is over; `address` is this node's."""
    faulthandler.enable()
    places: Places = read_message(stream)
    link = Link(sock, serial, places)
    runtime.install(link)
    worker = Executor(link, Inlet(sock, stream, link))
    gpus = tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    with _meeting_point(address) as port:
        link.send(Hello(os.getpid(), address, port.getsockname()[1], gpus))
        worker.work()


def _meeting_point(address: str) -> socket.socket:
    """Keep a port from others, for rank 0 of a gang to listen on.

    It is bound but doesn't listen: with SO_REUSEADDR on both sides another socket of ours can
    still bind and listen, and the system gives the port to nobody else.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, 0))
    return sock


class Executor:
    """Does what comes through `inlet`, in the thread that calls `work`."""

    def __init__(self, link: Link, inlet: Inlet) -> None:
        self._link = link
        self._inlet = inlet
        self._object: Any = None
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def work(self) -> None:
        """Construct, then run calls until the end."""
        while True:
            message = self._inlet.next()
            if isinstance(message, Exit):
                return
            with self._inlet.away():
                if isinstance(message, Invoke):
                    self._start(message)
                else:
                    self._construct(message)

    def _construct(self, message: Construct) -> None:
        contexts.enter(message.context)
        if message.concurrency > 1:
            self._threads = ThreadPoolExecutor(message.concurrency, thread_name_prefix="call")
        try:
            service: Service[Any] = self._link.cache.unpack(message.service)
            args, kwargs = self._link.cache.unpack(message.args)
            self._object = service(*args, **kwargs) if service.is_class else service.target
        except BaseException as error:  # the user's, whatever it is
            self._link.send(NotReady(failures.encode(error)))
        else:
            self._link.send(Ready())

    def _start(self, message: Invoke) -> None:
        try:
            target = self._object
            method = target if message.method == CALL else getattr(target, message.method)
            if inspect.iscoroutinefunction(method):
                self._start_async(message, method)
                return
        except BaseException as error:
            self._link.send(Finished(message.call, failures.encode(error)))
            return
        if self._threads is not None:
            self._threads.submit(self._run, message, method)
        else:
            self._run(message, method)

    def _run(self, message: Invoke, method: Callable[..., Any]) -> None:
        with self._link.waits.running(message.call):
            try:
                args, kwargs = self._arguments(message)
                outcome: Packed | Failure = self._pack(message, method(*args, **kwargs))
                del args, kwargs
            except BaseException as error:  # the user's, whatever it is
                outcome = failures.encode(error)
        self._link.send(Finished(message.call, outcome))

    def _start_async(
        self, message: Invoke, method: Callable[..., Coroutine[Any, Any, Any]]
    ) -> None:
        import asyncio  # slow to import, and few services need it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._loop.run_forever, name="forage-async", daemon=True
            ).start()
        asyncio.run_coroutine_threadsafe(self._run_async(message, method), self._loop)

    async def _run_async(
        self, message: Invoke, method: Callable[..., Coroutine[Any, Any, Any]]
    ) -> None:
        running_call.set(message.call)
        try:
            args, kwargs = self._arguments(message)
            outcome: Packed | Failure = self._pack(message, await method(*args, **kwargs))
            del args, kwargs
        except BaseException as error:  # the user's, whatever it is
            outcome = failures.encode(error)
        self._link.send(Finished(message.call, outcome))

    def _arguments(self, message: Invoke) -> tuple[list[Any], dict[str, Any]]:
        unpack = self._link.cache.unpack
        args, kwargs = unpack(message.args)
        args = list(args)
        for slot, values in message.fills:
            unpacked = [unpack(packed) for packed in values.packed]
            value = unpacked if values.broadcast else unpacked[0]
            if isinstance(slot, int):
                args[slot] = value
            else:
                kwargs[slot] = value
        return args, kwargs

    def _pack(self, message: Invoke, result: Any) -> Packed:
        if isinstance(result, Future):
            raise TypeError(
                f"{message.method} returned a future; return its result(), or await it first"
            )
        return self._link.cache.pack(result, f"the result of {message.method}")
