"""The trainers as one group: what they reduce, and how the group forms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer for its peers gives up, which breaks the gang."""
PIECE = 1 << 26
"""Elements of a CPU tensor that pass through the GPU at a time."""


class Ranks:
    """Collectives over the trainers of a gang; alone, they are the identity."""

    def __init__(
        self, rank: int, size: int, rendezvous: str, device: torch.device, shard: int = 1
    ) -> None:
        """Join the group. `rendezvous` is rank 0's host:port, new for every generation.

        Every `shard` neighbouring ranks hold one copy of the model together.
        """
        self.rank = rank
        self.size = size
        self.shard = shard
        self._device = device
        self._mesh: DeviceMesh | None = None
        if size > 1:
            dist.init_process_group(
                backend="nccl" if device.type == "cuda" else "gloo",
                init_method=f"tcp://{rendezvous}",
                rank=rank,
                world_size=size,
                timeout=TIMEOUT,
            )
        if shard > 1:
            self._mesh = init_device_mesh(
                device.type, (size // shard, shard), mesh_dim_names=("replicate", "shard")
            )

    @property
    def copy(self) -> int:
        """Which of the copies of the model this rank holds, or a part of it."""
        return self.rank // self.shard

    @property
    def shards(self) -> DeviceMesh | None:
        """The ranks that hold one copy with this one; None if it holds its own."""
        return None if self._mesh is None else self._mesh["shard"]

    def sum_(self, tensor: Tensor) -> None:
        """Add up a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def sum_copies_(self, tensor: Tensor) -> None:
        """Add up a tensor over the copies of the model, in place, wherever it lies.

        Shards of one copy add up what they have in the backward pass already.
        """
        if self.size == self.shard:
            return
        group = None if self._mesh is None else self._mesh["replicate"].get_group()
        if tensor.device.type == self._device.type:
            dist.all_reduce(tensor, group=group)
            return
        for piece in torch.split(tensor, PIECE):
            there = piece.to(self._device)
            dist.all_reduce(there, group=group)
            piece.copy_(there)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Add up float64 numbers over the ranks."""
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        self.sum_(total)
        return total.tolist()

    def most(self, count: int) -> int:
        """The largest of the ranks' counts."""
        found = torch.tensor(count, device=self._device)
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def gather(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """All ranks' values, one after the other; their numbers may differ."""
        if self.size == 1:
            return values
        found: list[NDArray[np.float32] | None] = [None] * self.size
        dist.all_gather_object(found, values)
        return np.concatenate([part for part in found if part is not None])
