"""A Llama small enough to learn to search on two CPU cores in minutes, built from scratch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORD = r"</?\w+>|[^\s?.,:()\"<]+|[?.,:()\"<]"
"""A tag, a word, or a mark: what one token holds."""

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"


def word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for every word of `texts`; a protocol tag is a word."""
    words = sorted({word for text in texts for word in re.findall(WORD, text)})
    vocabulary = {word: index for index, word in enumerate([PAD, END, UNKNOWN, *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Split(Regex(WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def small_llama(
    tokenizer: PreTrainedTokenizerFast, *, layers: int, width: int, heads: int, seed: int
) -> LlamaForCausalLM:
    """A Llama with tied embeddings and a feed-forward three times its width, fp32, untrained."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
