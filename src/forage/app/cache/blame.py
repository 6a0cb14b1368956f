"""Finds the part of a value that can't be pickled, so that the error can name it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

_PICKLING = {"__getstate__", "__reduce__", "__reduce_ex__"}
"""A class with one of these decides itself which of its attributes are pickled."""


def explain_unpicklable(
    value: Any, name: str, error: Exception, try_pickle: Callable[[Any], None]
) -> TypeError:
    """Return the error to raise for `value`, which failed with `error`.

    `try_pickle` raises where its argument can't be pickled.
    """
    path, part, cause = name, value, error
    blamed = {id(value)}  # a value may contain itself
    while (failing := _first_failing(part, path, blamed, try_pickle)) is not None:
        path, part, cause = failing
        blamed.add(id(part))
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return TypeError(
        f"can't pickle {path} (a {kind}): {reason}; "
        "leave it out, or make it where it is used (see __getstate__)"
    )


def _first_failing(
    value: Any, path: str, blamed: set[int], try_pickle: Callable[[Any], None]
) -> tuple[str, Any, Exception] | None:
    for child_path, child in _children(value, path):
        if id(child) in blamed:
            continue
        try:
            try_pickle(child)
        except MemoryError:
            raise
        except Exception as error:
            return child_path, child, error
    return None


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"{path}[{key!r}]", child
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child
    elif isinstance(value, set | frozenset):
        for child in value:
            yield f"an element of {path}", child
    elif isinstance(value, FunctionType):
        for variable, child in _variables(value):
            yield f"{path}'s variable {variable!r}", child
    elif not any(_PICKLING & vars(kind).keys() for kind in type(value).__mro__[:-1]):
        for attribute, child in getattr(value, "__dict__", {}).items():
            yield f"{path}.{attribute}", child


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses from around it."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
