"""A consumer's side: fetch what is unseen, stage it, apply it in place, prove the result.

Fetching and decoding touch no parameter and may go on while the model is in use; only `apply`
needs it to pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from forage import app
from forage.weights.bits import as_words
from forage.weights.codec import apply_patch
from forage.weights.digest import tensor_digests
from forage.weights.manifest import Manifest
from forage.weights.stage import Staged, Staging, VersionUnavailable, superseded

__all__ = ["DigestMismatch", "Staged", "Subscriber", "VersionUnavailable"]

_READERS = 4


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


class Subscriber:
    """Follows a published policy; for one set of tensors, used by one thread at a time.

    Args:
        manifest_ref: `Publisher.manifest_ref`.
        device: where deltas are decoded and staged: best where the tensors lie.
        room: bytes of it that may be taken for that. What doesn't fit, by an estimate that is
            rather too high, is decoded and staged in CPU memory; so is everything whole.

    Attributes:
        version: the weight version that the tensors hold, proven by digest; None before the first
            apply and after a failed one.
        bytes_fetched: in all.
    """

    def __init__(
        self, manifest_ref: app.Ref, *, device: torch.device | str = "cpu", room: int = 1 << 30
    ) -> None:
        self.version: int | None = None
        self.bytes_fetched = 0
        self._manifest_ref = manifest_ref
        self._device = torch.device(device)
        self._room = room
        self._stream = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._held: dict[str, int] = {}  # shard key -> cache version that the tensors hold

    def fetch(self, version: int) -> Staged:
        """Fetches what separates the tensors from `version`, and checks it; changes no tensor.

        Raises:
            VersionUnavailable: the published version is another one.
            ValueError: what was published is corrupted.
        """
        manifest = app.get(self._manifest_ref)
        if manifest.version != version:
            raise VersionUnavailable(
                f"weight version {version} was asked for, the published one is {manifest.version};"
                " ask for that one"
            )
        staging = Staging(manifest, self._device, self._room)
        if self.version != version:
            with self._aside():
                self._read_shards(staging, manifest)
        whole = not all(ref.key in self._held for ref in manifest.shards)
        self.bytes_fetched += staging.nbytes
        since = None if whole else self.version
        return Staged(manifest, since, tuple(staging.patches), staging.nbytes)

    def _read_shards(self, staging: Staging, manifest: Manifest) -> None:
        def read(ref: app.Ref) -> app.Update:
            return app.fetch(ref, since=self._held.get(ref.key, 0))

        with ThreadPoolExecutor(_READERS, thread_name_prefix="fetch") as readers:
            updates = readers.map(read, manifest.shards)
            try:
                for ref, layout in zip(manifest.shards, manifest.layouts, strict=True):
                    staging.add(ref, layout, next(updates))
            except app.ObjectLost as lost:
                raise superseded(manifest.version) from lost

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On a GPU, work on a stream of its own, so that it holds up nothing else; then wait."""
        with torch.cuda.stream(self._stream):  # no stream: nothing happens
            yield
        if self._stream is not None:
            self._stream.synchronize()

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
        self._check_fits(staged, tensors)
        if staged.version == self.version:
            return
        self.forget()
        for name, patch in staged.patches:
            apply_patch(tensors[name], patch)
        _prove(staged.manifest, tensors)
        self.version = staged.version
        self._held = {ref.key: ref.version for ref in staged.manifest.shards}

    def forget(self) -> None:
        """Hold no version: whatever the tensors are, the next fetch is whole."""
        self.version, self._held = None, {}

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


def _prove(manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    digests = tensor_digests({name: tensors[name] for name in manifest.tensors})
    wrong = [name for name, entry in manifest.tensors.items() if digests[name] != entry.digest]
    if wrong:
        raise DigestMismatch(manifest.version, wrong)
