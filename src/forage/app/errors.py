"""Everything that the runtime raises, under one root.

A user's own exception arrives with its own type; `ValueError` and `TypeError` mean a wrong
argument. All else is here::

    AppError
    ├── GangBroken        a member of a gang was lost; `session.reform()` starts a new one
    ├── ExecutorLost      a call's executor died more often than the call may be retried
    ├── Infeasible        a request that this machine or cluster can never satisfy
    ├── Deadlock          a call that could only start after executors that wait for it
    ├── SessionClosed     a call on a session (or an app) that takes no more calls
    ├── CacheFull         a value that fits neither shared memory nor disk
    ├── ObjectLost        a value that was deleted, or whose file has vanished
    ├── VersionConflict   a write that lost a race
    └── RemoteError       stands for an exception whose own type can't travel

All survive pickling with their attributes, since they travel between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class AppError(Exception):
    """Root of the runtime's errors: `what` happened, `why`, and the `remedy`, in one message."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        message = what + (f": {why}" if why else "") + (f"; {remedy}" if remedy else "")
        super().__init__(message)
        self.what = what
        self.why = why
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


class GangBroken(AppError):
    """A gang lost a member. `exit` says how ("exit code 3", "signal SIGKILL")."""

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "call reform() on the session to start a new generation",
        session: str = "",
        rank: int | None = None,
        exit: str = "",
        log: str = "",
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.session = session
        self.rank = rank
        self.exit = exit
        self.log = log

    def __str__(self) -> str:
        return _with_log(super().__str__(), self.log)


class ExecutorLost(AppError):
    """An executor died under a call that may not run again. `exit` says how."""

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "",
        session: str = "",
        executor: str = "",
        exit: str = "",
        log: str = "",
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.session = session
        self.executor = executor
        self.exit = exit
        self.log = log

    def __str__(self) -> str:
        return _with_log(super().__str__(), self.log)


class Infeasible(AppError):
    """A request for resources that can never fit; the message holds the arithmetic."""


class Deadlock(AppError):
    """A call that waits for executors which wait for it. `sessions` names those involved."""

    def __init__(
        self, what: str, *, why: str = "", remedy: str = "", sessions: Sequence[str] = ()
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.sessions = tuple(sessions)


class SessionClosed(AppError):
    """A call on a session that takes no more calls."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "", session: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.session = session


class CacheFull(AppError):
    """A value that doesn't fit.

    `needed`, `budget` and `disk_budget` are bytes; `holders` are the largest live keys with
    their bytes, largest first.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "",
        needed: int = 0,
        budget: int = 0,
        disk_budget: int = 0,
        holders: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.needed = needed
        self.budget = budget
        self.disk_budget = disk_budget
        self.holders = tuple(holders)


class ObjectLost(AppError):
    """The value of `key` can't be read any more."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "", key: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.key = key


class VersionConflict(AppError):
    """A write to `key` that expected version `expected` and met version `found`."""

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "",
        key: str = "",
        expected: int | None = None,
        found: int = 0,
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.key = key
        self.expected = expected
        self.found = found


class RemoteError(AppError):
    """Stands for a remote exception that can't be pickled.

    `type_name` is the exception's qualified type, `traceback` its remote traceback as text.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "",
        type_name: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.type_name = type_name
        self.traceback = traceback


def _with_log(message: str, log: str) -> str:
    return f"{message}\nlast log lines:\n{log.rstrip()}" if log else message


def _restore(kind: type[AppError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AppError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
