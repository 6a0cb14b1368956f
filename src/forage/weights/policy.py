"""Which tensors of a model are its policy, and one number to know a policy by."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from forage.weights.digest import MASK64
from forage.weights.parts import Holders, own_parts, part_digests


def policy_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, detached, sharing its memory.

    Tied parameters appear once, under their first name; buffers, which are computed and not
    learned, never.
    """
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def policy_digest(tensors: Mapping[str, Tensor]) -> int:
    """One number of 64 bits for a whole policy in bf16: the order of its tensors and their bits.

    Every rank that holds a part of it has to call this, and gets the same.
    """

    def own() -> int:
        digests = part_digests(own_parts(tensors))
        return sum(digests.get(name, 0) * (2 * at + 1) for at, name in enumerate(tensors))

    return sum(Holders(tensors).each(own)) & MASK64
