"""Deltas between two versions of a stretch of weights, exact to the bit.

At the learning rates of reinforcement learning most bf16 weights don't move in one update, so a
version is sent as the positions and new values of what changed. Values are absolute: applying a
delta twice is harmless. The stretch holds many tensors one after another, so that a GPU packs them
all in a few launches. It is cut into blocks, which bounds the memory of both sides and lets each
take the form that is smaller there: positions and values, or the whole block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from forage.weights.bitpack import PackedPositions, low_bytes, pack_positions, unpack_positions
from forage.weights.bits import as_words, to_words
from forage.weights.digest import MASK64

# Elements. A GPU packs a block in about 80 launches and waits twice, whatever its size; it takes a
# byte of memory per element and about 40 per changed one.
BLOCK = 1 << 27

WRITTEN_AT_ONCE = 1 << 24
"""Values of a patch, so that writing it takes 300 MB at most."""

_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """What changed in elements [start, start + length) of a stretch.

    Attributes:
        count: changed elements; equal to `length` where the block is sent whole.
        low_bits: parameter of the packed positions (0 where whole).
        payload: uint8, of even length: `count` bf16 values; then, unless whole, the positions'
            low bits and runs.
        checksum: of the fields above, 64 bits.
    """

    start: int
    length: int
    count: int
    low_bits: int
    payload: Tensor
    checksum: int

    @property
    def whole(self) -> bool:
        """The block carries every element, and no positions."""
        return self.count == self.length


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A `BlockDelta` in the making; payload and `total`, its `payload_sum`, lie on the device."""

    start: int
    length: int
    count: int
    low_bits: int
    payload: Tensor
    total: Tensor

    def seal(self, payload: Tensor, total: int) -> BlockDelta:
        """The delta, given CPU copies of `self.payload` and `self.total`."""
        fields = (self.start, self.length, self.count, self.low_bits)
        return BlockDelta(*fields, payload, checksum(*fields, len(payload), total))


@dataclass(frozen=True, slots=True)
class Change:
    """Elements that differ between two versions of a stretch.

    Attributes:
        positions: int64 [n], in the stretch, increasing.
        old, new: int16 [n], bf16 patterns.
    """

    positions: Tensor
    old: Tensor
    new: Tensor


@dataclass(frozen=True, slots=True)
class Patch:
    """New values for elements [start, start + length) of a stretch or of a tensor.

    Attributes:
        positions: int32 [n], relative to `start`; None: every element.
        bits: int16 [n], bf16 patterns.
    """

    start: int
    length: int
    positions: Tensor | None
    bits: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of memory that both hold: the bits are a view of all that was sent."""
        sent = self.bits.untyped_storage().nbytes()
        return sent + (0 if self.positions is None else self.positions.nbytes)


def encode_blocks(previous: Tensor, current: Tensor) -> Iterator[tuple[PackedBlock, Change]]:
    """Finds and packs what turns `previous` into `current`, both contiguous bf16 [n].

    Blocks without changes are left out. The work is done on `current`'s device.

    Raises:
        ValueError: lengths or dtypes differ, or a tensor isn't flat, contiguous bf16.
    """
    old_bits, new_bits = _flat_bits(previous), _flat_bits(current)
    if len(old_bits) != len(new_bits):
        raise ValueError(f"a delta needs one length: {len(old_bits)} became {len(new_bits)}")
    for start in range(0, len(new_bits), BLOCK):
        new = new_bits[start : start + BLOCK]
        old = old_bits[start : start + BLOCK].to(new.device, non_blocking=True)
        positions = (old != new).nonzero().squeeze(1)
        if len(positions):
            at = positions + start if start else positions
            change = Change(at, old[positions], new[positions])
            yield _pack(start, new, positions, change.new), change


def encode_delta(previous: Tensor, current: Tensor) -> tuple[BlockDelta, ...]:
    """As `encode_blocks`, sealed, in CPU memory."""
    return tuple(
        block.seal(block.payload.cpu(), int(block.total))
        for block, _ in encode_blocks(previous, current)
    )


def decode_block(block: BlockDelta, size: int, device: torch.device | str = "cpu") -> Patch:
    """Checks and unpacks a block of a stretch of `size` elements, on `device`.

    Raises:
        ValueError: the block is truncated or corrupted.
    """
    start, length, count = block.start, block.length, block.count
    if start < 0 or start + length > size or not 0 < count <= length < 1 << 31:
        raise ValueError(
            f"a block of {count} values at {start}..{start + length} can't be part of {size}"
            " elements"
        )
    nbytes = len(block.payload)
    if nbytes % 2 or nbytes < 2 * count:
        raise ValueError(f"a block of {count} values can't lie in {nbytes} bytes")
    payload = block.payload.to(device)
    total = int(payload_sum(payload))
    if checksum(start, length, count, block.low_bits, nbytes, total) != block.checksum:
        raise ValueError(f"the delta of elements {start}..{start + length} is corrupted (checksum)")
    bits, rest = payload[: 2 * count].view(torch.int16), payload[2 * count :]
    if block.whole:
        if len(rest):
            raise ValueError(f"{len(rest)} bytes are left over after a whole block")
        return Patch(start, length, None, bits)
    split = low_bytes(count, block.low_bits)
    packed = PackedPositions(count, block.low_bits, rest[:split], rest[split:])
    return Patch(start, length, unpack_positions(packed, length), bits)


def apply_patch(target: Tensor, patch: Patch) -> None:
    """Writes a patch into a tensor, in place.

    Args:
        target: bf16 or fp32; any shape, strides and device.
        patch: of the flattened tensor.
    """
    words = as_words(target)
    for first in range(0, len(patch.bits), WRITTEN_AT_ONCE):
        part = slice(first, first + WRITTEN_AT_ONCE)
        bits = to_words(patch.bits[part].to(words.device), words.dtype)
        if patch.positions is None:
            _write(words, patch.start + first, None, bits)
        else:
            positions = patch.positions[part].to(words.device, torch.int64)
            _write(words, patch.start, positions, bits)


def _write(words: Tensor, start: int, positions: Tensor | None, bits: Tensor) -> None:
    """Writes values from `start` on, or at positions that count from there."""
    if words.is_contiguous():
        stretch = words.view(-1)[start:]
        if positions is None:
            stretch[: len(bits)] = bits
        else:
            stretch.scatter_(0, positions, bits)
        return
    if positions is None:
        positions = torch.arange(len(bits), device=words.device)
    words[torch.unravel_index(positions + start, words.shape)] = bits


def payload_sum(payload: Tensor) -> Tensor:
    """The sum of the 16-bit words (signed) of uint8 [2 n], each times the next odd number: int64.

    A flipped bit and swapped words always show. It is cheap, since what is written is proven
    afterwards by the digest.
    """
    words = payload.view(torch.int16)
    return torch.arange(1, 2 * len(words) + 1, 2, device=words.device).mul_(words).sum()


def checksum(
    start: int, length: int, count: int, low_bits: int, payload_bytes: int, total: int
) -> int:
    """Of a block: its fields, its payload's length, and the `payload_sum`."""
    fields = zlib.crc32(struct.pack("<qqqqq", start, length, count, low_bits, payload_bytes))
    return (total + fields * _SPREAD) & MASK64


def _pack(start: int, new: Tensor, positions: Tensor, values: Tensor) -> PackedBlock:
    """A block from all of its new bits and those that changed, at positions relative to it."""
    count, low_bits, payload = len(new), 0, new.view(torch.uint8)
    if 2 * len(positions) + len(positions) // 8 < len(payload):  # else positions can't pay
        packed = pack_positions(positions, len(new))
        sparse = torch.cat([values.view(torch.uint8), packed.low, packed.high])
        if len(sparse) < len(payload):
            count, low_bits, payload = len(positions), packed.low_bits, sparse
    return PackedBlock(start, len(new), count, low_bits, payload, payload_sum(payload))


def _flat_bits(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.bfloat16 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(f"deltas are of flat bfloat16; got {tensor.dtype} {[*tensor.shape]}")
    return as_words(tensor)
