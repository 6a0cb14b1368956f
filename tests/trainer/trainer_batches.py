"""Small models and random batches to train on."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from forage.model.load import round_to_bf16
from forage.trainer.batch import TrainBatch

VOCABULARY = 50


def small_model(seed: int) -> LlamaForCausalLM:
    """A random two-layer model, alike for the same seed."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    round_to_bf16(model)
    return model.eval()


def random_batch(lengths: list[int], seed: int) -> TrainBatch:
    """Samples of these lengths; the first token of each is never a sampled one."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    mask = (rng.random(total) < 0.6).astype(np.uint8)
    mask[offsets[:-1]] = 0
    logprobs = np.where(mask, -rng.exponential(3.0, total), 0).astype(np.float32)
    return TrainBatch(
        rng.integers(0, VOCABULARY, total).astype(np.int32),
        mask,
        logprobs,
        offsets,
        rng.normal(size=len(lengths)).astype(np.float32),
    )
