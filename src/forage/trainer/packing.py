"""Samples laid end to end for one forward pass, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forage.trainer.batch import TrainBatch


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch on the device that computes; `sampled` counts the tokens that carry loss.

    Attributes:
        ids: int64 [1, tokens].
        positions: int64 [1, tokens], from 0 in each sample.
        bounds: int32 [samples + 1], where samples begin and end.
        longest: tokens of the longest sample.
        drawn_from: int64 [sampled], the position before each sampled token, where it was drawn.
        targets: int64 [sampled], the sampled tokens.
        engine: fp32 [sampled], the generation engine's log-probabilities.
        advantages: fp32 [sampled], of the sample that each belongs to.
    """

    ids: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int
    drawn_from: Tensor
    targets: Tensor
    engine: Tensor
    advantages: Tensor


def pack(batch: TrainBatch, device: torch.device) -> Packed:
    """Lay the samples of `batch`, at least one, end to end on `device`."""
    lengths = batch.lengths
    sampled = batch.mask.astype(np.bool_)
    positions = np.arange(len(batch.token_ids)) - np.repeat(batch.offsets[:-1], lengths)
    ids = batch.token_ids.astype(np.int64)

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Packed(
        ids=there(ids[None]),
        positions=there(positions[None]),
        bounds=there(batch.offsets.astype(np.int32)),
        longest=int(lengths.max()),
        drawn_from=there(np.flatnonzero(sampled) - 1),
        targets=there(ids[sampled]),
        engine=there(batch.logprobs[sampled]),
        advantages=there(np.repeat(batch.advantages, lengths)[sampled]),
    )


NOTHING = TrainBatch(
    np.zeros(2, np.int32),
    np.zeros(2, np.uint8),
    np.zeros(2, np.float32),
    np.array([0, 2]),
    np.zeros(1, np.float32),
)
"""A sample without loss: what a rank computes on while others have samples left."""
