"""The trainer's side: a policy goes into the object cache, whole once and then as deltas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from forage import app
from forage.weights.bits import as_words
from forage.weights.codec import TensorDelta, encode_blocks
from forage.weights.digest import MASK64, digest_change, tensor_digest
from forage.weights.manifest import Manifest, ShardBase, ShardPart, TensorEntry
from forage.weights.report import PublishReport


@dataclass(slots=True)
class _Shard:
    """A shard as it was last published.

    Attributes:
        ref: at its newest cache version.
        tensors: contiguous bf16 CPU tensors, the publisher's own.
        part_bytes: size of the parts since the last base.
    """

    ref: app.Ref
    tensors: dict[str, Tensor]
    part_bytes: int = 0


@dataclass(slots=True)
class _Tally:
    """What one publication moved."""

    nbytes: int = 0
    changed: int = 0
    digests: dict[str, int] = field(default_factory=dict)


class Publisher:
    """Publishes versions of one policy under a key prefix; used by one process at a time.

    Args:
        prefix: cache keys start with it.
        shard_bytes: whole tensors are gathered into shards of about this size.

    Attributes:
        version: the last version published by this object, or None.
        manifest_ref: what a `Subscriber` takes; None before the first publication. It stays valid
            for all later versions, those of a later publisher under the same prefix included.
    """

    def __init__(self, prefix: str, *, shard_bytes: int = 256 << 20) -> None:
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes must be positive, not {shard_bytes}")
        self.version: int | None = None
        self.manifest_ref: app.Ref | None = None
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._generation = 0
        self._shards: list[_Shard] = []
        self._digests: dict[str, int] = {}

    def publish(self, tensors: Mapping[str, Tensor], version: int) -> PublishReport:
        """Publishes the policy as `version`, which exists when this returns.

        The first publication, and one after a failure, is whole; others are deltas. When parts
        have grown past half of the policy, its shards are rebased, so that a newcomer reads at
        most one and a half policies; `published_bytes` leaves that out, since consumers of the
        version before don't read it.

        Args:
            tensors: bf16 by name, any device; the same names and shapes each time.
            version: higher than any version published under the prefix.

        Raises:
            ValueError: an argument is wrong; nothing was published.
        """
        started = time.perf_counter()
        _check_dtypes(tensors)
        whole = not self._shards
        if not whole:
            self._check_same(tensors)
        self._check_newer(version)
        try:
            tally = self._whole(tensors, version) if whole else self._delta(tensors, version)
            self._write_manifest(version, tally.digests)
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
        tally = _Tally()
        self._generation = version
        app.delete(self._generation_prefix(version))  # left by a publisher that died in this place
        shards = []
        for index, names in enumerate(_group(tensors, self._shard_bytes)):
            own = {name: _own_copy(tensors[name]) for name in names}
            key = f"{self._generation_prefix(version)}shard-{index}"
            shards.append(_Shard(app.put(ShardBase(version, own), key=key), own))
            tally.nbytes += sum(tensor.nbytes for tensor in own.values())
            tally.changed += sum(tensor.numel() for tensor in own.values())
            tally.digests |= {name: tensor_digest(tensors[name]) for name in names}
        self._shards = shards
        return tally

    def _delta(self, tensors: Mapping[str, Tensor], version: int) -> _Tally:
        tally = _Tally(digests=dict(self._digests))
        for shard in self._shards:
            deltas: dict[str, TensorDelta] = {}
            for name, own in shard.tensors.items():
                delta = _move(name, own, tensors[name].contiguous(), tally)
                if delta is not None:
                    deltas[name] = delta
            if not deltas:
                continue
            part = ShardPart(version, deltas)
            shard.ref = app.append(shard.ref, part, expect=shard.ref.version)
            nbytes = sum(delta.nbytes for delta in deltas.values())
            shard.part_bytes += nbytes
            tally.nbytes += nbytes
        return tally

    def _write_manifest(self, version: int, digests: dict[str, int]) -> None:
        entries = {
            name: TensorEntry(tuple(tensor.shape), digests[name])
            for shard in self._shards
            for name, tensor in shard.tensors.items()
        }
        refs = tuple(shard.ref for shard in self._shards)
        manifest = Manifest(version, self._generation, refs, entries)
        before = self._standing_manifest()
        if before is None:
            self.manifest_ref = app.put(manifest, key=f"{self._prefix}/manifest")
        else:
            self.manifest_ref = app.replace(before[0], manifest)
        self.version, self._digests = version, digests
        if before is not None and before[1].generation != self._generation:
            app.delete(self._generation_prefix(before[1].generation))

    def _bound_parts(self, version: int) -> None:
        parts = sum(shard.part_bytes for shard in self._shards)
        policy = sum(tensor.nbytes for shard in self._shards for tensor in shard.tensors.values())
        if 2 * parts <= policy:
            return
        for shard in self._shards:
            if shard.part_bytes:
                shard.ref = app.rebase(shard.ref, ShardBase(version, shard.tensors))
                shard.part_bytes = 0

    def _check_newer(self, version: int) -> None:
        before = self._standing_manifest()
        if before is not None and version <= before[1].version:
            raise ValueError(
                f"weight version {version} isn't new: {self._prefix!r} is at {before[1].version};"
                f" publish version {before[1].version + 1} or later"
            )

    def _check_same(self, tensors: Mapping[str, Tensor]) -> None:
        shapes = {
            name: tensor.shape for shard in self._shards for name, tensor in shard.tensors.items()
        }
        for name in shapes.keys() ^ tensors.keys():
            raise ValueError(f"tensor {name!r} is in one of two successive versions only")
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
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


def _check_dtypes(tensors: Mapping[str, Tensor]) -> None:
    if not tensors:
        raise ValueError("a policy without tensors can't be published")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bfloat16:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; round it to bfloat16 first")


def _group(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Names in their order, cut where a shard would pass `shard_bytes`."""
    shards: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        if not shards or tensor.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.nbytes
    return shards


def _own_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().to("cpu", copy=True)


def _move(name: str, own: Tensor, current: Tensor, tally: _Tally) -> TensorDelta | None:
    """The delta of one tensor; own copy and digest are moved on by the changed elements alone."""
    blocks = []
    for block, change in encode_blocks(own, current):
        blocks.append(block)
        as_words(own).view(-1)[change.positions.cpu()] = change.new.cpu()
        tally.changed += len(change.positions)
        moved = digest_change(change.positions, change.old, change.new)
        tally.digests[name] = (tally.digests[name] + moved) & MASK64
    return TensorDelta(tuple(own.shape), tuple(blocks)) if blocks else None
