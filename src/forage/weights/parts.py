"""Which part of a policy this process holds, and agreeing with those that hold the rest.

What `fully_shard` leaves on each rank are rows of every parameter: one stretch of the flat tensor.
So every rank publishes its own, and none needs another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from forage.weights.digest import tensor_digests

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of a tensor.

    Attributes:
        rows: as they lie here.
        start: position of their first element in the whole tensor.
    """

    rows: Tensor
    start: int

    @property
    def span(self) -> range:
        """Positions of the elements in the whole tensor."""
        return range(self.start, self.start + self.rows.numel())


def own_parts(tensors: Mapping[str, Tensor]) -> dict[str, Part]:
    """What this rank holds of each tensor; names of which it holds nothing are left out.

    A tensor that is no `DTensor` is held whole.
    """
    parts = {name: _own_part(tensor) for name, tensor in tensors.items() if tensor.numel()}
    return {name: part for name, part in parts.items() if part.rows.numel()}


def _own_part(tensor: Tensor) -> Part:
    if not isinstance(tensor, DTensor):
        return Part(tensor.detach(), 0)
    # As torch.chunk cuts: equal numbers of rows, the last ranks' fewer.
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    row = tensor.numel() // tensor.shape[0]
    start = tensor.device_mesh.get_local_rank() * each * row
    return Part(tensor.to_local().detach(), start)


def part_digests(parts: Mapping[str, Part]) -> dict[str, int]:
    """The digest of each part, all bf16; those of a tensor's parts add up to the tensor's."""
    rows = {name: part.rows for name, part in parts.items()}
    found = tensor_digests(rows, {name: part.start for name, part in parts.items()})
    return {name: digest for name, digest in found.items() if digest is not None}


class Holders:
    """The ranks that hold one policy together, this one among them; alone without `DTensor`s."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Those that `tensors` are split over.

        Raises:
            ValueError: not all are split alike, by rows over the same ranks.
        """
        meshes = {name: t.device_mesh for name, t in tensors.items() if isinstance(t, DTensor)}
        mesh = next(iter(meshes.values()), None)
        for name, tensor in tensors.items() if mesh else ():
            if not isinstance(tensor, DTensor) or tensor.placements != (Shard(0),):
                placed = tensor.placements if isinstance(tensor, DTensor) else "one rank"
                raise ValueError(f"tensor {name!r} lies on {placed}, others are split by rows")
            if meshes[name] != mesh:
                raise ValueError(
                    f"tensor {name!r} is split over {meshes[name]}, others over {mesh}"
                )
        self._group = mesh and mesh.get_group()
        self.rank = dist.get_rank(self._group) if self._group else 0

    def each(self, work: Callable[[], Result]) -> list[Result]:
        """What `work` returns on each of them, by rank.

        Raises:
            Exception: what it raised on the first rank where it failed; on all of them.
        """
        if self._group is None:
            return [work()]
        own: tuple[Any, Exception | None]
        try:
            own = work(), None
        except Exception as error:
            own = None, error
        found: list[Any] = [None] * self._group.size()
        dist.all_gather_object(found, own, group=self._group)
        for _, failure in found:
            if failure is not None:
                raise failure
        return [result for result, _ in found]
