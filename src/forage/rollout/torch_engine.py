"""Generation with plain PyTorch: any causal model of transformers, on a CPU or one GPU.

Rows that draw advance together, one token a step. Rows that have something to read (a prompt,
passages) read all of it in one pass of their own first. For the same calls in the same order the
result is the same, bit for bit, on a CPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from forage.rollout.draws import uniforms
from forage.rollout.engine import Draw
from forage.rollout.ragged_cache import RaggedCache
from forage.weights.policy import policy_tensors

READ_TOKENS = 8192
"""Tokens that one reading pass takes, padding included, unless a single row has more."""

COMPACT_BELOW = 0.75
"""Rows of the cache are dropped once the share in use falls below this."""


@dataclass(slots=True)
class Row:
    """One sequence: what it has yet to read, how long it is, and whether it draws."""

    stream: np.uint64 | None
    unread: list[int] = field(default_factory=list)
    length: int = 0
    draws: bool = True


class TorchEngine:
    """An `Engine` over a transformers model; the model's weights may change between calls."""

    reproducible = True

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        """Draw from `model` at `temperature` (> 0)."""
        self.model = model
        self.temperature = temperature
        self._rows: dict[int, Row] = {}
        self._slots: dict[int, int] = {}
        self._cache: RaggedCache | None = None
        self._device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def start(self, row: int, prompt: Sequence[int], stream: np.uint64 | None) -> None:
        """See `Engine.start`."""
        self._rows[row] = Row(stream, list(prompt))

    def extend(self, row: int, ids: Sequence[int]) -> None:
        """See `Engine.extend`."""
        self._rows[row].unread += ids
        self._rows[row].draws = True

    def pause(self, row: int) -> None:
        """See `Engine.pause`."""
        self._rows[row].draws = False

    def finish(self, row: int) -> None:
        """See `Engine.finish`."""
        del self._rows[row]
        self._slots.pop(row, None)
        if not self._rows:
            self._cache = None

    def tensors(self) -> dict[str, Tensor]:
        """See `Engine.tensors`."""
        return policy_tensors(self.model)

    def weights_changed(self) -> None:
        """See `Engine.weights_changed`: rows keep what they read, new ones share nothing."""

    @torch.inference_mode()
    def step(self) -> list[Draw]:
        """See `Engine.step`: every running row draws, in row order."""
        drawing = sorted(row for row, state in self._rows.items() if state.draws)
        if not drawing:
            return []
        self._place(drawing)
        readers = [row for row in drawing if len(self._rows[row].unread) > 1]
        stepping = [row for row in drawing if len(self._rows[row].unread) == 1]
        logits: dict[int, Tensor] = {}
        for chunk in self._chunks(readers):
            logits.update(zip(chunk, self._read(chunk), strict=True))
        if stepping:
            logits.update(zip(stepping, self._advance(stepping), strict=True))
        return self._draw(drawing, torch.stack([logits[row] for row in drawing]))

    def _place(self, drawing: list[int]) -> None:
        """Give every drawing row a slot of the cache; drop slots that nobody uses any more."""
        new = [row for row in drawing if row not in self._slots]
        kept = sorted(self._slots, key=self._slots.__getitem__)
        held = self._cache.window.rows if self._cache else 0
        if not new and len(kept) >= COMPACT_BELOW * held:
            return
        if self._cache is None:
            self._cache = RaggedCache(self.model.config.num_hidden_layers, len(new))
        else:
            # New rows take over any slot's memory: nothing of it is read before it is written.
            source = [self._slots[row] for row in kept] + [0] * len(new)
            self._cache.select(torch.tensor(source, device=self._device))
        self._slots = {row: slot for slot, row in enumerate(kept + new)}

    def _chunks(self, readers: list[int]) -> list[list[int]]:
        """Readers in groups of at most `READ_TOKENS`, of similar lengths."""
        chunks: list[list[int]] = []
        for row in sorted(readers, key=lambda row: (len(self._rows[row].unread), row)):
            width = len(self._rows[row].unread)
            if chunks and (len(chunks[-1]) + 1) * width <= READ_TOKENS:
                chunks[-1].append(row)
            else:
                chunks.append([row])
        return chunks

    def _read(self, rows: list[int]) -> Tensor:
        """Read all unread tokens of `rows`; logits after the last of each, [rows, vocabulary]."""
        width = max(len(self._rows[row].unread) for row in rows)
        ids = np.zeros((len(rows), width), np.int64)
        positions = np.zeros((len(rows), width), np.int64)
        for line, row in enumerate(rows):
            state = self._rows[row]
            count = len(state.unread)
            ids[line, width - count :] = state.unread
            positions[line, width - count :] = 1 + np.arange(state.length, state.length + count)
        slots = np.array([self._slots[row] for row in rows])
        return self._forward(rows, slots, ids, positions, every_row=False)

    def _advance(self, rows: list[int]) -> Tensor:
        """Read one token in each of `rows`; the other slots read padding beside them."""
        assert self._cache is not None
        held = self._cache.window.rows
        ids = np.zeros((held, 1), np.int64)
        positions = np.zeros((held, 1), np.int64)
        slots = [self._slots[row] for row in rows]
        ids[slots, 0] = [self._rows[row].unread[0] for row in rows]
        positions[slots, 0] = [1 + self._rows[row].length for row in rows]
        logits = self._forward(rows, np.arange(held), ids, positions, every_row=True)
        return logits[torch.tensor(slots, device=self._device)]

    def _forward(
        self,
        rows: list[int],
        slots: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        every_row: bool,
    ) -> Tensor:
        """One pass of the model; logits at the last column, fp32 [lines, vocabulary]."""
        assert self._cache is not None
        where = torch.from_numpy(positions).to(self._device)
        length = int(positions.max()) + 1
        self._cache.aim(torch.from_numpy(slots).to(self._device), where, length, every_row)
        # Padding (position 0) may look at the bin alone: a row of nothing would be NaN.
        keys = torch.arange(length, device=self._device)
        mask = (keys <= where[..., None]) & ((keys > 0) | (where[..., None] == 0))
        output = self.model(
            input_ids=torch.from_numpy(ids).to(self._device),
            position_ids=(where - 1).clamp(min=0),
            attention_mask=mask[:, None],
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        for row in rows:
            self._rows[row].length += len(self._rows[row].unread)
            self._rows[row].unread = []
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _draw(self, rows: list[int], logits: Tensor) -> list[Draw]:
        """Draw each row's next token from its logits, [rows, vocabulary]."""
        logprobs = torch.log_softmax(logits / self.temperature, dim=-1)
        tokens = logits.argmax(dim=-1)
        sampled = [line for line, row in enumerate(rows) if self._rows[row].stream is not None]
        if sampled:
            tokens[sampled] = self._sample([rows[line] for line in sampled], logprobs[sampled])
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        draws = [
            Draw(row, token, logprob)
            for row, token, logprob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True)
        ]
        for draw in draws:
            self._rows[draw.row].unread = [draw.token]
        return draws

    def _sample(self, rows: list[int], logprobs: Tensor) -> Tensor:
        """Invert the cumulative distribution at each row's next uniform number."""
        streams = np.array([self._rows[row].stream for row in rows], np.uint64)
        positions = np.array([self._rows[row].length for row in rows], np.int64)
        at = torch.from_numpy(uniforms(streams, positions)).to(self._device)
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        found = torch.searchsorted(cumulative, at[:, None] * cumulative[:, -1:], right=True)
        return found[:, 0].clamp(max=logprobs.shape[1] - 1)
