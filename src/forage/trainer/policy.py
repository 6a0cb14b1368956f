"""The policy in training: fp32 masters, the bf16-rounded model that computes, the optimizer."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel

from forage.errors import UserError

MASTERS, OPTIMIZER = "masters.safetensors", "optimizer.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
NORM_PIECE = 1 << 20
"""Elements of the gradient whose squares are added up together."""


class Policy:
    """A model whose parameters are the bf16 rounding of fp32 masters that Adam moves.

    Gradients of the rounded model are applied to the masters as they are (straight through). All
    master gradients are views of one flat buffer, which is what ranks reduce; each parameter's is
    added there as soon as the backward pass has it. Where the model is sharded, this rank has the
    masters of its own part, and `tensors` and `save` are collectives of all ranks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        learning_rate: float,
        weight_decay: float,
        optimizer_device: torch.device | None = None,
    ) -> None:
        """Take over `model`, whose parameters already are bf16 values.

        Masters, their gradient and the optimizer lie on `optimizer_device`, by default where the
        model is.
        """
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = list(model.parameters())
        device = optimizer_device or self.device
        self.masters = [
            _local(parameter.detach()).to(device, torch.float32, copy=True)
            for parameter in self.parameters
        ]
        sizes = [master.numel() for master in self.masters]
        self.gradient = torch.zeros(sum(sizes), device=device)
        self._staging = _staging(max(sizes) if device != self.device else 0)
        views = torch.split(self.gradient, sizes)
        for parameter, master, view in zip(self.parameters, self.masters, views, strict=True):
            master.grad = view.view_as(master)
            parameter.register_post_accumulate_grad_hook(partial(self._collect, master.grad))
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return _local(self.parameters[0]).device

    def tensors(self) -> dict[str, Tensor]:
        """The policy as published, bf16, each tied tensor once; a sharded one as `DTensor`s."""
        return {
            name: parameter.detach().to(torch.bfloat16)
            for name, parameter in zip(self.names, self.parameters, strict=True)
        }

    def whole(self, *, keep: bool) -> dict[str, Tensor]:
        """The policy on the CPU, each tensor whole; nothing on ranks that don't `keep` it.

        Every rank of a sharded policy takes part.
        """
        return self._gathered([_local(parameter.detach()) for parameter in self.parameters], keep)

    @torch.no_grad()
    def step(self, max_norm: float) -> float:
        """Clip the collected gradient, move the masters, round; returns the unclipped norm.

        A gradient that isn't finite moves nothing.
        """
        norm = self._norm()
        if norm > max_norm:
            self.gradient *= max_norm / (norm + 1e-6)
        if math.isfinite(norm):
            self.optimizer.step()
            self._round()
        self.gradient.zero_()
        return norm

    def save(self, folder: Path, *, write: bool = True) -> None:
        """Write masters and optimizer state, whole: everything that `restore` needs.

        Every rank of a sharded policy takes part; those that don't `write` only send.
        """
        masters = self._gathered(self.masters, write)
        if write:
            save_file(masters, folder / MASTERS)
        del masters
        moments: dict[str, Tensor] = {}
        for moment in MOMENTS if self.optimizer.state else ():
            own = [self.optimizer.state[master][moment] for master in self.masters]
            whole = self._gathered(own, write)
            moments |= {f"{moment}.{name}": tensor for name, tensor in whole.items()}
        if write:
            steps = [state["step"] for state in self.optimizer.state.values()]
            save_file(moments | ({"step": steps[0]} if steps else {}), folder / OPTIMIZER)

    @torch.no_grad()
    def restore(self, folder: Path) -> None:
        """Continue exactly where `save` left off, on however many ranks it was.

        Raises:
            UserError: if the checkpoint is of another model.
        """
        with safe_open(folder / MASTERS, "pt") as saved:
            if set(saved.keys()) != set(self.names):
                raise UserError(
                    f"checkpoint {folder}: holds another model's weights; give its own model"
                )
            for name, parameter, master in self._named():
                master.copy_(_part(saved.get_tensor(name), parameter))
        with safe_open(folder / OPTIMIZER, "pt") as saved:
            self.optimizer.state.clear()
            for name, parameter, master in self._named() if saved.keys() else ():
                step = saved.get_tensor("step").clone().to(master.device)
                self.optimizer.state[master] = {"step": step} | {
                    moment: torch.empty_like(master).copy_(
                        _part(saved.get_tensor(f"{moment}.{name}"), parameter)
                    )
                    for moment in MOMENTS
                }
        self._round()

    def _named(self) -> list[tuple[str, Tensor, Tensor]]:
        return list(zip(self.names, self.parameters, self.masters, strict=True))

    @torch.no_grad()
    def _collect(self, total: Tensor, parameter: Tensor) -> None:
        """Add a parameter's gradient to its master's and clear it."""
        assert parameter.grad is not None
        gradient = _local(parameter.grad)
        if total.device != gradient.device:
            gradient = self._staging[: gradient.numel()].view_as(gradient).copy_(gradient)
        total += gradient
        parameter.grad = None

    def _norm(self) -> float:
        """Of the whole gradient, over all shards."""
        # In pieces: a CPU adds up in fp32, and would lose much of a sum over all.
        norm = float(get_total_norm(torch.split(self.gradient, NORM_PIECE)))
        if not isinstance(self.parameters[0], DTensor):
            return norm
        mesh = self.parameters[0].device_mesh
        square = torch.tensor(norm**2, dtype=torch.float64, device=mesh.device_type)
        dist.all_reduce(square, group=mesh.get_group())
        return math.sqrt(float(square))

    def _round(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            target, rounded = _local(parameter), master.to(torch.bfloat16)
            if target.device != master.device:
                rounded = self._staging[: master.numel()].view_as(master).copy_(rounded)
            target.copy_(rounded)

    def _gathered(self, parts: list[Tensor], keep: bool) -> dict[str, Tensor]:
        """Whole tensors from every rank's part of them, on the CPU; none unless `keep`."""
        found = {}
        for name, parameter, part in zip(self.names, self.parameters, parts, strict=True):
            whole = part
            if isinstance(parameter, DTensor):
                whole = DTensor.from_local(
                    part.to(_local(parameter).device),
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                ).full_tensor()
            if keep:
                found[name] = whole.cpu()
        return found


def _local(tensor: Tensor) -> Tensor:
    """The part of this rank, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _part(whole: Tensor, parameter: Tensor) -> Tensor:
    """The part of this rank, of a tensor that is laid out as `parameter`; nothing is sent."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    placed = distribute_tensor(
        whole.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None
    )
    return placed.to_local()


def _staging(size: int) -> Tensor:
    """Pinned bf16 memory that gradients and weights pass through where masters lie elsewhere."""
    return torch.empty(size, dtype=torch.bfloat16, pin_memory=size > 0)
