"""Random draws that depend only on what is drawn, never on who draws it or when.

The stream of a sample is named by (seed, purpose, step, question, sample); position i of the
stream is SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators") at that offset. A resumed run, another batch order or another executor draws alike.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)


def stream(seed: int, purpose: str, step: int, question: str, sample: int) -> np.uint64:
    """The 64-bit start of one sample's stream."""
    name = f"{seed}\n{purpose}\n{step}\n{sample}\n{question}"
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big"))


def uniforms(streams: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of stream and position, 53 bits each."""
    z = streams + (positions.astype(np.uint64) + np.uint64(1)) * GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    drawn: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn
