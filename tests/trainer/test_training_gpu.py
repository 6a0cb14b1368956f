"""Rollouts and trainers on CUDA: the same numbers as on a CPU, within bf16."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from trainer_batches import random_batch, small_model

from forage import app
from forage.rollout.draws import stream
from forage.rollout.torch_engine import TorchEngine
from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner, Tally
from forage.trainer.logprobs import score
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def on_gpu(seed: int):
    return small_model(seed).to("cuda", torch.bfloat16)


def learner(model, ranks: Ranks) -> Learner:
    return Learner(
        Policy(model, learning_rate=1e-2, weight_decay=0.0),
        None,
        ALGORITHMS["grpo"],
        LossSettings(clip=0.2, kl=0.0),
        ranks,
        temperature=1.0,
        micro_batch_tokens=64,
    )


def test_engine_and_trainer_agree_on_an_unchanged_policy():
    model, rows, length = on_gpu(0), 64, 40
    engine = TorchEngine(model, temperature=1.0)
    ids = [[3, 4, 5] for _ in range(rows)]
    logprobs = [[0.0] * 3 for _ in range(rows)]
    for row in range(rows):
        engine.start(row, ids[row], stream(0, "test", 0, "q", row))
    for _ in range(length):
        for draw in engine.step():
            ids[draw.row].append(draw.token)
            logprobs[draw.row].append(draw.logprob)
    size = length + 3
    batch = TrainBatch(
        np.array(ids, np.int32).ravel(),
        np.tile(np.array([0] * 3 + [1] * length, np.uint8), rows),
        np.array(logprobs, np.float32).ravel(),
        np.arange(rows + 1, dtype=np.int64) * size,
        np.zeros(rows, np.float32),
    )
    with torch.no_grad():
        ours = score(model, batch, temperature=1.0).logprobs.cpu().numpy()
    mismatch = np.abs(ours - batch.logprobs[batch.mask == 1])
    assert mismatch.mean() < 0.02
    assert np.quantile(mismatch, 0.99) < 0.1


def test_gradient_is_that_of_the_cpu_within_bf16():
    batch = random_batch([9, 40, 12, 3, 25], seed=8)
    expected = learner(small_model(0), Ranks(0, 1, "", torch.device("cpu")))
    expected.accumulate(batch, Tally())
    ours = learner(on_gpu(0), Ranks(0, 1, "", torch.device("cuda")))
    ours.accumulate(batch, Tally())
    difference = ours.policy.gradient.cpu() - expected.policy.gradient
    assert difference.norm() < 0.03 * expected.policy.gradient.norm()


@app.service(resreq="cpu=1,gpu=1", autoscale=False, warmup=2)
class Rank:
    """One trainer of two, each on a GPU of its own."""

    def __init__(self) -> None:
        context = app.context()
        device = torch.device("cuda", 0)
        self.ranks = Ranks(context.rank, context.size, context.rendezvous, device)

    def gradient(self, shares: list[TrainBatch]):
        trainer = learner(on_gpu(0), self.ranks)
        trainer.accumulate(shares[self.ranks.rank], Tally())
        return trainer.policy.gradient.cpu().numpy()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_two_trainers_over_nccl_have_the_gradient_of_one():
    batch = random_batch([9, 40, 12, 3, 25, 18, 30], seed=8)
    alone = learner(on_gpu(0), Ranks(0, 1, "", torch.device("cuda")))
    alone.accumulate(copy.deepcopy(batch), Tally())
    expected = alone.policy.gradient.cpu().numpy()
    everyone, nobody = batch.take(np.arange(len(batch))), batch.take([])
    splits = [[batch.share(0, 2), batch.share(1, 2)], [everyone, nobody], [nobody, everyone]]
    with app.init("nccl"):
        gang = Rank.remote()
        for shares in splits:
            for gradient in gang.gradient.broadcast(shares).result():
                difference = np.linalg.norm(gradient - expected)
                assert difference < 1e-2 * np.linalg.norm(expected)
