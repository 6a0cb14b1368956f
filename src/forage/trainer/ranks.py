"""The trainers as one group: what they reduce, and how the group forms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer for its peers gives up, which breaks the gang."""


class Ranks:
    """Collectives over the trainers of a gang; alone, they are the identity."""

    def __init__(self, rank: int, size: int, rendezvous: str, device: torch.device) -> None:
        """Join the group. `rendezvous` is rank 0's host:port, new for every generation."""
        self.rank = rank
        self.size = size
        self._device = device
        if size > 1:
            dist.init_process_group(
                backend="nccl" if device.type == "cuda" else "gloo",
                init_method=f"tcp://{rendezvous}",
                rank=rank,
                world_size=size,
                timeout=TIMEOUT,
            )

    def sum_(self, tensor: Tensor) -> None:
        """Add up a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Add up float64 numbers over the ranks."""
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        self.sum_(total)
        return [float(value) for value in total]

    def gather(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """All ranks' values, one after the other; their numbers may differ."""
        if self.size == 1:
            return values
        found: list[NDArray[np.float32] | None] = [None] * self.size
        dist.all_gather_object(found, values)
        return np.concatenate([part for part in found if part is not None])
