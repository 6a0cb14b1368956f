"""Weights as bit patterns.

A policy is compared, sent and checked by its bf16 bits, never by its values: `nan != nan`, and
`0.0 == -0.0`. A target may also be fp32 that holds bf16 values (an engine on a CPU); its bits are
then the upper half of each element.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float32)


def as_words(tensor: Tensor) -> Tensor:
    """The tensor's memory as integers: int16 for bf16, int32 for fp32; same shape and strides.

    Raises:
        ValueError: any other dtype.
    """
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16)
    if tensor.dtype == torch.float32:
        return tensor.detach().view(torch.int32)
    raise ValueError(f"weights are bfloat16, or float32 that holds bfloat16; got {tensor.dtype}")


def to_words(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """bf16 bits (int16) as words of `dtype` (int16: themselves; int32: moved to the upper half)."""
    return bits if dtype == torch.int16 else bits.to(torch.int32) << 16


def from_words(words: Tensor) -> tuple[Tensor, Tensor | None]:
    """bf16 bits (int16) of words, and for int32 words the lower halves, which must be zero."""
    if words.dtype == torch.int16:
        return words, None
    return (words >> 16).to(torch.int16), words & 0xFFFF
