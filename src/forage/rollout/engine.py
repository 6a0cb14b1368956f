"""What a generation engine does: running rows get one more token a step.

Rows are small integers that the caller picks and reuses after `finish`. An engine reads token
ids and returns token ids; it knows neither text nor protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Draw(NamedTuple):
    """One token that a row drew, with its log-probability at the sampling temperature."""

    row: int
    token: int
    logprob: float


class Engine(Protocol):
    """The policy as a machine that draws tokens. One thread uses it at a time."""

    reproducible: bool
    """Whether the same calls in the same order draw the same tokens, bit for bit, on a CPU."""

    def start(self, row: int, prompt: Sequence[int], stream: np.uint64 | None) -> None:
        """Open a row on a prompt. `stream` names its random draws; `None` draws the likeliest."""

    def extend(self, row: int, ids: Sequence[int]) -> None:
        """Let a paused row read `ids` and go on drawing."""

    def pause(self, row: int) -> None:
        """Draw no more for a row until `extend`."""

    def finish(self, row: int) -> None:
        """Forget a row."""

    def step(self) -> list[Draw]:
        """Draw one token for running rows: for every one, or for those that are ready.

        A row draws at most once a step. May be empty while rows are being read or fetched.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The weights by checkpoint name, each tied one once; written in place to change them.

        Rows must be finished or paused, and `weights_changed` called afterwards.
        """

    def weights_changed(self) -> None:
        """Forget whatever was computed with other weights.

        Raises:
            RuntimeError: if the engine refuses to.
        """
