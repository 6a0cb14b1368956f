"""A digest of bf16 weights that adds up over shards.

A consumer of a published policy has to prove that it holds it, while its parameters may be fused,
padded or split over devices. A hash of bytes would need them gathered in order. This one is a sum
over elements, so that it can be taken piece by piece, wherever the pieces lie:

    digest = sum over elements of mix64(position) * bits   (mod 2^64)

`position` is the element's row-major index in the checkpoint tensor, `bits` its bf16 pattern as an
unsigned number. It finds faults of transport and of indexing, not forgery.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from forage.weights.bits import as_words, from_words

MASK64 = (1 << 64) - 1
# Elements per step. On a CPU the int64 temporaries stay in its cache, and torch doesn't spread so
# few over threads, which costs far more than it gains while cores are busy; on a GPU they take
# less than 256 MB.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 22


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def mix64_(positions: Tensor) -> Tensor:
    """Replaces int64 positions by their 64-bit mix, in place.

    SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014), with
    the lowest bit set: an odd factor makes a change of a single element always visible.
    """
    z = positions.add_(_GAMMA)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        z ^= (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        if factor != 1:
            z *= factor
    return z.bitwise_or_(1)


def tensor_digest(tensor: Tensor, *, offset: int = 0, strides: Sequence[int] | None = None) -> int:
    """Digest of a bf16 tensor, or of a part of one; digests of disjoint parts add up (mod 2^64).

    Args:
        tensor: bf16, or fp32 that holds bf16 values; any shape, strides and device.
        offset: position of the first element in the checkpoint tensor.
        strides: the checkpoint tensor's row-major strides, in elements, where this is a slice of
            it along another axis than the first. By default this tensor's own row-major strides.

    Returns:
        An unsigned 64-bit number.

    Raises:
        ValueError: another dtype, or an fp32 value that isn't a bf16 value.
    """
    words = as_words(tensor)
    if strides is None and words.is_contiguous():
        words, strides = words.view(-1), (1,)
    elif strides is None:
        strides = _row_major(words.shape)
    if len(strides) != words.dim():
        raise ValueError(f"{len(strides)} strides for a tensor of {words.dim()} dimensions")
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    inexact = torch.zeros((), dtype=torch.int64, device=words.device)
    for start, piece in _pieces(words):
        bits, rest = from_words(piece)
        if rest is not None:
            inexact |= rest.amax()
        at = offset + start * strides[0] if strides else offset
        factors = mix64_(_positions(piece.shape, strides, at, piece.device))
        total += factors.mul_(_unsigned(bits)).sum()
    if inexact.item():
        raise ValueError("a float32 weight isn't a bfloat16 value: it was not published like this")
    return int(total.item()) & MASK64


def digest_change(positions: Tensor, old: Tensor, new: Tensor) -> int:
    """What to add (mod 2^64) to a digest when elements change their bits.

    Args:
        positions: int64 [n], of the changed elements.
        old: int16 [n], their bits before.
        new: int16 [n], their bits now.
    """
    factors = mix64_(positions.clone())
    moved = _unsigned(new) - _unsigned(old)
    return int(factors.mul_(moved).sum().item()) & MASK64


def _unsigned(bits: Tensor) -> Tensor:
    return bits.view(torch.uint16).to(torch.int64)


def _positions(
    shape: torch.Size, strides: Sequence[int], offset: int, device: torch.device
) -> Tensor:
    """int64 positions of a piece's elements, in its own shape."""
    if not shape:
        return torch.tensor(offset, device=device)
    first = offset + shape[0] * strides[0]
    positions = torch.arange(offset, first, strides[0], device=device)
    for size, stride in zip(shape[1:], strides[1:], strict=True):
        steps = torch.arange(0, size * stride, stride, device=device)
        positions = positions.unsqueeze(-1) + steps
    return positions


def _pieces(words: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Slices along the first axis, each with its index there."""
    if words.numel() == 0:
        return
    if words.dim() == 0:
        yield 0, words
        return
    chunk = _CPU_CHUNK if words.device.type == "cpu" else _GPU_CHUNK
    rows = max(1, chunk // (words.numel() // len(words)))
    for start in range(0, len(words), rows):
        yield start, words[start : start + rows]


def _row_major(shape: torch.Size) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
