"""A publisher's shard: what was last published of it, and its way into the object cache.

A GPU packs the next shard while the last one is still being copied to pinned memory and written
into the cache: `encode` and `copy` queue their work and return, what they return is waited for in
another thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forage import app
from forage.weights.codec import PackedBlock, encode_blocks
from forage.weights.digest import digest_moves
from forage.weights.layout import Layout
from forage.weights.manifest import ShardBase, ShardPart


class Arrival:
    """Copies of tensors in CPU memory, where they may still be on their way."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Begins the copies; those of GPU tensors are pinned, CPU tensors are taken as they are."""
        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._event = None
        if any(tensor.is_cuda for tensor in tensors):
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> list[Tensor]:
        """The copies, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


@dataclass(frozen=True, slots=True)
class Encoded:
    """What changed in a shard.

    Attributes:
        blocks: packed, on their device.
        changed: elements.
        arrival: the blocks' payloads; then int64 numbers: each block's sum, and what to add to
            each tensor's digest.
    """

    blocks: tuple[PackedBlock, ...]
    changed: int
    arrival: Arrival


@dataclass(slots=True)
class Shard:
    """Some of a policy's tensors, or of their rows, as they were last published.

    Attributes:
        ref: at its newest cache version.
        layout: of its stretch.
        previous: the stretch, flat bf16, the publisher's own: on the device of the tensors, or in
            pinned CPU memory.
        part_bytes: size of the parts since the last base.
    """

    ref: app.Ref
    layout: Layout
    previous: Tensor
    part_bytes: int = 0

    @classmethod
    def put(
        cls, key: str, version: int, layout: Layout, previous: Tensor, arrival: Arrival
    ) -> Shard:
        """A shard put into the cache whole; what arrives is its stretch."""
        [stretch] = arrival.wait()
        return cls(app.put(ShardBase(version, stretch), key=key), layout, previous)

    def encode(self, parts: Mapping[str, Tensor]) -> Encoded | None:
        """Packs what has changed since, None if nothing has; the new stretch is the previous now.

        Args:
            parts: bf16, the shard's among them, on one device, where the work is done.
        """
        current = self.layout.flatten(parts)
        bounds = torch.tensor(self.layout.bounds).to(current.device, non_blocking=True)
        starts = torch.tensor(self.layout.starts).to(current.device, non_blocking=True)
        moves = torch.zeros(len(self.layout.names), dtype=torch.int64, device=current.device)
        blocks, changed = [], 0
        for block, change in encode_blocks(self.previous, current):
            blocks.append(block)
            changed += len(change.positions)
            moves += digest_moves(change.positions, change.old, change.new, bounds, starts)
        if not blocks:
            return None
        if self.previous.device == current.device:
            self.previous = current
        else:
            self.previous.copy_(current, non_blocking=True)  # it arrives before the blocks do
        numbers = torch.cat([torch.stack([block.total for block in blocks]), moves])
        arrival = Arrival([*(block.payload for block in blocks), numbers])
        return Encoded(tuple(blocks), changed, arrival)

    def append(self, version: int, encoded: Encoded) -> tuple[int, dict[str, int]]:
        """Appends a part; returns its size, and what to add to the digests of the tensors."""
        *payloads, numbers = encoded.arrival.wait()
        values = numbers.tolist()
        totals, moves = values[: len(payloads)], values[len(payloads) :]
        sealed = zip(encoded.blocks, payloads, totals, strict=True)
        blocks = tuple(block.seal(*copies) for block, *copies in sealed)
        part = ShardPart(version, self.layout.size, blocks)
        self.ref = app.append(self.ref, part, expect=self.ref.version)
        self.part_bytes += part.nbytes
        return part.nbytes, dict(zip(self.layout.names, moves, strict=True))

    def rebase(self, version: int) -> None:
        """Puts the stretch, which is that of `version`, under the parts."""
        [stretch] = Arrival([self.previous]).wait()
        self.ref = app.rebase(self.ref, ShardBase(version, stretch))
        self.part_bytes = 0
