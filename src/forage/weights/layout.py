"""Tensors one after another in one flat stretch, which a shard is packed and sent as."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forage.weights.codec import Patch


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies in a stretch.

    Attributes:
        names, shapes: of the tensors, in their order.
        bounds: where each tensor starts, in elements, and the last one ends.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout of tensors in this order."""
        sizes = map(math.prod, shapes.values())
        bounds = (0, *itertools.accumulate(sizes))
        return cls(tuple(shapes), tuple(shapes.values()), bounds)

    @property
    def size(self) -> int:
        """Elements of the stretch."""
        return self.bounds[-1]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A copy of the layout's tensors as one stretch, on their device; all of one dtype."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def cut(self, patch: Patch) -> Iterator[tuple[str, Patch]]:
        """What a patch of the stretch means for each tensor, by name; waits for its device."""
        start, end = patch.start, patch.start + patch.length
        first = bisect_right(self.bounds, start) - 1
        last = bisect_left(self.bounds, end)
        bounds = [max(start, bound) - start for bound in self.bounds[first:last]]
        bounds.append(patch.length)
        edges = _edges(patch, bounds)
        for index, (low, high) in enumerate(itertools.pairwise(bounds)):
            begin, stop = edges[index : index + 2]
            if begin == stop:
                continue
            positions = patch.positions
            if positions is not None:
                positions = positions[begin:stop] - low if low else positions[begin:stop]
            tensor_start = start + low - self.bounds[first + index]
            bits = patch.bits[begin:stop]
            yield self.names[first + index], Patch(tensor_start, high - low, positions, bits)


def _edges(patch: Patch, bounds: list[int]) -> list[int]:
    """For each bound, how many of the patch's values lie before it."""
    if patch.positions is None:
        return bounds
    if len(bounds) == 2:
        return [0, len(patch.positions)]
    at = torch.tensor(bounds, dtype=torch.int32, device=patch.positions.device)
    edges: list[int] = torch.searchsorted(patch.positions, at).tolist()
    return edges
