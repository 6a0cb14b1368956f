"""The actor that owns cached values on a cluster, on the driver's node.

Ray frees what a dead process owned. A value that an executor put has to survive that executor, so
the executor hands it to this actor, which stores it anew and keeps it until the directory lets go.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import ray


class Bundle:
    """A serialised value as Ray carries it: its pieces lie side by side in the object store."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self.pieces = tuple(pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        return _bundle, tuple(pickle.PickleBuffer(piece) for piece in self.pieces)


def _bundle(*pieces: Any) -> Bundle:
    return Bundle(memoryview(piece) for piece in pieces)


class Keeper:
    """Objects by the name of their `forage.app.cache.refs.Blob`."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    async def keep(self, name: str, value: Sequence[Any] | Bundle) -> None:
        """Keep a value: the driver's own as a reference in a list, an executor's as a copy."""
        self._objects[name] = ray.put(value) if isinstance(value, Bundle) else value[0]

    async def find(self, name: str) -> list[Any]:
        """A list of the object's reference; empty where the name isn't known."""
        return [self._objects[name]] if name in self._objects else []

    async def drop(self, names: Iterable[str]) -> None:
        """Let objects go."""
        for name in names:
            self._objects.pop(name, None)

    async def sweep(self, writer: str, known: Iterable[str]) -> None:
        """Let go of what a dead process wrote, but for what is known."""
        kept = set(known)
        for name in [name for name in self._objects if name.startswith(f"{writer}/")]:
            if name not in kept:
                del self._objects[name]

    async def stay(self) -> None:
        """Never return: who waits for this learns of the keeper's end."""
        await asyncio.Event().wait()
