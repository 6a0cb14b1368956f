"""Models of a known shape with random weights: speed depends on the shape alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from forage.agent.prompts import PROMPTS
from forage.bench.texts import WORDS
from forage.errors import UserError
from forage.model.load import default_device
from forage.model.small import END, PAD

TOKENIZER_SIZE = 16384
"""Tokens of the tokenizer, where the vocabulary of the shape has room for so many."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the speed of a decoder-only model; names as in Hugging Face configurations."""

    kind: type[PretrainedConfig]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 32768
    rope_theta: float = 1e6

    def config(self) -> PretrainedConfig:
        """The configuration of a model of this shape, embeddings tied."""
        return self.kind(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=True,
            dtype="bfloat16",
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )


SHAPES: dict[str, Shape] = {
    "tiny": Shape(Qwen2Config, 2048, 64, 192, 2, 4, 2, 4096),
    "smollm2-135m": Shape(LlamaConfig, 49152, 576, 1536, 30, 9, 3, 8192, 1e5),
    "qwen2.5-0.5b": Shape(Qwen2Config, 151936, 896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": Shape(Qwen2Config, 151936, 1536, 8960, 28, 12, 2),
    "qwen2.5-3b": Shape(Qwen2Config, 151936, 2048, 11008, 36, 16, 2),
}
"""Named shapes: Qwen 2.5 and SmolLM2 as published, and one that a test can build in a second."""


def shape_of(name: str) -> Shape:
    """The shape called `name`.

    Raises:
        UserError: if there is none.
    """
    if name not in SHAPES:
        raise UserError(f"--shape {name}: unknown; choose one of: {', '.join(SHAPES)}")
    return SHAPES[name]


def build(name: str, folder: Path, seed: int, texts: Iterable[str] = ()) -> Path:
    """Write a model of the shape `name` in Hugging Face layout: bf16 weights and a tokenizer.

    The tokenizer is a byte-pair encoding of `texts`, the prompts and made-up words; its ids are
    the model's first ones. Weights are drawn on the GPU where there is one, whose generator draws
    others than the CPU's.

    Raises:
        UserError: if there is no such shape.
    """
    config = shape_of(name).config()
    folder.mkdir(parents=True, exist_ok=True)
    # Loading as a Qwen tokenizer adds a token.
    size = min(TOKENIZER_SIZE, config.vocab_size - 1)
    byte_pairs([*texts, *PROMPTS.values(), " ".join(WORDS)], size).save_pretrained(folder)
    config.architectures = [f"{config.model_type.capitalize()}ForCausalLM"]
    config.save_pretrained(folder)
    save_file(random_weights(config, seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def byte_pairs(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of at most `size` tokens, made for `texts`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )


@torch.no_grad()
def random_weights(config: PretrainedConfig, seed: int) -> dict[str, Tensor]:
    """bf16 CPU tensors by checkpoint name, each tied one once: normal with deviation 0.02.

    Gains are 1 and biases 0, as in an untrained model.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    device = default_device()
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, parameter in model.named_parameters():
        tensor = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
        if parameter.dim() > 1:
            tensor.normal_(0, 0.02, generator=generator)
        else:
            tensor.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        weights[name] = tensor.cpu()
    return weights
