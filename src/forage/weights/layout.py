"""Tensors one after another in one flat stretch, which a shard is packed and sent as."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forage.weights.codec import Patch


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor, or a part of it, lies in a stretch.

    Attributes:
        names: of the tensors, in their order.
        starts: positions in the tensors at which the parts start.
        bounds: where each part starts in the stretch, in elements, and the last one ends.
    """

    names: tuple[str, ...]
    starts: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, spans: Mapping[str, range]) -> Layout:
        """The layout of these positions of tensors, in this order."""
        starts = tuple(span.start for span in spans.values())
        return cls(tuple(spans), starts, (0, *itertools.accumulate(map(len, spans.values()))))

    @property
    def size(self) -> int:
        """Elements of the stretch."""
        return self.bounds[-1]

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """A copy of the layout's parts as one stretch, on their device; all of one dtype."""
        return torch.cat([parts[name].reshape(-1) for name in self.names])

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
            which = first + index
            tensor_start = self.starts[which] + start + low - self.bounds[which]
            yield (
                self.names[which],
                Patch(tensor_start, high - low, positions, patch.bits[begin:stop]),
            )


def _edges(patch: Patch, bounds: list[int]) -> list[int]:
    """For each bound, how many of the patch's values lie before it."""
    if patch.positions is None:
        return bounds
    if len(bounds) == 2:
        return [0, len(patch.positions)]
    at = torch.tensor(bounds, dtype=torch.int32, device=patch.positions.device)
    edges: list[int] = torch.searchsorted(patch.positions, at).tolist()
    return edges
