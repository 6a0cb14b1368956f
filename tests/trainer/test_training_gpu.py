"""Rollouts and trainers on CUDA: the same numbers as on a CPU, within bf16."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from trainer_batches import random_batch, small_model

from forage import app
from forage.rollout.draws import stream
from forage.rollout.torch_engine import TorchEngine
from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner, Tally
from forage.trainer.packing import pack
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer
from forage.weights.policy import policy_digest
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
LENGTHS = [9, 40, 12, 3, 25, 18, 30]


def in_bf16(seed: int):
    """A policy as the trainers load it: bf16 parameters, fp32 buffers."""
    model = small_model(seed)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    return model


def on_gpu(seed: int):
    return in_bf16(seed).to(CUDA)


def learner(
    model,
    ranks: Ranks,
    *,
    shards: DeviceMesh | None = None,
    fast: bool = False,
    recompute: int = 0,
    **policy,
) -> Learner:
    scorer = Scorer(model, shards or ranks.shards)
    if fast:
        scorer.compile_layers()
    scorer.recompute(recompute)
    return Learner(
        Policy(scorer.model, learning_rate=1e-2, weight_decay=0.0, **policy),
        scorer,
        None,
        ALGORITHMS["grpo"],
        LossSettings(clip=0.2, kl=0.0),
        ranks,
        temperature=1.0,
        micro_batch_tokens=64,
    )


def alone(device: torch.device) -> Ranks:
    return Ranks(0, 1, "", device)


def test_engine_and_trainer_agree_on_an_unchanged_policy():
    model, rows, length = on_gpu(0), 64, 40
    engine = TorchEngine(copy.deepcopy(model), temperature=1.0)
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
        ours = Scorer(model)(pack(batch, CUDA), 1.0)[0].cpu().numpy()
    mismatch = np.abs(ours - batch.logprobs[batch.mask == 1])
    assert mismatch.mean() < 0.02
    assert np.quantile(mismatch, 0.99) < 0.1


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"fast": True}, id="compiled"),
        pytest.param({"fast": True, "recompute": 1}, id="compiled, first layer computed twice"),
        pytest.param({"optimizer_device": CPU}, id="optimizer on the CPU"),
    ],
)
def test_gradient_is_that_of_the_cpu_within_bf16(options):
    batch = random_batch(LENGTHS, seed=8)
    expected = learner(small_model(0), alone(CPU))
    expected.accumulate(batch, Tally())
    ours = learner(on_gpu(0), alone(CUDA), **options)
    ours.accumulate(batch, Tally())
    difference = ours.policy.gradient.cpu() - expected.policy.gradient
    assert difference.norm() < 0.03 * expected.policy.gradient.norm()


def test_optimizer_on_the_cpu_makes_the_same_policy():
    ours = learner(on_gpu(0), alone(CUDA))
    theirs = learner(on_gpu(0), alone(CUDA), optimizer_device=CPU)
    for seed in range(3):
        for each in (ours, theirs):
            each.update(random_batch(LENGTHS, seed), minibatches=1, max_norm=1.0)
    for name, tensor in ours.policy.tensors().items():
        apart = (tensor - theirs.policy.tensors()[name]).float().norm()
        assert apart < 1e-2 * tensor.float().norm()
    for master, parameter in zip(theirs.policy.masters, theirs.policy.parameters, strict=True):
        assert torch.equal(parameter.cpu(), master.to(torch.bfloat16))


@pytest.fixture
def only_rank() -> Iterator[DeviceMesh]:
    """NCCL, with nobody else in the group."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cuda", (1,))
    dist.destroy_process_group()


def test_a_sharded_policy_moves_to_the_gpu_trains_there_and_is_published(only_rank):
    batch = random_batch(LENGTHS, seed=8)
    plain = learner(on_gpu(0), alone(CUDA), fast=True)
    sharded = learner(in_bf16(0), alone(CUDA), shards=only_rank, fast=True)
    assert all(isinstance(parameter, DTensor) for parameter in sharded.policy.parameters)
    for each in (plain, sharded):
        each.accumulate(batch, Tally())
    apart = sharded.policy.gradient - plain.policy.gradient
    assert apart.norm() < 1e-2 * plain.policy.gradient.norm()
    with app.init("sharded-gpu", resources="cpu=1"):
        publisher = Publisher("policy")
        target = {name: torch.zeros_like(t) for name, t in plain.policy.tensors().items()}
        for version in (1, 2):
            publisher.publish(sharded.policy.tensors(), version)
            subscriber = Subscriber(publisher.manifest_ref, device=CUDA)
            subscriber.apply(subscriber.fetch(version), target)
            for name, tensor in sharded.policy.whole(keep=True).items():
                assert torch.equal(target[name].cpu(), tensor)
            sharded.policy.step(1.0)
    assert policy_digest(sharded.policy.tensors()) == policy_digest(sharded.policy.whole(keep=True))


@app.service(resreq="cpu=1,gpu=1", autoscale=False, warmup=2)
class Rank:
    """One trainer of two, each on a GPU of its own."""

    def __init__(self, shard: int) -> None:
        context = app.context()
        device = torch.device("cuda", 0)
        self.ranks = Ranks(context.rank, context.size, context.rendezvous, device, shard)
        model = in_bf16(0) if shard > 1 else on_gpu(0)
        self.trainer = learner(model, self.ranks, fast=shard > 1)

    def gradient(self, shares: list[TrainBatch]):
        """The reduced gradient, of this rank's part where the policy is sharded."""
        self.trainer.policy.gradient.zero_()
        self.trainer.accumulate(shares[self.ranks.rank], Tally())
        return [master.grad.cpu().numpy() for master in self.trainer.policy.masters]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
@pytest.mark.parametrize("shard", [1, 2])
def test_two_trainers_over_nccl_have_the_gradient_of_one(shard):
    batch = random_batch(LENGTHS, seed=8)
    one = learner(on_gpu(0), alone(CUDA), fast=shard > 1)
    one.accumulate(batch, Tally())
    expected = np.concatenate([master.grad.cpu().numpy().ravel() for master in one.policy.masters])
    everyone, nobody = batch.take(np.arange(len(batch))), batch.take([])
    splits = [[batch.share(0, 2), batch.share(1, 2)], [everyone, nobody], [nobody, everyone]]
    with app.init("nccl"):
        gang = Rank.remote(shard)
        for shares in splits:
            found = gang.gradient.broadcast(shares).result()
            wholes = [list(map(np.concatenate, zip(*found, strict=True)))] if shard == 2 else found
            for whole in wholes:
                difference = np.concatenate([part.ravel() for part in whole]) - expected
                assert np.linalg.norm(difference) < 1e-2 * np.linalg.norm(expected)
