"""Small policies, and what publishing and following them takes."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from forage import app
from forage.weights.manifest import Manifest
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

Policy = dict[str, Tensor]

prefixes = (f"policy-{number}" for number in itertools.count())


def a_policy(rows: int = 40, *, seed: int = 0) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embedding": (rows, 16), "layer.weight": (16, 16), "layer.bias": (16,), "scale": ()}
    return {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()
    }


def moved(policy: Policy, share: float, *, seed: int = 0) -> Policy:
    """The policy with about this share of its values at their neighbour in bf16."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            tensor.view(torch.int16)
            + (torch.rand(tensor.shape, generator=generator) < share).to(torch.int16)
        ).view(torch.bfloat16)
        for name, tensor in policy.items()
    }


def blank(policy: Policy, dtype: torch.dtype = torch.bfloat16) -> Policy:
    return {name: torch.full(tensor.shape, 9.0, dtype=dtype) for name, tensor in policy.items()}


def bits_of(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16)
    return (tensor.view(torch.int32) >> 16).to(torch.int16)


def same_bits(left: Policy, right: Policy) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(bits_of(left[name]), bits_of(right[name])) for name in left
    )


def nbytes(policy: Policy) -> int:
    return sum(tensor.nbytes for tensor in policy.values())


def ref_of(publisher: Publisher) -> app.Ref:
    assert publisher.manifest_ref is not None
    return publisher.manifest_ref


def manifest_of(publisher: Publisher) -> Manifest:
    manifest: Manifest = app.get(ref_of(publisher))
    return manifest


def follow(subscriber: Subscriber, version: int, target: Policy) -> int:
    """Brings the target to the version; returns the bytes fetched."""
    staged = subscriber.fetch(version)
    subscriber.apply(staged, target)
    assert subscriber.version == version
    return staged.nbytes


def published(policy: Policy, *, shard_bytes: int = 600) -> Publisher:
    publisher = Publisher(next(prefixes), shard_bytes=shard_bytes)
    publisher.publish(policy, 1)
    return publisher
