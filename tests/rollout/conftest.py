"""A small random model and its tokenizer, as the rollouts use them."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from forage.model.load import round_to_bf16
from forage.model.small import small_llama, word_tokenizer

WORDS = "Question : In which country is the city Brno ? Doc 1 2 ( Title : ) Czechia a b c d e f g"
TAGS = "<think></think><search></search><answer></answer><information></information>"


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer([WORDS, TAGS, "The query was empty. No passage was found."])


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    built = small_llama(tokenizer, layers=2, width=32, heads=4, seed=1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter *= 8  # far from uniform, so that a wrong context changes the draws
    round_to_bf16(built)
    return built.eval()


@pytest.fixture(scope="session")
def grouped_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Fewer key-value heads than query heads, as larger models have."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()
