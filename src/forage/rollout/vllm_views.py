"""vLLM's parameters in the layout of the checkpoint, so that patches can be written into them.

vLLM stacks some matrices of a layer into one (queries, keys and values; the two halves of the
feed-forward) and pads the vocabulary. Stacked along rows, each matrix of the checkpoint is still
a contiguous part of one of vLLM's. Whether that is so is not trusted but proven, by the digests
of all tensors, when a model is first loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from forage.errors import UserError
from forage.weights.digest import tensor_digests
from forage.weights.policy import policy_tensors

GROUP_BYTES = 1 << 29
"""What the proof loads of the checkpoint at once."""


def checkpoint_shapes(folder: Path) -> dict[str, torch.Size]:
    """The shape of each tensor of the policy by its name, as a trainer publishes them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return {name: tensor.shape for name, tensor in policy_tensors(model).items()}


def checkpoint_views(model: nn.Module, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Views of `model`'s parameters by checkpoint name, where there is a likely one.

    Args:
        model: vLLM's; its `packed_modules_mapping` says what is stacked, in which order.
        shapes: of the checkpoint's tensors.
    """
    parameters = policy_tensors(model)
    stacks: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    found = {}
    for name, shape in shapes.items():
        place = _place(name, shapes, stacks)
        if place is None:
            continue
        target, row = place
        if target in parameters and _has(parameters[target], row, shape):
            view = parameters[target]
            found[name] = view[row : row + shape[0]] if shape else view
    return found


def differing(views: Mapping[str, Tensor], folder: Path) -> list[str]:
    """Names of the views that don't hold, bit for bit, the checkpoint's tensor rounded to bf16."""
    held = tensor_digests(views)
    right: set[str] = set()
    for loaded in _in_groups(folder, views):
        digests = tensor_digests(loaded)
        right |= {name for name, digest in digests.items() if digest == held[name]}
    return sorted(views.keys() - right)


def whole_tensors(folder: Path, names: Collection[str], device: torch.device) -> dict[str, Tensor]:
    """The named tensors of a checkpoint, bf16 on `device`.

    Raises:
        UserError: if the checkpoint lacks one of them.
    """
    found = {name: tensor.to(device) for name, tensor in _read(folder, names)}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise UserError(
            f"model {folder}: {len(missing)} tensors aren't in its files, first {missing[0]}; "
            "use --generation torch"
        )
    return found


def _in_groups(folder: Path, views: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The checkpoint's tensors where the views lie, `GROUP_BYTES` or one tensor at a time."""
    group: dict[str, Tensor] = {}
    size = 0
    for name, tensor in _read(folder, views):
        if group and size + tensor.nbytes > GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[name] = tensor.to(views[name].device)
        size += tensor.nbytes
    if group:
        yield group


def _read(folder: Path, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Those of the named tensors that the folder's files hold, rounded to bf16."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                if name in names:
                    yield name, tensors.get_tensor(name).to(torch.bfloat16)


def _place(
    name: str, shapes: Mapping[str, torch.Size], stacks: Mapping[str, list[str]]
) -> tuple[str, int] | None:
    """The parameter that holds a tensor, and its first row there."""
    for stacked, parts in stacks.items():
        for index, part in enumerate(parts):
            if f".{part}." not in name:
                continue
            before = [name.replace(f".{part}.", f".{other}.") for other in parts[:index]]
            if not all(other in shapes for other in before):
                return None
            target = name.replace(f".{part}.", f".{stacked}.")
            return target, sum(shapes[other][0] for other in before)
    return name, 0


def _has(parameter: Tensor, row: int, shape: torch.Size) -> bool:
    """Whether the rows of a tensor of `shape` can lie in a parameter from `row` on."""
    return (
        parameter.dtype == torch.bfloat16
        and parameter.dim() == len(shape)
        and parameter.shape[1:] == shape[1:]
        and (not shape or parameter.shape[0] >= row + shape[0])
    )
