"""The cache's files on a cluster: objects in Ray's store, which moves and spills them itself."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Collection
from typing import Any, NamedTuple

import ray
from ray import exceptions

from forage.app.cache.refs import Blob, Tier
from forage.app.cache.serial import Payload, Pieces
from forage.app.engines.ray.keeper import Bundle
from forage.app.ledger import DRIVER

UNBOUNDED = 1 << 62
"""Ray's store has no budget that could be kept here: it spills by itself."""


class RayPlaces(NamedTuple):
    """How an app's processes find its keeper."""

    app: str
    keeper: str
    namespace: str
    budget: int = UNBOUNDED

    @property
    def folders(self) -> tuple[()]:
        """Nothing: Ray removes objects with their owner."""
        return ()

    def open(self, writer: str) -> RayStore:
        """One process's access."""
        return RayStore(self, writer)


class RayStore:
    """See `forage.app.cache.store.Storage`."""

    def __init__(self, places: RayPlaces, writer: str) -> None:
        self.app = places.app
        self.budget = places.budget
        self.writer = writer
        self._keeper = ray.get_actor(places.keeper, places.namespace)
        self._numbers = itertools.count()

    def write(self, payload: Payload, tier: Tier) -> Blob:
        """Store a payload; raises `OSError` where neither memory nor Ray's spilling takes it."""
        blob = Blob(tier, f"{self.writer}/{os.getpid()}-{next(self._numbers)}", payload.nbytes)
        pickled, buffers = payload.pieces()
        bundle = Bundle((pickled, *buffers))
        try:
            value = [ray.put(bundle)] if self.writer == DRIVER else bundle
            ray.get(self._keeper.keep.remote(blob.name, value))
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise OSError(errno.ENOSPC, "Ray's object store is full") from error
        except exceptions.RayError as error:
            raise OSError(errno.EIO, f"the cache's keeper is gone ({_first_line(error)})") from None
        return blob

    def read(self, blob: Blob) -> Pieces:
        """The pieces of a value, in shared memory; raises `FileNotFoundError` if it is gone."""
        try:
            found: list[Any] = ray.get(self._keeper.find.remote(blob.name))
            bundle: Bundle | None = ray.get(found[0]) if found else None
        except exceptions.RayError as error:
            raise FileNotFoundError(_first_line(error)) from None
        if bundle is None:
            raise FileNotFoundError(blob.name)
        pickled, *buffers = bundle.pieces
        return Pieces(pickled, buffers)

    def remove(self, blob: Blob) -> None:
        """Let a value go."""
        self._keeper.drop.remote([blob.name])

    def sweep(self, writer: str, known: Collection[str]) -> None:
        """Let go of what a dead writer has stored and told nobody of; returns at once."""
        self._keeper.sweep.remote(writer, [name for name in known if _writer_of(name) == writer])

    def copy_to_disk(self, blob: Blob) -> Blob:
        """Ray decides what is spilled."""
        raise OSError(errno.ENOSPC, "Ray spills by itself")

    def exists(self, blob: Blob) -> bool:
        """Whether a value is there; what the directory knows, the keeper has."""
        return True

    def where(self, blob: Blob) -> str:
        """Where a value lies, in words."""
        return f"{blob.name} of Ray's object store"

    def vanished(self) -> str:
        """Nothing that could be removed by others."""
        return ""

    def fill(self, tier: Tier, used: int, budget: int) -> str:
        """How full a tier is, in words."""
        return f"Ray's object store holds {used} bytes" if tier is Tier.SHARED else "no disk"

    def clear(self) -> None:
        """Objects go with the keeper."""


def _writer_of(name: str) -> str:
    return name.partition("/")[0]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
