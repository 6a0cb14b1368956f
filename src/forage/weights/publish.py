"""The trainer's side: a policy goes into the object cache, whole once and then as deltas."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from forage import app
from forage.weights.digest import MASK64, tensor_digests
from forage.weights.layout import Layout
from forage.weights.manifest import Manifest, TensorEntry
from forage.weights.report import PublishReport
from forage.weights.shard import Arrival, Shard

Result = TypeVar("Result")

_WRITERS = 8
# Shards on their way before the oldest has to be in the cache, which bounds pinned memory.
_WHOLE_AHEAD = 4
_DELTAS_AHEAD = 12


@dataclass(slots=True)
class _Tally:
    """What one publication moved."""

    nbytes: int = 0
    changed: int = 0
    digests: dict[str, int] = field(default_factory=dict)


class Publisher:
    """Publishes versions of one policy under a key prefix; used by one process at a time.

    It keeps a bf16 copy of what it last published, 2 bytes per weight.

    Args:
        prefix: cache keys start with it.
        shard_bytes: whole tensors are gathered into shards of about this size.
        keep: where the copy lies. `device`: with the tensors, where comparing takes milliseconds.
            `cpu`: in CPU memory, for a GPU without room for it; the copy then crosses to the GPU
            and back in each publication.

    Attributes:
        version: the last version published by this object, or None.
        manifest_ref: what a `Subscriber` takes; None before the first publication. It stays valid
            for all later versions, those of a later publisher under the same prefix included.
    """

    def __init__(
        self,
        prefix: str,
        *,
        shard_bytes: int = 256 << 20,
        keep: Literal["device", "cpu"] = "device",
    ) -> None:
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes must be positive, not {shard_bytes}")
        self.version: int | None = None
        self.manifest_ref: app.Ref | None = None
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._keep_on = torch.device("cpu") if keep == "cpu" else None
        self._generation = 0
        self._shards: list[Shard] = []
        self._digests: dict[str, int] = {}

    def standing(self) -> int | None:
        """The version that can be fetched under the prefix, whoever published it."""
        found = self._standing_manifest()
        return found and found[1].version

    def publish(self, tensors: Mapping[str, Tensor], version: int) -> PublishReport:
        """Publishes the policy as `version`, which exists when this returns.

        The first publication, and one after a failure, is whole; others are deltas. Where the
        parts have grown past half of the policy, the shards with the largest are rebased until
        they haven't, so that a newcomer reads at most one and a half policies; `published_bytes`
        leaves that out, since consumers of the version before don't read it.

        Args:
            tensors: bf16 by name, all on one device; the same names and shapes each time.
            version: higher than any version published under the prefix.

        Raises:
            ValueError: an argument is wrong; nothing was published.
        """
        started = time.perf_counter()
        _check_tensors(tensors)
        whole = not self._shards
        if not whole:
            self._check_same(tensors)
        before = self._standing_manifest()
        self._check_newer(version, before)
        try:
            tally = self._whole(tensors, version) if whole else self._delta(tensors, version)
            self._write_manifest(version, tally.digests, before)
            self._bound_parts(version)
        except BaseException:
            # Half a version may lie in the cache: what the shards hold is no longer known.
            self._shards = []
            raise
        elements = sum(tensor.numel() for tensor in tensors.values())
        return PublishReport(
            version=version,
            published_bytes=tally.nbytes,
            changed_fraction=tally.changed / elements if elements else 0.0,
            whole=whole,
            seconds=time.perf_counter() - started,
        )

    def _whole(self, tensors: Mapping[str, Tensor], version: int) -> _Tally:
        self._generation = version
        app.delete(self._generation_prefix(version))  # left by a publisher that died in this place

        def work() -> Iterator[Callable[[], Shard]]:
            for index, layout in enumerate(_layouts(tensors, self._shard_bytes)):
                stretch = layout.flatten(tensors)
                arrival = Arrival([stretch])
                kept = stretch.to(self._keep_on or stretch.device)
                key = f"{self._generation_prefix(version)}shard-{index}"
                yield partial(Shard.put, key, version, layout, kept, arrival)

        self._shards = list(_in_threads(work(), _WHOLE_AHEAD))
        tally = _Tally()
        tally.nbytes = sum(tensor.nbytes for tensor in tensors.values())
        tally.changed = sum(tensor.numel() for tensor in tensors.values())
        digests = tensor_digests(tensors)
        tally.digests = {name: digest for name, digest in digests.items() if digest is not None}
        return tally

    def _delta(self, tensors: Mapping[str, Tensor], version: int) -> _Tally:
        tally = _Tally(digests=dict(self._digests))

        def work() -> Iterator[Callable[[], tuple[int, dict[str, int]]]]:
            for shard in self._shards:
                encoded = shard.encode(tensors, self._keep_on)
                if encoded is not None:
                    tally.changed += encoded.changed
                    yield partial(shard.append, version, encoded)

        for nbytes, moves in _in_threads(work(), _DELTAS_AHEAD):
            tally.nbytes += nbytes
            for name, move in moves.items():
                tally.digests[name] = (tally.digests[name] + move) & MASK64
        return tally

    def _write_manifest(
        self, version: int, digests: dict[str, int], before: tuple[app.Ref, Manifest] | None
    ) -> None:
        entries = {
            name: TensorEntry(shape, digests[name], index)
            for index, shard in enumerate(self._shards)
            for name, shape in zip(shard.layout.names, shard.layout.shapes, strict=True)
        }
        refs = tuple(shard.ref for shard in self._shards)
        manifest = Manifest(version, self._generation, refs, entries)
        if before is None:
            self.manifest_ref = app.put(manifest, key=f"{self._prefix}/manifest")
        else:
            self.manifest_ref = app.replace(before[0], manifest)
        self.version, self._digests = version, digests
        if before is not None and before[1].generation != self._generation:
            app.delete(self._generation_prefix(before[1].generation))

    def _bound_parts(self, version: int) -> None:
        parts = sum(shard.part_bytes for shard in self._shards)
        policy = sum(shard.previous.nbytes for shard in self._shards)
        for shard in sorted(self._shards, key=lambda shard: shard.part_bytes, reverse=True):
            if 2 * parts <= policy:
                break
            parts -= shard.part_bytes
            shard.rebase(version)

    def _check_newer(self, version: int, before: tuple[app.Ref, Manifest] | None) -> None:
        if before is not None and version <= before[1].version:
            raise ValueError(
                f"weight version {version} isn't new: {self._prefix!r} is at {before[1].version};"
                f" publish version {before[1].version + 1} or later"
            )

    def _check_same(self, tensors: Mapping[str, Tensor]) -> None:
        shapes = {
            name: shape
            for shard in self._shards
            for name, shape in zip(shard.layout.names, shard.layout.shapes, strict=True)
        }
        for name in shapes.keys() ^ tensors.keys():
            raise ValueError(f"tensor {name!r} is in one of two successive versions only")
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(
                    f"tensor {name!r} was published as {[*shape]}, now it is"
                    f" {[*tensors[name].shape]}; start a new publisher for another model"
                )

    def _standing_manifest(self) -> tuple[app.Ref, Manifest] | None:
        """The manifest under the prefix, whoever wrote it."""
        ref = self.manifest_ref or _ref_to(f"{self._prefix}/manifest")
        try:
            return ref, app.get(ref)
        except app.ObjectLost:
            return None

    def _generation_prefix(self, generation: int) -> str:
        return f"{self._prefix}/{generation}/"


def _ref_to(key: str) -> app.Ref:
    """A ref to a key that another process may have put: any ref tells which app this is."""
    other = app.put(None)
    app.delete(other)
    return replace(other, key=key, version=0)


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    if not tensors:
        raise ValueError("a policy without tensors can't be published")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bfloat16:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; round it to bfloat16 first")
    devices = {str(tensor.device): name for name, tensor in tensors.items()}
    if len(devices) > 1:
        where = ", ".join(f"{name!r} on {device}" for device, name in devices.items())
        raise ValueError(f"a policy is published from one device; this one has {where}")


def _layouts(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterator[Layout]:
    """Shards of the tensors in their order, cut where one would pass `shard_bytes`."""
    shapes: dict[str, tuple[int, ...]] = {}
    room = shard_bytes
    for name, tensor in tensors.items():
        if shapes and tensor.nbytes > room:
            yield Layout.of(shapes)
            shapes, room = {}, shard_bytes
        shapes[name] = tuple(tensor.shape)
        room -= tensor.nbytes
    yield Layout.of(shapes)


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
