"""What generation with vLLM needs of a GPU's memory: arithmetic, before anything is loaded.

Everything is counted from what the executor may use, never from what happens to be free: so
rollouts and trainers share a card alike, whoever starts first.
"""

from __future__ import annotations

from dataclasses import dataclass

from forage.errors import UserError
from forage.model.facts import ModelFacts
from forage.model.memory import GIB, gib

BLOCK = 16
"""Tokens per block of vLLM's key-value cache."""
LARGE_CARD = 40 * GIB
"""GPU memory from which on a pass reads twice as many tokens."""
RESERVE = 3 * GIB // 2
"""The CUDA context, captured graphs and library workspaces."""
STAGING = GIB
"""What fetching new weights may take while generation goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What decides how much memory generation needs.

    Attributes:
        facts: of the model, which is held in bf16.
        max_batch: samples generated at once.
        max_tokens: of a sample.
        step_tokens: tokens that one pass of the model reads.
    """

    facts: ModelFacts
    max_batch: int
    max_tokens: int
    step_tokens: int

    @property
    def weights(self) -> int:
        """Bytes of the model."""
        return 2 * self.facts.parameters

    @property
    def sample(self) -> int:
        """Bytes of the cache of one sample of full length: keys and values of every layer."""
        return -(-self.max_tokens // BLOCK) * self.block

    @property
    def block(self) -> int:
        """Bytes of a block of the cache. vLLM keeps one of all its blocks for itself."""
        return BLOCK * 2 * 2 * self.facts.layers * self.facts.keys

    @property
    def working(self) -> int:
        """Bytes beside weights and cache: one pass's activations and fp32 logits, new weights."""
        facts = self.facts
        activations = 2 * self.step_tokens * (8 * facts.width + 3 * facts.inner)
        logits = 3 * 4 * self.max_batch * facts.vocabulary
        return activations + logits + STAGING + RESERVE


def step_tokens(total: int) -> int:
    """Tokens that one pass reads on a GPU of `total` bytes."""
    return 16384 if total > LARGE_CARD else 8192


def cache_bytes(need: Need, total: int, share: float) -> int:
    """The size of the key-value cache: for all samples at full length, or what there is room for.

    With less than for all, vLLM lets some samples wait.

    Args:
        need: of the model and the samples.
        total: bytes of the GPU's memory.
        share: of it that may be used.

    Raises:
        UserError: if not even one sample fits, with the arithmetic.
    """
    budget = int(total * share)
    room, least = budget - need.weights - need.working, need.sample + need.block
    if room >= least:
        return min(room, need.sample * need.max_batch + need.block)
    raise UserError(
        f"generation does not fit on the GPU: weights {gib(need.weights)} + working memory "
        f"{gib(need.working)} + one sample of {need.max_tokens} tokens {gib(least)} = "
        f"{gib(need.weights + need.working + least)} GiB, but it may use {share:.2f} x "
        f"{gib(total)} = {gib(budget)} GiB; raise --gpu-memory, or lower --max-tokens or "
        "--max-batch"
    )


def check_free(need: Need, cache: int, free: int) -> None:
    """Raise `UserError` if others already use what generation may use."""
    needed = need.weights + need.working + cache
    if free < needed:
        raise UserError(
            f"generation needs {gib(needed)} GiB of the GPU, but only {gib(free)} GiB are free; "
            "lower --gpu-memory, or end what else uses the GPU"
        )
