"""What a generation engine does: every running row gets one more token a step.

Rows are small integers that the caller picks and reuses after `finish`. An engine reads token
ids and returns token ids; it knows neither text nor protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Draw:
    """One token that a row drew, with its log-probability at the sampling temperature."""

    row: int
    token: int
    logprob: float


class Engine(Protocol):
    """The policy as a machine that draws tokens."""

    def start(self, row: int, prompt: Sequence[int], stream: np.uint64 | None) -> None:
        """Open a row on a prompt. `stream` names its random draws; `None` draws the likeliest."""

    def extend(self, row: int, ids: Sequence[int]) -> None:
        """Let a paused row read `ids` and go on drawing."""

    def pause(self, row: int) -> None:
        """Draw no more for a row until `extend`."""

    def finish(self, row: int) -> None:
        """Forget a row."""

    def step(self) -> list[Draw]:
        """Draw one token for every running row, in row order."""
