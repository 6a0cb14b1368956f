"""Which tensors of a model are its policy."""

from __future__ import annotations

from torch import Tensor, nn


def policy_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, detached, sharing its memory.

    Tied parameters appear once, under their first name; buffers, which are computed and not
    learned, never.
    """
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
