"""Two trainers in real processes reduce to one trainer's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trainer_batches import random_batch, small_model

from forage import app
from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner, Tally
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer


def make_learner(ranks: Ranks) -> Learner:
    scorer = Scorer(small_model(0))
    return Learner(
        Policy(scorer.model, learning_rate=1e-2, weight_decay=0.0),
        scorer,
        Scorer(small_model(1)),
        ALGORITHMS["grpo"],
        LossSettings(clip=0.2, kl=0.05),
        ranks,
        temperature=1.0,
        micro_batch_tokens=64,
    )


@app.service(resreq="cpu=0.5", autoscale=False, warmup=2)
class Rank:
    """One trainer that shows its gradient."""

    def __init__(self) -> None:
        context = app.context()
        self.ranks = Ranks(context.rank, context.size, context.rendezvous, torch.device("cpu"))

    def gradient(self, shares: list[TrainBatch]) -> tuple[NDArray[np.float32], float]:
        """The reduced gradient where rank i holds `shares[i]`."""
        learner = make_learner(self.ranks)
        denominator = learner.accumulate(shares[self.ranks.rank], Tally())
        return learner.policy.gradient.numpy(), denominator

    def gather(self, count: int) -> NDArray[np.float32]:
        """`count` values of rank 0 and twice as many of rank 1, gathered."""
        own = np.full(count * (1 + self.ranks.rank), self.ranks.rank, np.float32)
        return self.ranks.gather(own)


@pytest.fixture(scope="module")
def gang() -> Any:
    with app.init("trainer-gang", resources="cpu=1"):
        yield Rank.remote()


BATCH = random_batch([9, 40, 12, 3, 25, 18, 30], seed=8)
EVERYONE = np.arange(len(BATCH))


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([BATCH.share(0, 2), BATCH.share(1, 2)], id="as dealt"),
        pytest.param([BATCH.take([1]), BATCH.take([0, 2, 3, 4, 5, 6])], id="unequal tokens"),
        pytest.param([BATCH.take([]), BATCH.take(EVERYONE)], id="rank 0 empty"),
        pytest.param([BATCH.take(EVERYONE), BATCH.take([])], id="rank 1 empty"),
    ],
)
def test_two_trainers_have_the_gradient_of_one(gang, shares):
    alone = make_learner(Ranks(0, 1, "", torch.device("cpu")))
    alone.accumulate(BATCH, Tally())
    expected = alone.policy.gradient.numpy()
    for gradient, denominator in gang.gradient.broadcast(shares).result():
        assert denominator == BATCH.mask.sum()
        assert np.linalg.norm(gradient - expected) < 1e-5 * np.linalg.norm(expected)


def test_ranks_gather_unequal_numbers_of_values(gang):
    for found in gang.gather.broadcast(3).result():
        assert found.tolist() == [0.0] * 3 + [1.0] * 6
