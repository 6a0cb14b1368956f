"""A key-value cache whose rows have lengths of their own.

Every row writes at its own positions, so rows neither wait for one another nor need padding
that attention would have to read. Position 0 is a bin for padding; real tokens start at 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROW = 128
"""Positions are added this many at a time."""


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [rows, heads, positions, width]."""

    def __init__(self, shared: Window) -> None:
        super().__init__()
        self.window = shared

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate on the first write, with the shapes that the model uses."""
        window = self.window
        heads, width = key_states.shape[1], key_states.shape[3]
        shape = (window.rows, heads, window.capacity, width)
        self.keys = key_states.new_zeros(shape)
        self.values = value_states.new_zeros((*shape[:3], value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write this step's tokens and return all that the window's rows may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        if self.keys.shape[2] < window.capacity:
            self.keys = _longer(self.keys, window.capacity)
            self.values = _longer(self.values, window.capacity)
        self.keys[window.row_index, :, window.positions] = key_states.transpose(1, 2)
        self.values[window.row_index, :, window.positions] = value_states.transpose(1, 2)
        keys, values = self.keys[:, :, : window.length], self.values[:, :, : window.length]
        if window.selected is None:
            return keys, values
        return keys[window.selected], values[window.selected]

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, renumbered in this order."""
        if self.is_initialized:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what is attended to."""
        return self.window.length, 0

    def get_seq_length(self) -> int:
        """Length of what is attended to."""
        return self.window.length

    def get_max_length(self) -> int:
        """No maximum."""
        return -1


class Window:
    """Which rows and positions the running forward pass writes and reads.

    Attributes:
        rows: rows held.
        capacity: positions allocated, the bin included.
        length: positions attended to.
        row_index: int64 [selected, 1].
        positions: int64 [selected, tokens], where each token is written.
        selected: int64 [selected], or None for all rows in order.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.capacity = GROW
        self.length = 0
        self.row_index = torch.empty(0, 1, dtype=torch.int64)
        self.positions = torch.empty(0, 0, dtype=torch.int64)
        self.selected: Tensor | None = None


class RaggedCache(Cache):  # type: ignore[misc]
    """The layers of a model over one shared window."""

    def __init__(self, layers: int, rows: int) -> None:
        self.window = Window(rows)
        super().__init__(layers=[RaggedLayer(self.window) for _ in range(layers)])

    def aim(self, rows: Tensor, positions: Tensor, length: int, every_row: bool) -> None:
        """Set what the next forward pass writes and reads."""
        window = self.window
        window.row_index, window.positions, window.length = rows[:, None], positions, length
        window.selected = None if every_row else rows
        while window.capacity < length:
            window.capacity += GROW

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, renumbered in this order."""
        self.window.rows = len(rows)
        for layer in self.layers:
            layer.select(rows)


def _longer(states: Tensor, capacity: int) -> Tensor:
    rows, heads, old, width = states.shape
    return torch.cat([states, states.new_zeros(rows, heads, capacity - old, width)], dim=2)
