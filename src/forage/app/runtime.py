"""The runtime of this process: the app in the driver, a link to it in an executor.

Handles, futures and the cache functions work alike in both, through this interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from forage.app.cache.client import Client
from forage.app.errors import AppError
from forage.app.wire import Failure, Fills, Submission

if TYPE_CHECKING:
    from forage.app.futures import CallFuture
    from forage.app.services import Service


class Runtime(Protocol):
    """What a handle needs of its process. All methods may be called from any thread."""

    name: str
    cache: Client

    def new_call(self) -> int:
        """A number for a call, unique in the app."""

    def submit(self, submission: Submission, future: CallFuture[Any]) -> None:
        """Hand over a call; `future` is settled when it ends."""

    def supply(self, call: int, fills: Fills | Failure) -> None:
        """Give a held call the values it waits for, or fail it."""

    def cancel(self, future: CallFuture[Any]) -> bool:
        """Cancel a call that nobody has begun; False where it is too late."""

    def drop(self, call: int) -> None:
        """The caller holds the results of this call no longer; from any thread, even in GC."""

    def waiting(self, futures: Sequence[Future[Any]]) -> AbstractContextManager[object]:
        """Entered while this thread blocks until one of `futures` ends."""

    def open(self, service: Service[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Open a session and return its id."""

    def function_session(self, service: Service[Any]) -> str:
        """The session that a function's calls share; opened by the driver's first call."""

    def close_session(self, session: str, timeout: float | None) -> None:
        """Drain a session and free its executors; returns when they are gone."""

    def reform(self, session: str) -> None:
        """Start a new generation of a gang."""


_current: Runtime | None = None


def current() -> Runtime:
    """The runtime of this process; raises `AppError` where there is none."""
    if _current is None:
        raise AppError("no app is running", remedy='start one: app.init("name")')
    return _current


def is_running() -> bool:
    """Whether this process has a runtime."""
    return _current is not None


def install(runtime: Runtime | None) -> None:
    """Make `runtime` this process's own."""
    global _current
    _current = runtime
