"""What one rank of a publisher puts into the object cache: its part of a policy, in shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from forage import app
from forage.weights.digest import MASK64
from forage.weights.layout import Layout
from forage.weights.manifest import generation_prefix
from forage.weights.parts import Part, part_digests
from forage.weights.shard import Arrival, Shard

Result = TypeVar("Result")

_WRITERS = 8
# Shards on their way before the oldest has to be in the cache, which bounds pinned memory.
_WHOLE_AHEAD = 4
_DELTAS_AHEAD = 12


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank put into the cache of a publication.

    Attributes:
        refs, layouts: of its shards.
        digests: of its part of each tensor.
        nbytes: that consumers of the version before read.
        changed: elements.
    """

    refs: tuple[app.Ref, ...]
    layouts: tuple[Layout, ...]
    digests: dict[str, int]
    nbytes: int
    changed: int


class Writer:
    """One rank's shards of a policy.

    Attributes:
        following: what is written next follows what was written last, and is no whole part.
        generation: the version that was last written whole.
    """

    def __init__(self, prefix: str, shard_bytes: int, keep_on: torch.device | None) -> None:
        """See `Publisher`; without `keep_on` the copy lies where the tensors do."""
        self.following = False
        self.generation = 0
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._keep_on = keep_on
        self._shards: list[Shard] = []
        self._digests: dict[str, int] = {}

    def write(self, parts: Mapping[str, Part], version: int, rank: int) -> Written:
        """Write `version` of this rank's parts; it doesn't exist before a manifest names it."""
        rows = {name: part.rows for name, part in parts.items()}
        if self.following:
            nbytes, changed = self._delta(rows, version)
        else:
            self.generation, self._digests = version, part_digests(parts)
            self._shards = self._whole(parts, rows, rank)
            nbytes = sum(tensor.nbytes for tensor in rows.values())
            changed = sum(tensor.numel() for tensor in rows.values())
            self.following = True
        return Written(
            refs=tuple(shard.ref for shard in self._shards),
            layouts=tuple(shard.layout for shard in self._shards),
            digests=self._digests,
            nbytes=nbytes,
            changed=changed,
        )

    def forget(self) -> None:
        """Trust nothing that was written: what comes next is whole."""
        self.following, self._shards = False, []

    def bound_parts(self, version: int) -> None:
        """Rebase shards to `version` until their parts are at most half as large as they are."""
        parts = sum(shard.part_bytes for shard in self._shards)
        whole = sum(shard.previous.nbytes for shard in self._shards)
        for shard in sorted(self._shards, key=lambda shard: shard.part_bytes, reverse=True):
            if 2 * parts <= whole:
                break
            parts -= shard.part_bytes
            shard.rebase(version)

    def _whole(
        self, parts: Mapping[str, Part], rows: Mapping[str, Tensor], rank: int
    ) -> list[Shard]:
        version = self.generation
        prefix = f"{generation_prefix(self._prefix, version)}{rank}/"
        app.delete(prefix)  # left by a publisher that died in this place

        def work() -> Iterator[Callable[[], Shard]]:
            for index, layout in enumerate(_layouts(parts, self._shard_bytes)):
                stretch = layout.flatten(rows)
                kept = stretch
                if self._keep_on is not None and stretch.device != self._keep_on:
                    kept = torch.empty_like(stretch, device=self._keep_on, pin_memory=True)
                    kept.copy_(stretch, non_blocking=True)
                arrival = Arrival([stretch])
                key = f"{prefix}shard-{index}"
                yield partial(Shard.put, key, version, layout, kept, arrival)

        return list(_in_threads(work(), _WHOLE_AHEAD))

    def _delta(self, rows: Mapping[str, Tensor], version: int) -> tuple[int, int]:
        """Appends what has changed; returns bytes and elements."""
        total = changed = 0

        def work() -> Iterator[Callable[[], tuple[int, dict[str, int]]]]:
            nonlocal changed
            for shard in self._shards:
                encoded = shard.encode(rows)
                if encoded is not None:
                    changed += encoded.changed
                    yield partial(shard.append, version, encoded)

        for nbytes, moves in _in_threads(work(), _DELTAS_AHEAD):
            total += nbytes
            for name, move in moves.items():
                self._digests[name] = (self._digests[name] + move) & MASK64
        return total, changed


def _layouts(parts: Mapping[str, Part], shard_bytes: int) -> Iterator[Layout]:
    """Shards of the parts in their order, cut where one would pass `shard_bytes`."""
    spans: dict[str, range] = {}
    room = shard_bytes
    for name, part in parts.items():
        if spans and part.rows.nbytes > room:
            yield Layout.of(spans)
            spans, room = {}, shard_bytes
        spans[name] = part.span
        room -= part.rows.nbytes
    if spans:
        yield Layout.of(spans)


def _in_threads(work: Iterator[Callable[[], Result]], ahead: int) -> Iterator[Result]:
    """What each piece of work returns, in order; meanwhile the next `ahead` are prepared."""
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="publish") as writers:
        pending: deque[Future[Result]] = deque()
        for piece in work:
            pending.append(writers.submit(piece))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
