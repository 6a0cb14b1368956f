"""Exceptions that travel: with their own type where it can be pickled, described in any case."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import cloudpickle

from forage.app.errors import RemoteError
from forage.app.wire import Failure


class RemoteTraceback(Exception):
    """The cause of an exception that arrived from an executor: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def encode(error: BaseException) -> Failure:
    """Make an exception ready to travel.

    Only what survives the round trip goes by pickle. What would end a process (`SystemExit`,
    `KeyboardInterrupt`) never does: raised at the caller it would end the wrong one.
    """
    text = "".join(traceback.format_exception(error)).rstrip() if error.__traceback__ else ""
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return Failure(_pickled(error), kind, _message(error), text)


def decode(failure: Failure) -> BaseException:
    """The exception to raise at the caller; its `__cause__` shows the remote traceback."""
    error: BaseException
    try:
        error = pickle.loads(failure.pickled) if failure.pickled is not None else _stand_in(failure)
    except Exception as problem:  # its type can't be rebuilt here, say for want of a module
        error = _stand_in(failure, f"{type(problem).__name__}: {problem}")
    if failure.traceback:
        error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def _pickled(error: BaseException) -> bytes | None:
    if not isinstance(error, Exception):
        return None
    try:
        data: bytes = cloudpickle.dumps(error)
        return data if _same(pickle.loads(data), error) else None
    except Exception:  # a user's own pickling may fail in any way; RemoteError describes it
        return None


def _same(copy: Any, error: BaseException) -> bool:
    return type(copy).__qualname__ == type(error).__qualname__ and _message(copy) == _message(error)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:
        return f"<its message can't be shown: {type(problem).__name__}>"


def _stand_in(failure: Failure, problem: str = "") -> RemoteError:
    return RemoteError(
        f"{failure.type_name}: {failure.message}",
        why=f"its type can't be rebuilt here ({problem})" if problem else "",
        type_name=failure.type_name,
        traceback=failure.traceback,
    )
