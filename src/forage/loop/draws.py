"""Which questions a step asks: a fixed order for each seed, whatever happened before.

Every epoch is a permutation of the training questions. Positions count on across epochs, so a
run that resumes at a position asks exactly what the uninterrupted run would have asked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class QuestionOrder:
    """The endless order in which `questions` training questions are asked, `per_step` at a time.

    No question is asked twice within one step: where a step ends one epoch and begins the next,
    those just asked move to the place right after that step.
    """

    def __init__(self, questions: int, per_step: int, seed: int) -> None:
        if not 1 <= per_step <= questions:
            raise ValueError(f"{per_step} questions per step, but there are {questions}")
        self.questions = questions
        self.per_step = per_step
        self._seed = seed
        self._epochs: list[NDArray[np.int64]] = []

    def take(self, position: int) -> list[int]:
        """The indices of the `per_step` questions from `position` on."""
        epoch, start = divmod(position, self.questions)
        chosen = self._epoch(epoch)[start : start + self.per_step]
        missing = self.per_step - len(chosen)
        if missing:
            chosen = np.concatenate([chosen, self._epoch(epoch + 1)[:missing]])
        return [int(index) for index in chosen]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        while len(self._epochs) <= epoch:
            number = len(self._epochs)
            order = np.random.default_rng([self._seed, number]).permutation(self.questions)
            straddling = number * self.questions % self.per_step
            if straddling:
                order = _put_off(order, self._epochs[-1][-straddling:], self.per_step - straddling)
            self._epochs.append(order)
        return self._epochs[epoch]


def _put_off(order: NDArray[np.int64], asked: NDArray[np.int64], head: int) -> NDArray[np.int64]:
    """`order` with `asked` kept out of its first `head` places, otherwise unchanged."""
    front = order[~np.isin(order, asked)][:head]
    return np.concatenate([front, order[~np.isin(order, front)]])
