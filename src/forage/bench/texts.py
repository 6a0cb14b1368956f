"""Made-up text: as many different words as it takes, some of them often and most of them rarely."""

from __future__ import annotations

from itertools import product

import numpy as np

from forage.agent.types import Passage

WORDS = [
    "".join(parts) for parts in product(("ba", "ke", "lo", "mi", "nu", "ra", "si", "to"), repeat=4)
]
"""4,096 words of four syllables."""


def made_up_passages(count: int, words: int, seed: int) -> list[Passage]:
    """`count` passages of `words` words each; the n-th commonest word is n times as rare."""
    draws = np.random.default_rng(seed)
    share = 1 / np.arange(1, len(WORDS) + 1)
    chosen = draws.choice(len(WORDS), (count, words + 2), p=share / share.sum())
    return [
        Passage(
            " ".join(WORDS[word] for word in line[:2]), " ".join(WORDS[word] for word in line[2:])
        )
        for line in chosen
    ]
