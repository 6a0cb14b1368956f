"""Trajectories to try the driver's bookkeeping on."""

from __future__ import annotations

import numpy as np

from forage.rollout.trajectory import Segment, Trajectory


def trajectory(
    question: str = "q",
    sample: int = 0,
    *,
    reward: float = 0.0,
    failure: str | None = None,
    searches: int = 1,
    prompt: int = 3,
    sampled: int = 4,
    version: int = 0,
    search_ms: tuple[float, ...] = (),
) -> Trajectory:
    """A sample of `prompt` + `sampled` tokens whose exact match and F1 are its reward."""
    length = prompt + sampled
    mask = np.array([0] * prompt + [1] * sampled, np.uint8)
    return Trajectory(
        question_id=question,
        sample=sample,
        segments=(
            Segment("prompt", "ask", prompt),
            Segment("sampled", "<answer>a</answer>", sampled),
        ),
        token_ids=np.arange(length, dtype=np.int32) + 100 * sample,
        mask=mask,
        logprobs=np.where(mask, -0.25, 0.0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        answer="a",
        reward=reward,
        exact_match=reward,
        f1=reward,
        searches=searches,
        rule="answer",
        failure=failure,
        search_ms=search_ms,
    )
