"""Trainer and rollout in processes of their own, and a trainer that dies while it publishes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from forage import app
from forage.weights import PublishReport
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber


def policy_of(version: int) -> dict[str, Tensor]:
    """Five tensors; each version moves every tenth of their values."""
    policy = {}
    for index in range(5):
        bits = torch.arange(40_000).to(torch.int16) + index
        bits[version::10] += version
        policy[f"layer.{index}"] = bits.view(torch.bfloat16)
    return policy


class FatalTensor(Tensor):
    """Kills its process where it is packed, once the four tensors before it are in the cache."""

    manifest: app.Ref | None = None

    def reshape(self, *shape: int) -> Tensor:
        while new_parts(FatalTensor.manifest)[:4] != [1, 1, 1, 1]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        return self


def new_parts(manifest: app.Ref | None) -> list[int]:
    """How many parts each shard holds that the manifest doesn't count."""
    assert manifest is not None
    shards = app.get(manifest).shards
    return [len(app.fetch(ref, since=ref.version).parts) for ref in shards]


@app.service(resreq="cpu=1", autoscale=False, warmup=1)
class Trainer:
    """Publishes one tensor a shard."""

    def __init__(self) -> None:
        self.publisher = Publisher("policy", shard_bytes=1)

    def publish(self, version: int, fatal: bool = False) -> tuple[PublishReport, app.Ref | None]:
        policy = policy_of(version)
        if fatal:
            FatalTensor.manifest = self.publisher.manifest_ref
            policy["layer.4"] = policy["layer.4"].as_subclass(FatalTensor)
        report = self.publisher.publish(policy, version)
        return report, self.publisher.manifest_ref


@app.service(resreq="cpu=1", warmup=1, max_executors=1)
class Rollout:
    """Holds a policy in fp32, as an engine on a CPU does."""

    def __init__(self) -> None:
        self.subscriber: Subscriber | None = None
        self.weights = {name: torch.zeros(40_000) for name in policy_of(0)}

    def sync(self, manifest: app.Ref, version: int) -> tuple[int, bool]:
        """Returns the bytes fetched, and whether the weights are those of the version."""
        self.subscriber = self.subscriber or Subscriber(manifest)
        return sync(self.subscriber, version, self.weights)


def sync(subscriber: Subscriber, version: int, weights: dict[str, Tensor]) -> tuple[int, bool]:
    staged = subscriber.fetch(version)
    subscriber.apply(staged, weights)
    expected = policy_of(version)
    exact = all(
        torch.equal(tensor.view(torch.int32) >> 16, expected[name].view(torch.int16).int())
        for name, tensor in weights.items()
    )
    return staged.nbytes, exact


def test_a_trainer_that_dies_while_publishing_leaves_the_version_before() -> None:
    trainer_class: Any = Trainer
    rollout_class: Any = Rollout
    whole = sum(tensor.nbytes for tensor in policy_of(0).values())
    with app.init("weights-processes", resources="cpu=2"):
        trainers, rollouts = trainer_class.remote(), rollout_class.remote()
        report, manifest = trainers.publish.remote(1).result(99)
        assert report.whole
        assert rollouts.sync.remote(manifest, 1).result(99) == (whole, True)
        report, _ = trainers.publish.remote(2).result(99)
        assert rollouts.sync.remote(manifest, 2).result(99) == (report.published_bytes, True)
        assert report.published_bytes < 0.3 * whole

        with pytest.raises(app.GangBroken):
            trainers.publish.remote(3, fatal=True).result(99)
        assert new_parts(manifest) == [1, 1, 1, 1, 0], "it died half-way"
        assert rollouts.sync.remote(manifest, 2).result(99) == (0, True)
        weights = {name: torch.zeros(40_000) for name in policy_of(0)}
        assert sync(Subscriber(manifest), 2, weights)[1], "a newcomer reads version 2, exactly"

        trainers.reform()
        report, manifest = trainers.publish.remote(3).result(99)
        assert report.whole
        assert rollouts.sync.remote(manifest, 3).result(99) == (whole, True)
        report, manifest = trainers.publish.remote(4).result(99)
        assert not report.whole
        assert rollouts.sync.remote(manifest, 4).result(99) == (report.published_bytes, True)
