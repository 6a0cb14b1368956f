"""A GPU packs, patches and digests exactly as a CPU does."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from forage import app
from forage.weights.codec import decode_block, encode_delta
from forage.weights.digest import tensor_digest, tensor_digests
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def random_bits(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 15), 1 << 15, shape).to(torch.int16).view(torch.bfloat16)


def moved(tensor: torch.Tensor, share: float) -> torch.Tensor:
    chosen = torch.rand(tensor.shape, device=tensor.device) < share
    return (tensor.view(torch.int16) + chosen.to(torch.int16)).view(torch.bfloat16)


def test_digests_are_the_same() -> None:
    tensor = random_bits(3000, 1700)
    on_gpu = tensor.cuda()
    assert tensor_digest(on_gpu) == tensor_digest(tensor)
    assert tensor_digest(on_gpu[:, 3:900]) == tensor_digest(tensor[:, 3:900])
    held = (tensor.view(torch.int16).to(torch.int32) << 16).view(torch.float32)
    assert tensor_digest(held.cuda()) == tensor_digest(tensor)
    together = {"a": tensor, "b": tensor[:, 3:900], "c": held, "d": random_bits(20_000_000)}
    on_gpus = {name: one.cuda() for name, one in together.items()}
    assert tensor_digests(on_gpus) == tensor_digests(together)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.99])
def test_deltas_are_the_same_bytes(share: float) -> None:
    before = random_bits(5_100_000)
    after = moved(before, share)
    on_cpu, on_gpu = encode_delta(before, after), encode_delta(before.cuda(), after.cuda())
    assert [block.checksum for block in on_gpu] == [block.checksum for block in on_cpu]
    assert all(torch.equal(a.payload, b.payload) for a, b in zip(on_gpu, on_cpu, strict=True))
    for block in on_cpu:
        here, there = (decode_block(block, len(before), device) for device in ("cpu", "cuda"))
        assert torch.equal(here.bits, there.bits.cpu())
        if here.positions is not None:
            assert there.positions is not None
            assert torch.equal(here.positions, there.positions.cpu())


@pytest.mark.parametrize("staging", ["cpu", "cuda"])
@pytest.mark.parametrize("keep", ["device", "cpu"])
def test_a_policy_goes_from_gpu_to_gpu(staging: str, keep: Literal["device", "cpu"]) -> None:
    policy = {"a": random_bits(900, 500).cuda(), "b": random_bits(70).cuda()}
    fused = torch.zeros(1000, 500, device="cuda").bfloat16()
    target = {"a": fused[50:950], "b": torch.zeros(70, device="cuda").bfloat16()}
    with app.init("weights-gpu", resources="cpu=1"):
        publisher = Publisher("policy", keep=keep)
        for version in (1, 2, 3):
            publisher.publish(policy, version)
            if version == 1:
                assert publisher.manifest_ref is not None
                subscriber = Subscriber(publisher.manifest_ref, device=staging)
            subscriber.apply(subscriber.fetch(version), target)
            assert all(
                torch.equal(target[name].view(torch.int16), tensor.view(torch.int16))
                for name, tensor in policy.items()
            )
            policy = {name: moved(tensor, 0.02) for name, tensor in policy.items()}


@pytest.mark.parametrize("share", [0.003, 0.03, 0.3, 0.99])
def test_staging_takes_no_more_room_than_it_is_given(share: float) -> None:
    mib = 1 << 20
    policy = {"a": random_bits(40 * mib).cuda(), "b": random_bits(90 * mib).cuda()}
    target = {name: torch.zeros_like(tensor) for name, tensor in policy.items()}
    with app.init("staging-gpu", resources="cpu=1"):
        publisher = Publisher("policy", shard_bytes=1)
        publisher.publish(policy, 1)
        assert publisher.manifest_ref is not None
        subscribers = [
            Subscriber(publisher.manifest_ref, device="cuda", room=room * mib)
            for room in (40, 300, 1 << 20)
        ]
        for subscriber in subscribers:
            subscriber.apply(subscriber.fetch(1), target)
        changed = {name: moved(tensor, share) for name, tensor in policy.items()}
        publisher.publish(changed, 2)
        for subscriber, room in zip(subscribers, (40, 300, 1 << 20), strict=True):
            for name, tensor in target.items():
                tensor.copy_(policy[name])
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            staged = subscriber.fetch(2)
            assert torch.cuda.max_memory_allocated() - before <= room * mib
            subscriber.apply(staged, target)
            assert all(
                torch.equal(target[name].view(torch.int16), tensor.view(torch.int16))
                for name, tensor in changed.items()
            )
            del staged
