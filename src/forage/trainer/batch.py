"""The training batch as the driver sends it: ragged samples, flattened, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Samples laid end to end; sample i is `[offsets[i], offsets[i + 1])` of the token arrays.

    Attributes:
        token_ids: int32 [tokens].
        mask: uint8 [tokens], 1 where the token was sampled and carries loss.
        logprobs: float32 [tokens], the generation engine's log-probabilities.
        offsets: int64 [samples + 1], 0 first.
        advantages: float32 [samples].
    """

    token_ids: NDArray[np.int32]
    mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    offsets: NDArray[np.int64]
    advantages: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.advantages)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, int64 [samples]."""
        return np.diff(self.offsets)

    def take(self, samples: Sequence[int] | NDArray[np.int64]) -> TrainBatch:
        """The batch of these samples, in this order."""
        chosen = np.asarray(samples, np.int64)
        spans = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in chosen]
        tokens = np.concatenate(spans) if spans else np.empty(0, np.int64)
        return TrainBatch(
            self.token_ids[tokens],
            self.mask[tokens],
            self.logprobs[tokens],
            np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64),
            self.advantages[chosen],
        )

    def share(self, rank: int, size: int) -> TrainBatch:
        """The part of one of `size` trainers; the parts differ little in tokens."""
        return self.take(np.argsort(self.lengths, kind="stable")[rank::size])

    def micro_batches(self, max_tokens: int) -> Iterator[TrainBatch]:
        """Consecutive samples of at most `max_tokens` tokens in all (one sample at the least)."""
        start, held = 0, 0
        for end, length in enumerate(self.lengths):
            if held and held + length > max_tokens:
                yield self.take(range(start, end))
                start, held = end, 0
            held += length
        if held:
            yield self.take(range(start, len(self)))
