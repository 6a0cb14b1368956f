"""A consumer's side: fetch what is unseen, stage it, apply it in place, prove the result.

Fetching and decoding touch no parameter and may go on while the model is in use; only `apply`
needs it to pause.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forage import app
from forage.weights.bits import as_words
from forage.weights.codec import Patch, apply_patch, decode_delta
from forage.weights.digest import tensor_digest
from forage.weights.manifest import Manifest, ShardBase, ShardPart


class VersionUnavailable(LookupError):
    """The cache holds another weight version than the one asked for."""


class DigestMismatch(ValueError):
    """After an apply the tensors aren't what was published; `names` are those that differ."""

    def __init__(self, version: int, names: list[str]) -> None:
        super().__init__(
            f"weight version {version} did not apply exactly: {len(names)} tensors differ from its"
            f" manifest, first {names[0]!r}; fetch again to rebuild from whole tensors"
        )
        self.version = version
        self.names = names

    def __reduce__(self) -> tuple[type[DigestMismatch], tuple[int, list[str]]]:
        return type(self), (self.version, self.names)


@dataclass(frozen=True, slots=True)
class Staged:
    """A version that is fetched, decoded and checked, and waits to be applied.

    Attributes:
        manifest: of the version.
        since: the version that the patches start from; None: they hold every tensor whole.
        patches: (tensor name, patch), in the order to write them.
        nbytes: bytes fetched for it.
    """

    manifest: Manifest
    since: int | None
    patches: tuple[tuple[str, Patch], ...]
    nbytes: int

    @property
    def version(self) -> int:
        """The weight version that `Subscriber.apply` makes of the tensors."""
        return self.manifest.version


class Subscriber:
    """Follows a published policy; for one set of tensors, used by one thread at a time.

    Args:
        manifest_ref: `Publisher.manifest_ref`.
        device: where deltas are decoded and staged.

    Attributes:
        version: the weight version that the tensors hold, proven by digest; None before the first
            apply and after a failed one.
        bytes_fetched, fetch_seconds, apply_seconds: totals.
    """

    def __init__(self, manifest_ref: app.Ref, *, device: torch.device | str = "cpu") -> None:
        self.version: int | None = None
        self.bytes_fetched = 0
        self.fetch_seconds = 0.0
        self.apply_seconds = 0.0
        self._manifest_ref = manifest_ref
        self._device = torch.device(device)
        self._held: dict[str, int] = {}  # shard key -> cache version that the tensors hold

    def fetch(self, version: int) -> Staged:
        """Fetches what separates the tensors from `version`, and checks it; changes no tensor.

        Raises:
            VersionUnavailable: the published version is another one.
            ValueError: what was published is corrupted.
        """
        started = time.perf_counter()
        manifest = app.get(self._manifest_ref)
        if manifest.version != version:
            raise VersionUnavailable(
                f"weight version {version} was asked for, the published one is {manifest.version};"
                " ask for that one"
            )
        staging = _Staging(manifest, self._device)
        if self.version != version:
            self._read_shards(staging, manifest)
        whole = not all(ref.key in self._held for ref in manifest.shards)
        self.bytes_fetched += staging.nbytes
        self.fetch_seconds += time.perf_counter() - started
        since = None if whole else self.version
        return Staged(manifest, since, tuple(staging.patches), staging.nbytes)

    def _read_shards(self, staging: _Staging, manifest: Manifest) -> None:
        try:
            for ref in manifest.shards:
                staging.read(ref, self._held.get(ref.key, 0))
        except app.ObjectLost as lost:
            raise _superseded(manifest.version) from lost

    def apply(self, staged: Staged, tensors: Mapping[str, Tensor]) -> None:
        """Writes a staged version into the tensors, in place, and proves it by digest.

        Args:
            staged: from this subscriber's `fetch`, with no other apply since.
            tensors: the policy's tensors by name, bf16 or fp32, any strides and device.

        Raises:
            ValueError: an argument doesn't fit; nothing was written.
            DigestMismatch: the tensors aren't those published. As after any other failure while
                writing, this subscriber then holds no version, and its next fetch is whole.
        """
        started = time.perf_counter()
        self._check_fits(staged, tensors)
        if staged.version == self.version:
            return
        self.version, self._held = None, {}
        for name, patch in staged.patches:
            apply_patch(tensors[name], patch)
        _prove(staged.manifest, tensors)
        self.version = staged.version
        self._held = {ref.key: ref.version for ref in staged.manifest.shards}
        self.apply_seconds += time.perf_counter() - started

    def _check_fits(self, staged: Staged, tensors: Mapping[str, Tensor]) -> None:
        if staged.since is not None and staged.since != self.version:
            raise ValueError(
                f"version {staged.version} was staged on {staged.since}, the tensors hold"
                f" {self.version}; fetch it again"
            )
        entries = staged.manifest.tensors
        for name in entries.keys() ^ tensors.keys():
            where = "published" if name in entries else "among the targets"
            raise ValueError(f"tensor {name!r} is only {where}: these are two different models")
        for name, entry in entries.items():
            as_words(tensors[name])  # refuses other dtypes
            if tuple(tensors[name].shape) != entry.shape:
                raise ValueError(
                    f"tensor {name!r} was published as {[*entry.shape]}, the target is"
                    f" {[*tensors[name].shape]}"
                )


class _Staging:
    """Collects the patches that lead to one manifest's version."""

    def __init__(self, manifest: Manifest, device: torch.device) -> None:
        self.patches: list[tuple[str, Patch]] = []
        self.nbytes = 0
        self._manifest = manifest
        self._device = device

    def read(self, ref: app.Ref, since: int) -> None:
        """Adds what `ref`'s shard holds after cache version `since`, up to the manifest's."""
        update = app.fetch(ref, since=since)
        reached = update.version - len(update.parts)
        if update.base is not None:
            self._add_base(update.base)
        for part in update.parts:
            self.nbytes += sum(delta.nbytes for delta in part.deltas.values())
            if part.weight_version <= self._manifest.version:
                self._add_part(part)
                reached += 1
        if reached != ref.version:
            raise ValueError(
                f"shard {ref.key!r} leads to its version {reached}, weight version"
                f" {self._manifest.version} needs {ref.version}"
            )

    def _add_base(self, base: ShardBase) -> None:
        if base.weight_version > self._manifest.version:
            raise _superseded(self._manifest.version)
        for name, tensor in base.tensors.items():
            self._check_entry(name, tuple(tensor.shape), base.weight_version)
            self.nbytes += tensor.nbytes
            bits = as_words(tensor).view(-1)
            self.patches.append((name, Patch(0, len(bits), None, bits)))

    def _add_part(self, part: ShardPart) -> None:
        for name, delta in part.deltas.items():
            self._check_entry(name, delta.shape, part.weight_version)
            try:
                patches = decode_delta(delta, self._device)
            except ValueError as error:
                raise ValueError(
                    f"weight version {part.weight_version}, tensor {name!r}: {error}"
                ) from error
            self.patches.extend((name, patch) for patch in patches)

    def _check_entry(self, name: str, shape: tuple[int, ...], version: int) -> None:
        entry = self._manifest.tensors.get(name)
        if entry is None or entry.shape != shape:
            raise ValueError(
                f"weight version {version} holds {name!r} of shape {[*shape]}, which its manifest"
                " doesn't list"
            )


def _superseded(version: int) -> VersionUnavailable:
    return VersionUnavailable(
        f"weight version {version} was replaced by a newer one while it was being read;"
        " ask for the newer one"
    )


def _prove(manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    entries = manifest.tensors.items()
    wrong = [name for name, entry in entries if not _holds(tensors[name], entry.digest)]
    if wrong:
        raise DigestMismatch(manifest.version, wrong)


def _holds(tensor: Tensor, digest: int) -> bool:
    try:
        return tensor_digest(tensor) == digest
    except ValueError:  # an fp32 element that isn't a bf16 value
        return False
