"""Warm start: a small model learns to read and to follow the protocol, on made-up facts.

It is a start and not a solution: the examples stop after one search where two are needed.
Reinforcement learning on real facts takes it from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage import app

LAYERS, WIDTH, HEADS = 2, 128, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """What the warm start needs to know.

    Attributes:
        out: folder that the model is written to.
        steps: optimizer steps, of 16 traces each.
        prompt, top_k: as the rollouts use them.
    """

    out: str
    steps: int
    seed: int
    prompt: str
    top_k: int


@app.service(resreq="cpu=1")
def warm_start(config: WarmStartConfig) -> dict[str, float]:
    """Build the model and its tokenizer, train it on traces, and write both to `config.out`.

    Returns:
        Mean loss per sampled token over the last tenth of the steps, in nats.
    """
    from forage.agent.data.atlas import load_countries
    from forage.model.load import round_to_bf16, save_policy
    from forage.model.small import small_llama, word_tokenizer
    from forage.trainer.imitation import fit, trace_batches, vocabulary

    countries = load_countries()
    tokenizer = word_tokenizer(vocabulary(countries, config.prompt, config.top_k))
    model = small_llama(tokenizer, layers=LAYERS, width=WIDTH, heads=HEADS, seed=config.seed)
    batches = trace_batches(
        countries, tokenizer, seed=config.seed, prompt=config.prompt, top_k=config.top_k
    )
    losses = fit(model, batches, config.steps)
    round_to_bf16(model)
    save_policy(model, tokenizer, Path(config.out))
    last = losses[-max(1, len(losses) // 10) :]
    return {"loss": sum(last) / len(last)}
