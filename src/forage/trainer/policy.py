"""The policy in training: fp32 masters, the bf16-rounded model that computes, the optimizer."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from forage.errors import UserError


class Policy:
    """A model whose parameters are the bf16 rounding of fp32 masters that Adam moves.

    Gradients of the rounded model are applied to the masters as they are (straight through).
    All master gradients are views of one flat buffer, which is what ranks reduce.
    """

    def __init__(self, model: PreTrainedModel, learning_rate: float, weight_decay: float) -> None:
        """Take over `model`, whose parameters already are bf16 values."""
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = list(model.parameters())
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        self.gradient = torch.zeros(
            sum(master.numel() for master in self.masters), device=self.masters[0].device
        )
        views = torch.split(self.gradient, [master.numel() for master in self.masters])
        for master, view in zip(self.masters, views, strict=True):
            master.grad = view.view_as(master)
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )

    def tensors(self) -> dict[str, Tensor]:
        """The policy as published, bf16, each tied tensor once."""
        return {
            name: parameter.detach().to(torch.bfloat16)
            for name, parameter in zip(self.names, self.parameters, strict=True)
        }

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Add the model's gradients to the masters' and clear them."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None and master.grad is not None:
                master.grad += parameter.grad
                parameter.grad = None

    @torch.no_grad()
    def step(self, max_norm: float) -> float:
        """Clip the collected gradient, move the masters, round; returns the unclipped norm."""
        norm = float(self.gradient.norm())
        self.gradient *= min(1.0, max_norm / (norm + 1e-6))
        self.optimizer.step()
        self.gradient.zero_()
        self._round()
        return norm

    def save(self, folder: Path) -> None:
        """Write masters and optimizer state, everything that `restore` needs."""
        save_file(dict(zip(self.names, self.masters, strict=True)), folder / "masters.safetensors")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    @torch.no_grad()
    def restore(self, folder: Path) -> None:
        """Continue exactly where `save` left off.

        Raises:
            UserError: if the checkpoint is of another model.
        """
        saved = load_file(folder / "masters.safetensors")
        if set(saved) != set(self.names):
            raise UserError(
                f"checkpoint {folder}: holds another model's weights; give its own model"
            )
        for name, master in zip(self.names, self.masters, strict=True):
            master.copy_(saved[name])
        device = self.masters[0].device
        state = torch.load(folder / "optimizer.pt", map_location=device, weights_only=True)
        self.optimizer.load_state_dict(state)
        self._round()

    def _round(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master.to(torch.bfloat16))
