"""What counts as a model's policy."""

from __future__ import annotations

import torch
from torch import nn

from forage.weights.policy import policy_digest, policy_tensors


class TiedModel(nn.Module):
    """Head and embedding share one parameter; a norm brings buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_tensors_appear_once_and_buffers_never() -> None:
    assert list(policy_tensors(TiedModel())) == ["embedding.weight", "norm.weight", "norm.bias"]


def test_they_are_the_models_own_memory() -> None:
    model = TiedModel()
    tensors = policy_tensors(model)
    tensors["embedding.weight"].fill_(2.0)
    assert torch.equal(model.head.weight, torch.full((5, 3), 2.0))
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_policies_are_told_apart_by_their_bits_and_their_order() -> None:
    first = {"a": torch.tensor([1.0, 2.0]).bfloat16(), "b": torch.tensor([3.0]).bfloat16()}
    known = policy_digest(first)
    assert policy_digest({name: tensor.clone() for name, tensor in first.items()}) == known
    assert policy_digest(first | {"b": torch.tensor([3.5]).bfloat16()}) != known
    assert policy_digest({"a": first["b"], "b": first["a"]}) != known
