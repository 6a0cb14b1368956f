"""The trainer's side: a policy goes into the object cache, whole once and then as deltas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from forage import app
from forage.weights.digest import MASK64
from forage.weights.manifest import Manifest, TensorEntry, generation_prefix
from forage.weights.parts import Holders, own_parts
from forage.weights.report import PublishReport
from forage.weights.writer import Writer, Written


class Publisher:
    """Publishes versions of one policy under a key prefix; used by one process at a time.

    Of a policy whose tensors `fully_shard` has split, each rank that holds a part has a publisher
    of its own with the same arguments; they publish together, each its own rows.

    It keeps a bf16 copy of what it last published, 2 bytes per weight that it holds.

    Args:
        prefix: cache keys start with it.
        shard_bytes: tensors are gathered into shards of about this size, none is divided.
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
        self._writer = Writer(prefix, shard_bytes, torch.device("cpu") if keep == "cpu" else None)
        self._shapes: dict[str, tuple[int, ...]] = {}

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
            tensors: bf16 by name, all on one device; the same names and shapes each time. Those
                that `fully_shard` has split are published by all ranks that hold them, which call
                this together; if one fails, all do.
            version: higher than any version published under the prefix.

        Returns:
            The same on every rank, but for its own time.

        Raises:
            ValueError: an argument is wrong; nothing was published.
        """
        started = time.perf_counter()
        holders = Holders(tensors)
        # Read by all before the first may write the next one.
        [before, *_] = holders.each(lambda: self._check(tensors, version))
        whole, parts = not self._writer.following, own_parts(tensors)
        try:
            written = holders.each(lambda: self._writer.write(parts, version, holders.rank))
            self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            manifest = self._manifest(version, written)
            first = holders.rank == 0
            refs = holders.each(lambda: self._replace(before, manifest) if first else None)
            self.version, self.manifest_ref = version, refs[0]
            holders.each(lambda: self._writer.bound_parts(version))
        except BaseException:
            # Half a version may lie in the cache: what the shards hold is no longer known.
            self._writer.forget()
            raise
        elements = sum(tensor.numel() for tensor in tensors.values())
        return PublishReport(
            version=version,
            published_bytes=sum(each.nbytes for each in written),
            changed_fraction=sum(each.changed for each in written) / elements if elements else 0.0,
            whole=whole,
            seconds=time.perf_counter() - started,
        )

    def _check(
        self, tensors: Mapping[str, Tensor], version: int
    ) -> tuple[app.Ref, Manifest] | None:
        """What stands, if `tensors` can replace it as `version`."""
        _check_tensors(tensors)
        if self._writer.following:
            self._check_same(tensors)
        before = self._standing_manifest()
        self._check_newer(version, before)
        return before

    def _manifest(self, version: int, written: list[Written]) -> Manifest:
        """Of what all ranks have written; digests of parts add up."""
        entries = {
            name: TensorEntry(shape, sum(each.digests.get(name, 0) for each in written) & MASK64)
            for name, shape in self._shapes.items()
        }
        return Manifest(
            version,
            self._writer.generation,
            tuple(ref for each in written for ref in each.refs),
            tuple(layout for each in written for layout in each.layouts),
            entries,
        )

    def _replace(self, before: tuple[app.Ref, Manifest] | None, manifest: Manifest) -> app.Ref:
        """Writes the manifest: from here on its version exists."""
        if before is None:
            return app.put(manifest, key=f"{self._prefix}/manifest")
        ref = app.replace(before[0], manifest)
        if before[1].generation != manifest.generation:
            app.delete(generation_prefix(self._prefix, before[1].generation))
        return ref

    def _check_newer(self, version: int, before: tuple[app.Ref, Manifest] | None) -> None:
        if before is not None and version <= before[1].version:
            raise ValueError(
                f"weight version {version} isn't new: {self._prefix!r} is at {before[1].version};"
                f" publish version {before[1].version + 1} or later"
            )

    def _check_same(self, tensors: Mapping[str, Tensor]) -> None:
        for name in self._shapes.keys() ^ tensors.keys():
            raise ValueError(f"tensor {name!r} is in one of two successive versions only")
        for name, shape in self._shapes.items():
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
