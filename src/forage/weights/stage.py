"""What a consumer has fetched and decoded of a version, ready to be written."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forage import app
from forage.weights.bits import as_words
from forage.weights.codec import BlockDelta, Patch, decode_block
from forage.weights.layout import Layout
from forage.weights.manifest import Manifest, ShardBase, ShardPart


class VersionUnavailable(LookupError):
    """The cache holds another weight version than the one asked for."""


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


class Staging:
    """Collects the patches that lead to one manifest's version.

    They are decoded and held on `device` while that takes no more than `room` bytes of it, else in
    CPU memory.
    """

    def __init__(self, manifest: Manifest, device: torch.device, room: int) -> None:
        self.patches: list[tuple[str, Patch]] = []
        self.nbytes = 0
        self._manifest = manifest
        self._device = device
        self._room = room

    def add(self, ref: app.Ref, layout: Layout, update: app.Update) -> None:
        """Adds what was fetched of a shard, up to the manifest's version.

        Args:
            ref: the manifest's, of the shard.
            layout: of the shard.
            update: what the cache held for it.

        Raises:
            VersionUnavailable: the shard has been rebased to a newer version.
            ValueError: what was fetched is corrupted, or doesn't lead to the manifest's version.
        """
        reached = update.version - len(update.parts)
        if update.base is not None:
            self._add_base(update.base, layout)
        for part in update.parts:
            self.nbytes += part.nbytes
            if part.weight_version <= self._manifest.version:
                self._add_part(part, layout)
                reached += 1
        if reached != ref.version:
            raise ValueError(
                f"shard {ref.key!r} leads to its version {reached}, weight version"
                f" {self._manifest.version} needs {ref.version}"
            )

    def _add_base(self, base: ShardBase, layout: Layout) -> None:
        if base.weight_version > self._manifest.version:
            raise superseded(self._manifest.version)
        bits = as_words(base.stretch)
        _check_size(base.weight_version, len(bits), layout)
        self.nbytes += base.stretch.nbytes
        self.patches.extend(layout.cut(Patch(0, layout.size, None, bits)))

    def _add_part(self, part: ShardPart, layout: Layout) -> None:
        _check_size(part.weight_version, part.size, layout)
        for block in part.blocks:
            try:
                patch = decode_block(block, layout.size, self._place(block))
            except ValueError as error:
                raise ValueError(
                    f"weight version {part.weight_version}, {_title(layout)}: {error}"
                ) from error
            if patch.bits.device.type == self._device.type:
                self._room -= patch.nbytes
            self.patches.extend(layout.cut(patch))

    def _place(self, block: BlockDelta) -> torch.device:
        return self._device if _decoding(block) <= self._room else torch.device("cpu")


def _decoding(block: BlockDelta) -> int:
    """Bytes that decoding takes at most, as measured: its result, and temporary tensors."""
    return block.count * (12 if block.whole else 36 + 6 * block.low_bits)


def _check_size(version: int, size: int, layout: Layout) -> None:
    if size != layout.size:
        raise ValueError(
            f"weight version {version}, {_title(layout)}: {size} elements, where the manifest"
            f" lists {layout.size}"
        )


def _title(layout: Layout) -> str:
    first, last = layout.names[0], layout.names[-1]
    return f"tensor {first!r}" if first == last else f"tensors {first!r} to {last!r}"


def superseded(version: int) -> VersionUnavailable:
    """The version isn't there any more."""
    return VersionUnavailable(
        f"weight version {version} was replaced by a newer one while it was being read;"
        " ask for the newer one"
    )
