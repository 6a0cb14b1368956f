"""A digest of bf16 weights that adds up over shards.

A consumer of a published policy has to prove that it holds it, while its parameters may be fused,
padded or split over devices. A hash of bytes would need them gathered in order. This one is a sum
over elements, so that it can be taken piece by piece, wherever the pieces lie:

    digest = sum over elements of mix64(position) * bits   (mod 2^64)

`position` is the element's row-major index in the checkpoint tensor, `bits` its bf16 pattern as a
signed 16-bit number. It finds faults of transport and of indexing, not forgery.

Mixing costs far more than multiplying and adding, and depends on the position alone. So the tensors
of a policy are read side by side: a stretch of positions is mixed once for all that reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from forage.weights.bits import as_words, from_words

MASK64 = (1 << 64) - 1
# Elements per step. On a CPU the int64 temporaries stay in its cache, and torch doesn't spread so
# few over threads, which costs far more than it gains while cores are busy; on a GPU they take
# 128 MB, and smaller ones cost more launches than they save.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 23


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
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    for start, piece in _pieces(words):
        at = offset + start * strides[0] if strides else offset
        factors = mix64_(_positions(piece.shape, strides, at, piece.device))
        bits, rest = from_words(piece)
        total[0] += factors.mul_(bits).sum()
        if rest is not None:
            total[1] += rest.sum()
    digest, inexact = total.tolist()
    if inexact:
        raise ValueError("a float32 weight isn't a bfloat16 value: it was not published like this")
    return int(digest) & MASK64


def tensor_digests(
    tensors: Mapping[str, Tensor], offsets: Mapping[str, int] | None = None
) -> dict[str, int | None]:
    """The `tensor_digest` of each tensor; None where an fp32 value isn't a bf16 value.

    Args:
        tensors: by name; whole, or some rows.
        offsets: of each that is some rows: the position of its first element.

    Raises:
        ValueError: a tensor of another dtype.
    """
    digests: dict[str, int | None] = {}
    flats: dict[tuple[torch.device, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        words, offset = as_words(tensor), (offsets or {}).get(name, 0)
        if words.is_contiguous():
            flats.setdefault((words.device, offset), {})[name] = words.view(-1)
        else:
            digests[name] = _digest_or_none(tensor, offset)
    for (device, offset), group in flats.items():
        digests |= _side_by_side(group, device, offset)
    return digests


def digest_moves(
    positions: Tensor, old: Tensor, new: Tensor, bounds: Tensor, starts: Tensor
) -> Tensor:
    """What to add (mod 2^64) to the digests of tensors when elements change their bits.

    Args:
        positions: int64 [n], increasing, in a stretch that holds parts of the tensors end to end.
        old: int16 [n], the elements' bits before.
        new: int16 [n], their bits now.
        bounds: int64 [tensors + 1], where each part starts in the stretch, and the last one ends.
        starts: int64 [tensors], where each part starts in its tensor.

    Returns:
        int64 [tensors].
    """
    owners = torch.searchsorted(bounds, positions, right=True) - 1
    terms = mix64_(positions + (starts - bounds[:-1])[owners]).mul_(new.to(torch.int64) - old)
    sums = torch.cat([terms.new_zeros(1), terms.cumsum(0)])
    return sums[torch.searchsorted(positions, bounds)].diff()


def _side_by_side(
    flats: Mapping[str, Tensor], device: torch.device, offset: int
) -> dict[str, int | None]:
    """Digests of flat words; each stretch of positions is mixed once for all of them."""
    names = sorted(flats, key=lambda name: len(flats[name]), reverse=True)
    totals = torch.zeros(len(names), dtype=torch.int64, device=device)
    inexact = torch.zeros(len(names), dtype=torch.int64, device=device)
    chunk = min(_chunk(device), len(flats[names[0]]))
    products = torch.empty(chunk, dtype=torch.int64, device=device)
    reaching = len(names)
    for start in range(0, len(flats[names[0]]), max(chunk, 1)):
        while len(flats[names[reaching - 1]]) <= start:
            reaching -= 1
        factors = mix64_(torch.arange(start, start + chunk, device=device).add_(offset))
        sums = []
        for index, name in enumerate(names[:reaching]):
            bits, rest = from_words(flats[name][start : start + chunk])
            product = torch.mul(bits, factors[: len(bits)], out=products[: len(bits)])
            sums.append(product.sum())
            if rest is not None:
                inexact[index] += rest.sum()
        totals[:reaching] += torch.stack(sums)
    return {
        name: None if rest else digest & MASK64
        for name, digest, rest in zip(names, totals.tolist(), inexact.tolist(), strict=True)
    }


def _digest_or_none(tensor: Tensor, offset: int) -> int | None:
    try:
        return tensor_digest(tensor, offset=offset)
    except ValueError:
        return None


def _chunk(device: torch.device) -> int:
    return _CPU_CHUNK if device.type == "cpu" else _GPU_CHUNK


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
    rows = max(1, _chunk(words.device) // (words.numel() // len(words)))
    for start in range(0, len(words), rows):
        yield start, words[start : start + rows]


def _row_major(shape: torch.Size) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
