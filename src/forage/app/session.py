"""Handles: how code that uses a service talks to its session, in the driver and in executors."""

from __future__ import annotations

import difflib
import threading
from concurrent.futures import Future
from typing import Any, NoReturn

from forage.app import failures
from forage.app.futures import CallFuture, when_done
from forage.app.options import MethodOptions
from forage.app.runtime import Runtime, current
from forage.app.wire import Failure, Fills, Outcome, Packed, Submission, Values


class Session:
    """One live pool of executors. `session.method.remote(...)` calls a method of its service.

    A handle is a reference: it can be passed to executors and used there.
    """

    def __init__(
        self, id: str, service: str, gang: bool, methods: dict[str, MethodOptions]
    ) -> None:
        self._id = id
        self._service = service
        self._gang = gang
        self._methods = methods

    @property
    def id(self) -> str:
        """Names the session in events, logs and errors."""
        return self._id

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_") or name not in self._methods:
            near = difflib.get_close_matches(name, self._methods, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"service {self._service} has no method {name!r}{hint}")
        return Method(self, name, self._methods[name])

    def close(self, timeout: float | None = None) -> None:
        """Take no more calls, finish those there are, free the executors; then return.

        Raises `TimeoutError` after `timeout` seconds; the session goes on closing.
        """
        current().close_session(self._id, timeout)

    def reform(self) -> None:
        """Start a gang anew, with new processes and a new generation.

        Returns at once; calls wait until the gang is there. What remains of the previous
        generation is ended. Raises `TypeError` where the session is elastic.
        """
        if not self._gang:
            raise TypeError(f"session {self._id} is elastic; only a gang can be reformed")
        current().reform(self._id)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        return f"<session {self._id} of {self._service}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._id, self._service, self._gang, self._methods)


RESERVED = frozenset({"close", "id", "options", "reform", "remote"})
"""Names that a service's methods can't have."""


class Method:
    """A method of a session's service."""

    def __init__(self, session: Session, name: str, options: MethodOptions) -> None:
        self._session = session
        self._name = name
        self._options = options

    def options(self, *, timeout: float | None = None, retries: int | None = None) -> Method:
        """The same method with other call options; see `MethodOptions`."""
        changed = MethodOptions(timeout=timeout, retries=retries)
        return Method(self._session, self._name, changed.over(self._options))

    def remote(self, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call it in one executor (of a gang: in rank 0)."""
        return self._submit(args, kwargs, broadcast=False)

    def broadcast(self, *args: Any, **kwargs: Any) -> CallFuture[list[Any]]:
        """Call it on every rank of a gang; one future of the list in rank order."""
        if not self._session._gang:
            raise TypeError(f"session {self._session.id} is elastic; only gangs broadcast")
        return self._submit(args, kwargs, broadcast=True)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        label = f"{self._session._service}.{self._name}"
        raise TypeError(f"{label} runs in executors: call {self._name}.remote(...)")

    def _submit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, broadcast: bool
    ) -> CallFuture[Any]:
        runtime = current()
        args, kwargs, awaited = _split_futures(args, kwargs)
        packed = pack_arguments(runtime, args, kwargs, f"{self._session._service}.{self._name}")
        future: CallFuture[Any] = CallFuture(runtime, runtime.new_call())
        submission = Submission(
            call=future.call,
            session=self._session.id,
            method=self._name,
            args=packed,
            fills=(),
            broadcast=broadcast,
            retries=self._options.retries or 0,
            timeout=self._options.timeout,
            held=bool(awaited),
        )
        future.depends = list(awaited.values())
        runtime.submit(submission, future)
        if awaited:
            _supply_when_done(runtime, future.call, awaited)
        return future


def pack_arguments(
    runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any], label: str
) -> Packed:
    """Pack a call's arguments; a `TypeError` names the one that can't be pickled."""
    try:
        return runtime.cache.pack((args, kwargs))
    except TypeError:
        for slot, value in [*enumerate(args), *kwargs.items()]:
            name = f"argument {slot}" if isinstance(slot, int) else slot
            runtime.cache.release(runtime.cache.pack(value, f"{name} of {label}"))
        raise


def method_of(session: Session, name: str) -> Method:
    """A method of a session by a name that `getattr` doesn't give (`__call__`)."""
    return Method(session, name, session._methods[name])


def _split_futures(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int | str, Future[Any]]]:
    """Take futures out of the arguments; None keeps a positional one's place."""
    slots: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    awaited = {slot: value for slot, value in slots if isinstance(value, Future)}
    if awaited:
        args = tuple(None if index in awaited else value for index, value in enumerate(args))
        kwargs = {key: value for key, value in kwargs.items() if key not in awaited}
    return args, kwargs, awaited


def _supply_when_done(runtime: Runtime, call: int, awaited: dict[int | str, Future[Any]]) -> None:
    def supply() -> None:
        runtime.supply(call, _fills(runtime, awaited))

    def supply_in_thread() -> None:
        threading.Thread(target=supply, name="forage-supply", daemon=True).start()

    # A result that isn't a call's must be packed first, which the thread that ends the last
    # future may not wait for.
    packed = all(isinstance(future, CallFuture) for future in awaited.values())
    when_done(list(awaited.values()), supply if packed else supply_in_thread)


def _fills(runtime: Runtime, awaited: dict[int | str, Future[Any]]) -> Fills | Failure:
    """The values of ended futures, or the failure of the first that failed."""
    fills: list[tuple[int | str, Values]] = []
    for slot, future in awaited.items():
        outcome = _outcome(runtime, future)
        if isinstance(outcome, Failure):
            return outcome
        fills.append((slot, outcome))
    return tuple(fills)


def _outcome(runtime: Runtime, future: Future[Any]) -> Outcome:
    """How a future ended. Of a call it goes on to the next executor as it is, undecoded."""
    if isinstance(future, CallFuture) and (outcome := future.outcome) is not None:
        return outcome
    try:
        return Values((runtime.cache.pack(future.result(0)),), broadcast=False)
    except BaseException as error:  # whatever the future raised, the call raises
        return failures.encode(error)
