"""The object cache as functions, in the driver and in executors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from forage.app.cache.refs import Ref, Update
from forage.app.runtime import current


def put(value: Any, key: str | None = None) -> Ref:
    """Put a value into the cache, where it stays until it is deleted or the app ends.

    Raises `VersionConflict` where `key` is live.
    """
    return current().cache.put(value, key)


def append(ref: Ref, part: Any, expect: int | None = None) -> Ref:
    """Add a part to an object: version + 1.

    `expect` is the version that the part must follow; raises `VersionConflict` where the object
    is at another.
    """
    return current().cache.append(ref, part, expect)


def replace(ref: Ref, value: Any) -> Ref:
    """Start an object anew from another base: version + 1, no parts."""
    return current().cache.replace(ref, value)


def rebase(ref: Ref, value: Any) -> Ref:
    """Store an object's newest value whole: newcomers read it instead of all parts.

    The version stays, and recent parts stay readable, so that current readers move nothing.
    """
    return current().cache.rebase(ref, value)


def get(source: Ref | Future[Any] | Sequence[Ref | Future[Any]]) -> Any:
    """The value of a ref, or the result of a future; of several, the list of theirs.

    Arrays and CPU tensors are read-only and lie in shared memory. Raises `ValueError` where
    parts were appended to the ref's object (see `fetch`).
    """
    if isinstance(source, Ref):
        return current().cache.get(source)
    if isinstance(source, Future):
        return source.result()
    if isinstance(source, list | tuple):
        return [get(one) for one in source]
    raise TypeError(f"get takes refs and futures, not {type(source).__name__}: {source!r}")


def fetch(ref: Ref, since: int | None = None) -> Update:
    """What a reader who has version `since` (None: nothing) has not seen of an object."""
    return current().cache.fetch(ref, since)


def delete(target: Ref | str) -> int:
    """Delete an object, or the key `target` and all keys under `target/`; returns how many."""
    return current().cache.delete(target)
