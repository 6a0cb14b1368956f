"""A policy sharded over processes is the policy of one, and so are its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_batches import random_batch, small_model

from forage import app
from forage.model.load import save_policy
from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner, Tally
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer

CPU = torch.device("cpu")


def make_learner(ranks: Ranks) -> Learner:
    models = small_model(0), small_model(1).requires_grad_(False)
    scorers = [Scorer(model, ranks.shards) for model in models]
    return Learner(
        Policy(scorers[0].model, learning_rate=1e-2, weight_decay=0.0),
        *scorers,
        ALGORITHMS["grpo"],
        LossSettings(clip=0.2, kl=0.05),
        ranks,
        temperature=1.0,
        micro_batch_tokens=64,
    )


@app.service(resreq="cpu=0.25", autoscale=False, warmup=4)
class Rank:
    """One trainer of four, two of which hold a copy together."""

    def __init__(self) -> None:
        context = app.context()
        self.ranks = Ranks(context.rank, context.size, context.rendezvous, CPU, shard=2)
        self.learner = make_learner(self.ranks)

    def gradient(self, shares: list[TrainBatch]) -> list[Any]:
        """The reduced gradient of this rank's part of each parameter."""
        self.learner.accumulate(shares[self.ranks.rank], Tally())
        policy = self.learner.policy
        found = [np.array(master.grad.numpy()) for master in policy.masters]
        policy.gradient.zero_()
        return found

    def update(self, batches: list[TrainBatch]) -> list[float]:
        """Gradient norms of updates on `batches`."""
        return [self.learner.update(batch, 1, 1.0)[1] for batch in batches]

    def save(self, folder: Path) -> None:
        writes = self.ranks.rank == 0
        tensors = self.learner.policy.whole(keep=writes)
        self.learner.policy.save(folder, write=writes)
        if writes:
            save_policy(self.learner.policy.model, _NoTokenizer(), folder / "policy", tensors)

    def restore(self, folder: Path) -> None:
        self.learner.policy.restore(folder)

    def elements(self) -> tuple[int, int]:
        """Of the masters here, and of the model."""
        policy = self.learner.policy
        return policy.gradient.numel(), sum(map(torch.numel, policy.parameters))


class _NoTokenizer:
    """Saved beside a policy whose tokenizer is of no interest."""

    def save_pretrained(self, folder: Path) -> None:
        pass


@pytest.fixture(scope="module")
def gang() -> Any:
    with app.init("sharded", resources="cpu=1"):
        yield Rank.remote()


BATCH = random_batch([9, 40, 12, 3, 25, 18, 30], seed=8)
NOBODY, EVERYONE = BATCH.take([]), BATCH.take(np.arange(len(BATCH)))
BATCHES = [random_batch([10, 20, 31, 7], seed=seed) for seed in range(4)]


def one_trainer(batches: list[TrainBatch]) -> Learner:
    learner = make_learner(Ranks(0, 1, "", CPU))
    for batch in batches:
        learner.update(batch, 1, 1.0)
    return learner


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([BATCH.share(rank, 4) for rank in range(4)], id="as dealt"),
        pytest.param([NOBODY, EVERYONE, NOBODY, NOBODY], id="one has all"),
        pytest.param([BATCH.take([0]), NOBODY, NOBODY, BATCH.take(range(1, 7))], id="unequal"),
    ],
)
def test_shards_of_two_copies_have_the_gradient_of_one_trainer(gang, shares):
    alone = make_learner(Ranks(0, 1, "", CPU))
    alone.accumulate(BATCH, Tally())
    found = gang.gradient.broadcast(shares).result()
    for copy in (found[:2], found[2:]):
        whole = np.concatenate([np.concatenate(parts).ravel() for parts in zip(*copy, strict=True)])
        expected = alone.policy.gradient.numpy()
        assert np.linalg.norm(whole - expected) < 1e-5 * np.linalg.norm(expected)


def test_each_holds_half(gang):
    for own, whole in gang.elements.broadcast().result():
        assert own == whole / 2


def test_checkpoints_move_between_one_trainer_and_shards(gang, tmp_path):
    two, mixed, four = tmp_path / "two", tmp_path / "mixed", tmp_path / "four"
    for folder in (two, mixed, four):
        folder.mkdir()
    one_trainer(BATCHES[:2]).policy.save(two)
    gang.restore.broadcast(two).result()
    gang.update.broadcast(BATCHES[2:3]).result()
    gang.save.broadcast(mixed).result()
    last = make_learner(Ranks(0, 1, "", CPU))
    last.policy.restore(mixed)
    last.update(BATCHES[3], 1, 1.0)
    straight = one_trainer(BATCHES)
    for ours, theirs in zip(last.policy.masters, straight.policy.masters, strict=True):
        assert torch.dist(ours, theirs) < 1e-4 * theirs.norm()
    saved = load_file(mixed / "policy" / "model.safetensors")
    masters = load_file(mixed / "masters.safetensors")
    assert saved.keys() == masters.keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, masters[name].to(torch.bfloat16))
