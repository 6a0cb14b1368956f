"""The app in its driver: start, end, and the driver's own runtime."""

from __future__ import annotations

import atexit
import concurrent.futures
import itertools
import logging
import os
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from forage.app import runtime
from forage.app.cache import Client, Directory
from forage.app.controller import Controller
from forage.app.elastic import ElasticPool
from forage.app.engines.base import Engine, Site
from forage.app.engines.opening import ENGINES, open_engine
from forage.app.errors import AppError, Infeasible, SessionClosed
from forage.app.events import EventLog
from forage.app.futures import CallFuture
from forage.app.gang import GangPool
from forage.app.ledger import DRIVER
from forage.app.placement import Room, fits_empty, times
from forage.app.resources import parse_size
from forage.app.services import Service
from forage.app.session import pack_arguments
from forage.app.snapshot import RENEWED_S, StatusFile
from forage.app.wire import Failure, Fills, Submission

_log = logging.getLogger("forage.app")


class App:
    """A running app; see `init`. A context manager: an exception in its block cancels calls."""

    def __init__(self, name: str, site: Site, engine: Engine, directory: Directory) -> None:
        self.name = name
        self.run_dir = site.run_dir
        self.directory = directory
        self.cache = Client(directory.places.open(DRIVER), directory.call)
        self._temporary = site.temporary
        self._events = EventLog(site.run_dir / "events.jsonl")
        self._controller = Controller(engine, self.directory, self._events)
        self._status_file = StatusFile(site.run_dir)
        self._controller.post(self._renew_status)
        self._controller.start()
        self._call_numbers = itertools.count(1)
        self._session_numbers: dict[str, itertools.count[int]] = {}
        self._opening = threading.RLock()
        self._ending = False

    # Runtime

    def new_call(self) -> int:
        """Numbers below those of any executor."""
        return next(self._call_numbers)

    def submit(self, submission: Submission, future: CallFuture[Any]) -> None:
        """Hand the call to the controller."""
        if self._ending:
            raise SessionClosed(f"app {self.name!r} takes no more calls", session=self.name)
        self._controller.post(
            partial(self._controller.submit, submission, 0, future.begin, future.settle)
        )

    def supply(self, call: int, fills: Fills | Failure) -> None:
        """Hand the values to the controller."""
        self._controller.post(partial(self._controller.supply, call, fills))

    def cancel(self, future: CallFuture[Any]) -> bool:
        """Cancel the future here; whoever is to run it notices."""
        if not future.mark_cancelled():
            return False
        self._controller.post(partial(self._controller.forget_cancelled, future.call))
        return True

    def drop(self, call: int) -> None:
        """Tell the controller; takes no lock."""
        self._controller.post(partial(self._controller.ledger.drop, call))

    def waiting(
        self, futures: Sequence[concurrent.futures.Future[Any]]
    ) -> AbstractContextManager[object]:
        """Nobody waits for the driver, so there is nothing to note."""
        return nullcontext()

    def open(self, service: Service[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Open a session; raises `Infeasible` where it can never fit."""
        if self._ending:
            raise SessionClosed(f"app {self.name!r} opens no more sessions", session=self.name)
        options = service.service_options
        self._check_feasible(service)
        packed_service = self.cache.pack(service, service.name)
        packed_args = pack_arguments(self, args, kwargs, f"{service.name}'s constructor")
        kind = GangPool if options.size and not options.autoscale else ElasticPool
        session = self._session_id(service.name)

        def add() -> None:
            hub = self._controller
            pool = kind(hub, session, self.name, options, packed_service, packed_args)
            for packed in (packed_service, packed_args):
                hub.ledger.pass_on(packed, f"session-{session}")
            hub.add(pool)

        self._controller.ask(add)
        return session

    def function_session(self, service: Service[Any]) -> str:
        """Open a function's session at its first call."""
        functions = self._controller.functions
        session = functions.get(service.key)
        if session is None:
            with self._opening:
                if service.key not in functions:
                    functions[service.key] = self.open(service, (), {})
                session = functions[service.key]
        return session

    def close_session(self, session: str, timeout: float | None) -> None:
        """Close it and wait."""

        def close() -> concurrent.futures.Future[None] | None:
            pool = self._controller.pools.get(session)
            if pool is None:
                return None
            pool.close()
            return pool.closed

        closed = self._controller.ask(close)
        if closed is not None and not concurrent.futures.wait((closed,), timeout).done:
            raise TimeoutError(f"session {session} still has calls after {timeout:g} s")

    def reform(self, session: str) -> None:
        """Reform a gang."""
        self._controller.ask(lambda: self._controller.gang(session).reform())

    # Life

    def status(self) -> dict[str, Any]:
        """What runs now."""
        return {"app": self.name, **self._controller.ask(self._controller.status)}

    def _renew_status(self) -> None:
        self._status_file.renew({"app": self.name, **self._controller.status()})
        self._controller.after(RENEWED_S, self._renew_status)

    def close(self, *, cancel: bool = False) -> None:
        """End the app: finish all calls first, or with `cancel` fail them."""
        with self._opening:
            if self._ending and not cancel:
                return
            self._ending = True
        try:
            if not cancel:
                for closed in self._controller.ask(self._controller.drain):
                    closed.result()
        except BaseException:
            cancel = True
            raise
        finally:
            self._finish(cancel)

    def _finish(self, cancel: bool) -> None:
        if cancel:
            error = SessionClosed(f"app {self.name!r} has ended", session=self.name)
            self._controller.post(lambda: self._controller.fail_all(error))
        self._controller.stop()
        self.directory.close()
        self._events.close()
        self._status_file.remove()
        if self._temporary:
            shutil.rmtree(self.run_dir, ignore_errors=True)
        if runtime.is_running() and runtime.current() is self:
            runtime.install(None)

    def __enter__(self) -> App:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(cancel=kind is not None)

    def _session_id(self, name: str) -> str:
        with self._opening:
            number = next(self._session_numbers.setdefault(name, itertools.count(1)))
        return name if number == 1 else f"{name}.{number}"

    def _check_feasible(self, service: Service[Any]) -> None:
        options, engine = service.service_options, self._controller.engine
        count, gang = max(1, options.size), not options.autoscale
        refusal = engine.refuses(options.need, gang=gang)
        if refusal:
            raise Infeasible(f"{service.name} asks for ({options.need})", why=refusal)
        if fits_empty(options.need, count, engine.nodes, distinct=gang):
            return
        apart = " on GPUs of their own each" if gang and options.need.milligpu % 1000 else ""
        infeasible = Infeasible(
            f"{service.name} needs {count} x ({options.need}) "
            f"= {times(options.need, count)}{apart}",
            why=f"there is {Room.of(engine.nodes).total()} in all",
            remedy="ask for less, or for fewer executors",
        )
        if not engine.grows:
            raise infeasible
        _log.warning("%s; it waits until the cluster has grown", infeasible)


def init(
    name: str,
    *,
    engine: str = "local",
    resources: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    cache: str | None = None,
    address: str | None = None,
    install: bool = False,
) -> App:
    """Start the app of this process.

    Used as a context manager, or plainly with `shutdown()` (which also runs at exit).

    Args:
        name: names the app in logs and errors.
        engine: where executors run: `local` is processes of this machine, `ray` a cluster.
        resources: what executors may hold in all, `cpu=8,mem=64g,gpu=2`; what it doesn't name is
            what this process may use.
        run_dir: folder for `events.jsonl` and executors' `logs/`; if None, a temporary one that
            goes with the app.
        cache: shared memory that the object cache may hold before it spills to disk, `16g`. A
            running Ray cluster has its own.
        address: of a running Ray cluster, `host:port` or `auto`; if None, that in `RAY_ADDRESS`.
            Without any, engine `ray` starts one on this machine, which ends with the app.
        install: have the nodes of a cluster install the project's declared dependencies; if
            False, what is missing there is named. (Engine `local` uses this environment.)

    Raises:
        AppError: this process has an app already, or is an executor; or the engine can't be had.
        ValueError: an argument is malformed.
    """
    if runtime.is_running():
        raise AppError(
            f"can't start app {name!r}: app {runtime.current().name!r} is running",
            remedy="there is one per process; shut it down first, or use it",
        )
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(f"an app's name must be text without '/', not {name!r}")
    budget = None if cache is None else parse_size(cache)
    if cache is not None and budget is None:
        raise ValueError(f"cache must be a size such as 512m or 16g, not {cache!r}")
    folder = Path(run_dir or tempfile.mkdtemp(prefix="forage-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # Refs name the app; with the token those of an earlier app are never taken for its own.
    token = uuid.uuid4().hex[:16]
    site = Site(
        app=f"{name}-{token[:6]}",
        token=token,
        run_dir=folder,
        temporary=run_dir is None,
        resources=resources,
        cache=budget,
        address=address,
        install=install,
    )
    site.logs.mkdir(mode=0o700, exist_ok=True)
    try:
        app = App(name, site, *open_engine(engine, site))
    except BaseException:
        if site.temporary:
            shutil.rmtree(folder)
        raise
    runtime.install(app)
    # Last in, first out: before the exit handlers of what the engine has imported.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    return app


def shutdown() -> None:
    """End the app after all its calls; does nothing where there is none."""
    if runtime.is_running():
        running = runtime.current()
        if not isinstance(running, App):
            raise AppError("an executor can't shut its app down", remedy="do so in the driver")
        running.close()


def status() -> dict[str, Any]:
    """Sessions, executors, resources and cache of the running app, as plain data."""
    running = runtime.current()
    if not isinstance(running, App):
        raise AppError("status is the driver's to ask", remedy="call it there")
    return running.status()


def _at_exit() -> None:
    if runtime.is_running() and isinstance(app := runtime.current(), App):
        app.close(cancel=hasattr(sys, "last_value"))  # the script ended by an exception
