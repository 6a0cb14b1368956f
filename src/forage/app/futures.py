"""Futures of calls, and waiting for them.

A result is decoded where it is first asked for, in the caller's own thread: the thread that
receives messages never runs user code, and a value that nobody looks at is never unpickled.
"""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NoReturn, TypeVar

from forage.app import failures
from forage.app.cache.refs import Parcel
from forage.app.runtime import Runtime, current, is_running
from forage.app.wire import Failure, Outcome, Values

T = TypeVar("T")


class _Undecoded(Exception):
    """Stands in a future for an exception that nobody has asked for yet."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.type_name)
        self.failure = failure


class CallFuture(concurrent.futures.Future[T], Generic[T]):
    """The future of a call. `cancel` works until an executor has begun the call."""

    def __init__(self, runtime: Runtime, call: int) -> None:
        super().__init__()
        self.call = call
        self.depends: Sequence[concurrent.futures.Future[Any]] = ()
        """Futures among the call's arguments."""
        self._runtime = runtime
        self._changing = threading.Lock()
        self._decoding = threading.Lock()
        self._decoded: Any = None
        self._is_decoded = False

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call's value, or raise what it raised."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # no reference cycle through the traceback
        return self._value()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end; return what it raised, None where it returned."""
        if not self.done():
            with self._runtime.waiting((self,)):
                error = super().exception(timeout)
        else:
            error = super().exception()
        return self._error(error) if isinstance(error, _Undecoded) else error

    def cancel(self) -> bool:
        """Cancel the call unless it runs or has ended."""
        return self.cancelled() or self._runtime.cancel(self)

    def mark_cancelled(self) -> bool:
        """Cancel the future itself and tell who waits for it; False where that is too late."""
        with self._changing:
            return super().cancel() and not self.set_running_or_notify_cancel()

    def begin(self) -> bool:
        """The call begins; False where it was cancelled."""
        with self._changing:
            return not self.cancelled() and self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call `fn` with the future when it ends."""
        if getattr(fn, "__module__", "") == "asyncio.futures":  # a coroutine awaits it
            waiting = self._runtime.waiting((self,))
            waiting.__enter__()
            super().add_done_callback(lambda _: waiting.__exit__(None, None, None) and None)
        super().add_done_callback(fn)

    def settle(self, outcome: Outcome) -> None:
        """End the future; a cancelled one stays cancelled."""
        if isinstance(outcome, Values) and any(isinstance(p, Parcel) for p in outcome.packed):
            weakref.finalize(self, self._runtime.drop, self.call).atexit = False
        try:
            if isinstance(outcome, Failure):
                self.set_exception(_Undecoded(outcome))
            else:
                self.set_result(outcome)  # type: ignore[arg-type]  # decoded in `result`
        except concurrent.futures.InvalidStateError:
            if not self.cancelled():
                raise

    @property
    def outcome(self) -> Outcome | None:
        """How the call ended, undecoded; None where it was cancelled. Only once it is done."""
        if self.cancelled():
            return None
        error = super().exception()
        if isinstance(error, _Undecoded):
            return error.failure
        return super().result()  # type: ignore[return-value]

    def _value(self) -> T:
        with self._decoding:
            if not self._is_decoded:
                self._decoded = self._decode()
                self._is_decoded = True
            return self._decoded  # type: ignore[no-any-return]

    def _decode(self) -> Any:
        values: Values = super().result()  # type: ignore[assignment]
        unpacked = [self._runtime.cache.unpack(packed) for packed in values.packed]
        return unpacked if values.broadcast else unpacked[0]

    def _error(self, undecoded: _Undecoded) -> BaseException:
        with self._decoding:
            if not self._is_decoded:
                self._decoded = failures.decode(undecoded.failure)
                self._is_decoded = True
            return self._decoded  # type: ignore[no-any-return]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a future travels only as an argument of its own, where it arrives as its value; "
            "inside another value pass future.result()"
        )


def as_completed(
    futures: Iterable[concurrent.futures.Future[T]], timeout: float | None = None
) -> Iterator[concurrent.futures.Future[T]]:
    """Yield futures as they end; raises `TimeoutError` after `timeout` seconds."""
    pending = list(futures)
    completed = concurrent.futures.as_completed(pending, timeout)
    while True:
        with _waiting(pending):
            future = next(completed, None)
        if future is None:
            return
        yield future


def wait(
    futures: Sequence[concurrent.futures.Future[T]],
    timeout: float | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> tuple[set[concurrent.futures.Future[T]], set[concurrent.futures.Future[T]]]:
    """Wait for futures; returns (done, not done), as `concurrent.futures.wait` does."""
    with _waiting(futures):
        done, not_done = concurrent.futures.wait(futures, timeout, return_when)
    return done, not_done


def when_done(futures: Sequence[concurrent.futures.Future[Any]], then: Callable[[], None]) -> None:
    """Call `then` once all `futures` have ended, in whichever thread ends the last."""
    remaining = len(futures)
    lock = threading.Lock()

    def one_done(_: concurrent.futures.Future[Any]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = remaining == 0
        if last:
            then()

    for future in futures:
        future.add_done_callback(one_done)


def _waiting(
    futures: Sequence[concurrent.futures.Future[Any]],
) -> AbstractContextManager[object]:
    return current().waiting(futures) if is_running() else nullcontext()
