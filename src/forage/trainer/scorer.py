"""A model as trainers run it: packed samples in, log-probabilities of sampled tokens out."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from forage.errors import UserError
from forage.trainer.attention import PACKED, check_attention
from forage.trainer.logprobs import ChosenLogprobs
from forage.trainer.packing import Packed

AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""How far packing may move logits, as a share of their norm: rounding, never a leak."""


class Scorer(nn.Module):
    """Takes over a causal language model."""

    def __init__(self, model: PreTrainedModel, shards: DeviceMesh | None = None) -> None:
        """Prove that `model` can be scored packed and by its output layer, and switch it over.

        Args:
            model: whole; on the CPU, if it is to be sharded.
            shards: the ranks that are to hold it together, a part of every parameter each. A
                layer is gathered where it is needed; gradients are summed over them in fp32, and
                rounded once to the dtype of the parameters.

        Raises:
            UserError: for a model that can't.
        """
        super().__init__()
        self.model = model
        few = torch.arange(9) % model.config.vocab_size
        if shards is None:
            self.prove(few)
            return
        # Proven in parts: gathered layer by layer, as there may be no room for all.
        root = self._shard(shards)
        self.prove(few)
        root.reshard()  # a pass leaves what isn't in layers gathered

    @torch.no_grad()
    def prove(self, ids: Tensor) -> None:
        """Raise `UserError` unless packing changes no logits, and they are the output layer's.

        `ids` [9 tokens or so] are of a sample to see it on.
        """
        check_attention(self.model)
        ids = ids.to(self.model.get_input_embeddings().weight.device)
        expected = _check_head(self.model, ids)
        self.model.set_attn_implementation(PACKED)
        _check_packing(self.model, ids, expected)

    def forward(self, packed: Packed, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the sampled tokens, and the entropy where each was drawn.

        Logits are divided by `temperature`, as they were for sampling. Both are fp32 [sampled];
        gradients flow through the first where enabled.
        """
        hidden = _hidden(self.model, packed.ids, packed.positions, packed.bounds, packed.longest)
        head = self.model.get_output_embeddings()
        found: tuple[Tensor, Tensor] = ChosenLogprobs.apply(
            hidden[0, packed.drawn_from], head.weight, head.bias, packed.targets, temperature
        )  # type: ignore[no-untyped-call]
        return found

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers: the longest list of modules in the model."""
        lists = [part for part in self.model.modules() if isinstance(part, nn.ModuleList)]
        return max(lists, key=len)

    def recompute(self, layers: int) -> None:
        """Keep nothing between the passes of the first `layers`; compute it again instead."""
        for layer in self.layers[:layers]:
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )

    def compile_layers(self) -> None:
        """Fuse the operations of each layer; all layers share what is compiled once."""
        for layer in self.layers:
            layer.forward = torch.compile(layer.forward, dynamic=True)

    def _shard(self, mesh: DeviceMesh) -> FSDPModule:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for part in (*self.layers, self):
            fully_shard(part, mesh=mesh, mp_policy=policy)
            assert isinstance(part, FSDPModule)
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(self, "prove")
        assert isinstance(self, FSDPModule)
        return self


def _hidden(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, bounds: Tensor, longest: int
) -> Tensor:
    """Last hidden states [1, tokens, width] of packed samples."""
    output = model.base_model(
        input_ids=ids,
        position_ids=positions,
        use_cache=False,
        cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds,
        max_length_q=longest,
        max_length_k=longest,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def _check_head(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits [tokens, vocabulary] of one sample, if they are the output layer's and no more."""
    hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state
    ours = model.get_output_embeddings()(hidden)
    theirs: Tensor = model(input_ids=ids[None], use_cache=False).logits
    if not torch.equal(ours, theirs):
        kind = type(model).__name__
        raise UserError(f"model {kind}: changes logits after its output layer; use another model")
    return theirs[0]


def _check_packing(model: PreTrainedModel, ids: Tensor, expected: Tensor) -> None:
    """Whether `ids` have the same logits behind another sample as alone."""
    first = 5
    device, kind = ids.device, type(model).__name__
    count = len(ids)
    positions = torch.cat([torch.arange(first), torch.arange(count)]).to(device)
    bounds = torch.tensor([0, first, first + count], dtype=torch.int32, device=device)
    both = torch.cat([ids[-first:], ids])[None]
    try:
        hidden = _hidden(model, both, positions[None], bounds, count)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"model {kind}: can't be trained on packed samples ({reason})") from error
    found = model.get_output_embeddings()(hidden[0, first:])
    apart = (_centred(found) - _centred(expected)).norm() / _centred(expected).norm()
    if not apart < AGREEMENT[expected.dtype]:
        raise UserError(
            f"model {kind}: packed samples reach into one another (logits differ by "
            f"{float(apart):.0%}); use another model"
        )


def _centred(logits: Tensor) -> Tensor:
    return logits.float() - logits.float().mean(dim=-1, keepdim=True)
