"""Deltas between two versions of a tensor, exact to the bit.

At the learning rates of reinforcement learning most bf16 weights don't move in one update, so a
version is sent as the positions and new values of what changed. Values are absolute: applying a
delta twice is harmless. Tensors are cut into blocks, which bounds the memory of both sides and
lets each stretch of a tensor take the form that is smaller there: positions and values, or the
whole block.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from forage.weights.bitpack import PackedPositions, low_bytes, pack_positions, unpack_positions
from forage.weights.bits import as_words, to_words

BLOCK = 1 << 22  # elements


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """What changed in elements [start, start + length) of a flattened tensor.

    Attributes:
        count: changed elements; equal to `length` where the block is sent whole.
        low_bits: parameter of the packed positions (0 where whole).
        payload: uint8: `count` bf16 values; then, unless whole, the positions' low bits and runs.
        checksum: CRC-32 of the fields above.
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
class TensorDelta:
    """New values for a tensor of `shape`; blocks without changes are left out."""

    shape: tuple[int, ...]
    blocks: tuple[BlockDelta, ...]

    @property
    def nbytes(self) -> int:
        """Size of the payloads, in bytes."""
        return sum(len(block.payload) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Patch:
    """A decoded block, ready to be written.

    Attributes:
        start, length: the stretch of the flattened tensor.
        positions: int32 [n], relative to `start`; None: every element.
        bits: int16 [n], bf16 patterns.
    """

    start: int
    length: int
    positions: Tensor | None
    bits: Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """Elements that differ between two versions of a tensor.

    Attributes:
        positions: int64 [n], in the flattened tensor.
        old, new: int16 [n], bf16 patterns.
    """

    positions: Tensor
    old: Tensor
    new: Tensor


def encode_delta(previous: Tensor, current: Tensor) -> TensorDelta | None:
    """The delta that turns `previous` into `current`, or None where their bits are the same.

    Args:
        previous: contiguous bf16 tensor.
        current: the same in its new version. The work is done on its device; the delta lies in CPU
            memory.

    Raises:
        ValueError: shapes or dtypes differ, or a tensor isn't contiguous bf16.
    """
    blocks = tuple(block for block, _ in encode_blocks(previous, current))
    return TensorDelta(tuple(current.shape), blocks) if blocks else None


def encode_blocks(previous: Tensor, current: Tensor) -> Iterator[tuple[BlockDelta, Change]]:
    """As `encode_delta`, block by block, each with its changed elements on `current`'s device."""
    old_bits, new_bits = _flat_bits(previous), _flat_bits(current)
    if previous.shape != current.shape:
        raise ValueError(f"a delta needs one shape: {[*previous.shape]} became {[*current.shape]}")
    for start in range(0, len(new_bits), BLOCK):
        new = new_bits[start : start + BLOCK]
        old = old_bits[start : start + BLOCK].to(new.device)
        positions = (old != new).nonzero().squeeze(1)
        if len(positions):
            block = _encode(start, new, positions)
            yield block, Change(positions + start, old[positions], new[positions])


def decode_delta(delta: TensorDelta, device: torch.device | str = "cpu") -> list[Patch]:
    """Checks and unpacks a delta, on `device`.

    Raises:
        ValueError: the delta is truncated or corrupted.
    """
    size = math.prod(delta.shape)
    return [_decode(block, size, torch.device(device)) for block in delta.blocks]


def apply_patch(target: Tensor, patch: Patch) -> None:
    """Writes a patch into a tensor, in place.

    Args:
        target: bf16 or fp32, of the delta's shape; any strides and device.
        patch: from `decode_delta`.
    """
    words = as_words(target)
    bits = to_words(patch.bits.to(words.device), words.dtype)
    if patch.positions is None and words.is_contiguous():
        words.view(-1)[patch.start : patch.start + patch.length] = bits
        return
    if patch.positions is None:
        positions = torch.arange(patch.length, device=words.device)
    else:
        positions = patch.positions.to(words.device, torch.int64)
    positions = positions + patch.start
    if words.is_contiguous():
        words.view(-1)[positions] = bits
    else:
        words[torch.unravel_index(positions, words.shape)] = bits


def apply_delta(target: Tensor, delta: TensorDelta) -> None:
    """Writes a delta into a tensor in place; nothing is written unless all of it is sound.

    Raises:
        ValueError: the delta is corrupted, or made for another shape.
    """
    if tuple(target.shape) != delta.shape:
        raise ValueError(f"a delta of shape {[*delta.shape]} can't go into {[*target.shape]}")
    for patch in decode_delta(delta):
        apply_patch(target, patch)


def _encode(start: int, new: Tensor, positions: Tensor) -> BlockDelta:
    """A block from all of its new bits and the positions, relative to it, of those that changed."""
    count, low_bits, payload = len(new), 0, new.view(torch.uint8)
    if 2 * len(positions) + len(positions) // 8 < len(payload):  # else positions can't pay
        packed = pack_positions(positions, len(new))
        sparse = torch.cat([new[positions].view(torch.uint8), packed.low, packed.high])
        if len(sparse) < len(payload):
            count, low_bits, payload = len(positions), packed.low_bits, sparse
    payload = payload.to("cpu", copy=count == len(new))
    checksum = _checksum(start, len(new), count, low_bits, payload)
    return BlockDelta(start, len(new), count, low_bits, payload, checksum)


def _decode(block: BlockDelta, size: int, device: torch.device) -> Patch:
    start, length, count, payload = block.start, block.length, block.count, block.payload
    if _checksum(start, length, count, block.low_bits, payload) != block.checksum:
        raise ValueError(f"the delta of elements {start}..{start + length} is corrupted (checksum)")
    if start < 0 or start + length > size or not 0 < count <= length or len(payload) < 2 * count:
        raise ValueError(
            f"a block of {count} values at {start}..{start + length}, in {len(payload)} bytes,"
            f" can't be part of a tensor of {size} elements"
        )
    payload = payload.to(device)
    values, rest = payload[: 2 * count], payload[2 * count :]
    bits = values.view(torch.int16)
    if block.whole:
        if len(rest):
            raise ValueError(f"{len(rest)} bytes are left over after a whole block")
        return Patch(start, length, None, bits)
    split = low_bytes(count, block.low_bits)
    packed = PackedPositions(count, block.low_bits, rest[:split], rest[split:])
    return Patch(start, length, unpack_positions(packed, length).to(torch.int32), bits)


def _checksum(start: int, length: int, count: int, low_bits: int, payload: Tensor) -> int:
    header = struct.pack("<qqqq", start, length, count, low_bits)
    return zlib.crc32(payload.numpy().data, zlib.crc32(header))


def _flat_bits(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
        raise ValueError(f"deltas are of contiguous bfloat16 tensors; got {tensor.dtype}")
    return as_words(tensor).view(-1)
