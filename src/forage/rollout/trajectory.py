"""What one sample leaves behind: its tokens, who wrote them, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SegmentKind = Literal["prompt", "sampled", "information"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens from one writer, in order of appearance."""

    kind: SegmentKind
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample of one question, from the prompt to its end.

    The arrays run over all tokens, prompt included, and have equal length.

    Attributes:
        token_ids: int32, the ids the engine read or sampled, never tokenised again.
        mask: uint8, 1 where the policy sampled the token, 0 for prompt and passages.
        logprobs: float32, log-probability of each sampled token under the distribution it was
            drawn from; 0 where the mask is 0.
        versions: int32, weight version that sampled each token; -1 where the mask is 0.
        rule: name of the protocol rule that ended the sample (see `forage.agent.protocol`).
        failure: why the sample counts as failed (not as wrong), if it does.
        search_ms: time of each search, in milliseconds.
    """

    question_id: str
    sample: int
    segments: tuple[Segment, ...]
    token_ids: NDArray[np.int32]
    mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    answer: str | None
    reward: float
    exact_match: float
    f1: float
    searches: int
    rule: str
    failure: str | None = None
    search_ms: tuple[float, ...] = field(default=())

    @property
    def version(self) -> int:
        """The oldest weight version that wrote any of it."""
        sampled = self.versions[self.mask == 1]
        return int(sampled.min()) if sampled.size else -1
