"""Causal attention within each of several samples that lie end to end.

It is registered with transformers under `PACKED`, so that every model that lets its attention be
replaced can train on packed samples. On a GPU it is torch's kernel for sequences of various
lengths; on a CPU, one call for each sample.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from forage.errors import UserError

PACKED = "forage_packed"
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
try:
    from torch.nn.attention.varlen import varlen_attn

    ARGUMENTS = set(inspect.signature(varlen_attn).parameters)
except ImportError:
    ARGUMENTS = set()
SHARED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in ARGUMENTS else {}
"""Later versions of torch want to be told of key heads that several query heads share."""
UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias")
"""What some models add to attention and this one can't."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of each sample to its own earlier tokens, as transformers calls it.

    Args:
        module: the layer's attention.
        query: [1, heads, tokens, width].
        key: [1, key heads, tokens, width], fewer heads being shared by several of the query's.
        value: as `key`.
        attention_mask: unused; the bounds say all.
        cu_seq_lens_q: int32 [samples + 1], where samples begin and end.
        max_length_q: tokens of the longest sample.
        scaling: of the scores; 1 / sqrt(width) without it.
        sliding_window: how many tokens each sees, itself included; all without it.
        others: what else a model passes, of no effect unless it is one of `UNKNOWN_TERMS`.

    Returns:
        Outputs [1, tokens, heads, width], and no attention weights.

    Raises:
        UserError: if the model adds a term that is not supported.
    """
    for term in UNKNOWN_TERMS:
        if others.get(term) is not None:
            kind = type(module).__name__
            raise UserError(f"model: {kind} has {term}, which packed training lacks; use another")
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    if query.is_cuda:
        out = _varlen(q, k, v, cu_seq_lens_q, max_length_q, scaling, sliding_window)
    else:
        out = _one_by_one(q, k, v, cu_seq_lens_q, scaling, sliding_window)
    return out[None], None


AttentionInterface.register(PACKED, packed_attention)


def check_attention(model: PreTrainedModel) -> None:
    """Whether the attention of `model` can be replaced by `packed_attention`.

    Raises:
        UserError: for a model whose attention can't, or whose layers look back in another way
            (chunks, state spaces).
    """
    kind = type(model).__name__
    layers = set(getattr(model.config, "layer_types", None) or []) - KNOWN_LAYERS
    if not model._supports_attention_backend or layers:
        what = f" ({', '.join(sorted(layers))})" if layers else ""
        raise UserError(f"model {kind}: its attention{what} can't be packed; use another model")
    if next(model.parameters()).is_cuda and not {"scale", "window_size"} <= ARGUMENTS:
        raise UserError(f"torch {torch.__version__}: training on a GPU needs torch 2.11 or newer")


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """[tokens, heads, width] on a GPU."""
    seen = (-1 if window is None else window - 1, 0)
    out = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=seen, **SHARED
    )
    assert isinstance(out, Tensor)
    return out


def _one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """[tokens, heads, width] on a CPU."""
    lengths = bounds.diff().tolist()
    outs = []
    # Split at once: the gradient of each slice of its own would be as large as the whole.
    parts = (torch.split(states, lengths) for states in (query, key, value))
    for length, *sample in zip(lengths, *parts, strict=True):
        q, k, v = (states.transpose(0, 1)[None] for states in sample)
        near = None
        if window is not None and length > window:
            near = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=near, is_causal=near is None, scale=scale, enable_gqa=True
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)
