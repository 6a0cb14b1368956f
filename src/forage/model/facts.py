"""What a model's configuration tells of its size; no model library is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forage.errors import UserError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configurations of mixtures of experts call their number."""


def check_length(config: Mapping[str, Any], max_tokens: int) -> None:
    """Raise `UserError` for samples of more tokens than the model with this configuration reads."""
    longest = config.get("max_position_embeddings") or max_tokens
    if max_tokens > longest:
        raise UserError(f"--max-tokens {max_tokens}: the model reads at most {longest}; lower it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What decides the memory that a decoder-only model needs."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelFacts:
        """Read a `config.json`.

        Raises:
            UserError: if it lacks a fact, or has what isn't counted.
        """
        for key in EXPERTS:
            if config.get(key):
                raise UserError(
                    f"the model is a mixture of experts ({key} {config[key]}), whose memory isn't "
                    "planned for; give a dense model"
                )
        try:
            heads = config["num_attention_heads"]
            return cls(
                layers=config["num_hidden_layers"],
                width=config["hidden_size"],
                inner=config["intermediate_size"],
                heads=heads,
                key_heads=config.get("num_key_value_heads") or heads,
                head_width=config.get("head_dim") or config["hidden_size"] // heads,
                vocabulary=config["vocab_size"],
                tied=config.get("tie_word_embeddings", False),
            )
        except KeyError as error:
            raise UserError(
                f"the model's configuration has no {error.args[0]}: it is no decoder-only "
                "language model that can be trained on a GPU"
            ) from None

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """Width of all key heads together."""
        return self.key_heads * self.head_width

    @property
    def embeddings(self) -> int:
        """Parameters outside the layers."""
        return (1 if self.tied else 2) * self.vocabulary * self.width + self.width

    @property
    def layer(self) -> int:
        """Parameters of a layer; biases, a few thousand, are left out."""
        attention = self.width * (2 * self.queries + 2 * self.keys)
        return attention + 3 * self.width * self.inner + 2 * self.width

    @property
    def parameters(self) -> int:
        """Parameters in all."""
        return self.layers * self.layer + self.embeddings

    @property
    def kept(self) -> int:
        """Bytes per token that a layer keeps for the backward pass, in bf16.

        Inputs of the layer, of both norms and of every matrix product, with the two halves of the
        feed-forward before they are multiplied.
        """
        attention = 2 * self.width + 2 * self.queries + 2 * self.keys
        return 2 * (attention + 2 * self.width + 3 * self.inner)

    @property
    def passing(self) -> int:
        """Bytes per token that exist while one layer's gradient is formed."""
        return 2 * (2 * self.width + self.queries + 2 * self.keys + 3 * self.inner)
