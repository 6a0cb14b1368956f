"""From the samples of a step to the batch that trainers read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forage.rollout.trajectory import Trajectory
from forage.trainer.batch import TrainBatch


def make_batch(
    trajectories: Sequence[Trajectory], advantages: NDArray[np.float64]
) -> TrainBatch | None:
    """The samples that have an advantage, end to end in their order; None if there are none.

    Args:
        trajectories: question-major.
        advantages: float64 [questions, samples], NaN for samples to leave out.
    """
    flat = advantages.reshape(-1)
    if len(flat) != len(trajectories):
        raise ValueError(f"{len(trajectories)} trajectories, {len(flat)} advantages")
    kept = [i for i, advantage in enumerate(flat) if not np.isnan(advantage)]
    if not kept:
        return None
    chosen = [trajectories[i] for i in kept]
    lengths = [len(trajectory.token_ids) for trajectory in chosen]
    return TrainBatch(
        token_ids=np.concatenate([trajectory.token_ids for trajectory in chosen]),
        mask=np.concatenate([trajectory.mask for trajectory in chosen]),
        logprobs=np.concatenate([trajectory.logprobs for trajectory in chosen]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        advantages=flat[kept].astype(np.float32),
    )
