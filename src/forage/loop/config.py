"""The one list of what a run can be told: names, types, defaults, limits and help.

Command-line flags, TOML keys, `--help` and docs/configuration.md are all made from `TrainConfig`,
so that they can't disagree. This module imports nothing heavy: `forage --help` reads it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from forage.errors import UserError
from forage.loop.option import Option, option


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that defines a training run; see each field's `Option`."""

    model: str | None = option(
        None, "model", "folder in Hugging Face layout, .gguf file, or name on the Hugging Face hub"
    )
    warm_start_steps: int = option(
        0,
        "model",
        "build a small model from scratch instead of loading one, and warm-start it this long on "
        "made-up facts",
        unit="steps",
        at_least=0,
    )

    data: str = option(
        "hf:hotpotqa/hotpot_qa:distractor",
        "data",
        "atlas (built in), a .json, .jsonl or .parquet file (each may be .gz), or "
        "hf:NAME[:CONFIG[:SPLIT]]",
    )
    heldout_data: str | None = option(
        None, "data", "file that the held-out questions come from, instead of a part of the data"
    )
    corpus: str | None = option(
        None,
        "data",
        "passages to search: a .jsonl file or a folder of text files; without it, the paragraphs "
        "that came with the questions",
    )
    heldout: int = option(200, "data", "held-out questions to evaluate on", at_least=1)
    train_questions: int | None = option(
        None, "data", "use only this many training questions", at_least=1
    )

    prompt: str = option("search-r1", "agent", "prompt template: search-r1 or plain")
    reward: str = option("em", "agent", "em, f1, or your own function as module:function")
    retriever: str | None = option(
        None,
        "agent",
        "index folder or URL of a Search-R1 retrieval server; without it, BM25 over the corpus",
    )
    top_k: int = option(3, "agent", "passages per search", at_least=1)
    max_searches: int = option(4, "agent", "searches per sample", at_least=0)
    max_turn_tokens: int = option(
        512, "agent", "sampled tokens per turn", unit="tokens", at_least=1
    )
    max_tokens: int = option(
        4096, "agent", "length of a sample, prompt and passages included", unit="tokens", at_least=2
    )
    temperature: float = option(1.0, "agent", "sampling temperature in training", above=0)

    steps: int = option(100, "loop", "training steps in all", at_least=0, may_change=True)
    prompts_per_step: int = option(70, "loop", "questions per step", at_least=1)
    prompts_per_task: int = option(
        5, "loop", "questions per rollout call", at_least=1, may_change=True
    )
    group_size: int = option(
        5,
        "loop",
        "samples per question",
        at_least=2,
        why="a sample is compared with the others of its question",
    )
    seed: int = option(0, "loop", "seed of every draw", at_least=0)
    shuffle_rewards: bool = option(
        False,
        "loop",
        "control experiment: permute the rewards among the samples of a step, so that nothing can "
        "be learned from them",
    )

    rollouts: int = option(
        1, "executors", "rollout executors to start", at_least=1, may_change=True
    )
    max_rollouts: int | None = option(
        None,
        "executors",
        "rollout executors that pending calls may grow to, where more than --rollouts; without "
        "it, as many as fit",
        at_least=1,
        may_change=True,
    )
    trainers: int = option(
        1, "executors", "trainers, started together", at_least=1, may_change=True
    )
    shard: int = option(
        1,
        "executors",
        "trainers that hold one copy of the model and its optimizer together, for models too large "
        "for one GPU; --trainers is a multiple of it",
        at_least=1,
        may_change=True,
    )
    rollout_resources: str | None = option(
        None,
        "executors",
        "resources of each rollout executor, as cpu=8,mem=64g,gpu=1; without it, one CPU and a "
        "fair part of the GPUs",
        may_change=True,
    )
    trainer_resources: str | None = option(
        None,
        "executors",
        "resources of each trainer; without it, one CPU and a fair part of the GPUs",
        may_change=True,
    )
    rollout_threads: int | None = option(
        None,
        "executors",
        "compute threads of all --rollouts together; without it, each has one per CPU",
        at_least=1,
        may_change=True,
    )
    trainer_threads: int | None = option(
        None,
        "executors",
        "compute threads of all --trainers together; without it, each has one per CPU",
        at_least=1,
        may_change=True,
    )
    resources: str | None = option(
        None,
        "executors",
        "what the run may use of this machine; without it, what this process may use",
        may_change=True,
    )
    engine: str = option(
        "local",
        "executors",
        "where executors run: processes of this machine, or a Ray cluster",
        choices=("local", "ray"),
        may_change=True,
    )
    address: str | None = option(
        None,
        "executors",
        "Ray cluster to join, `auto` or host:port; without it, engine ray starts one here",
        may_change=True,
    )
    max_batch: int = option(
        256, "executors", "samples that an executor generates at once", at_least=1, may_change=True
    )

    generation: str = option(
        "auto",
        "executors",
        "what generates in rollout executors; auto: vLLM on a GPU where it is installed",
        choices=("auto", "torch", "vllm"),
        may_change=True,
    )
    gpu_memory: float | None = option(
        None,
        "executors",
        "share of a GPU's memory that vLLM may use; without it, 0.9 of the part of a GPU that a "
        "rollout executor asks for",
        above=0,
        may_change=True,
    )

    algorithm: str = option("grpo", "optimizer", "loss", choices=("grpo",))
    learning_rate: float = option(1e-6, "optimizer", "learning rate of Adam", above=0)
    weight_decay: float = option(0.0, "optimizer", "decoupled weight decay", at_least=0)
    clip: float = option(0.2, "optimizer", "the probability ratio stays in 1 ± clip", above=0)
    kl: float = option(
        0.001, "optimizer", "weight of the KL to the starting model; 0 turns it off", at_least=0
    )
    grad_clip: float = option(1.0, "optimizer", "largest gradient norm", above=0)
    minibatches: int = option(
        1, "optimizer", "optimizer steps per training step; 1 is on-policy", at_least=1
    )
    micro_batch_tokens: int = option(
        16384,
        "optimizer",
        "tokens per forward and backward pass, at most; fewer where a GPU's memory is short",
        unit="tokens",
        at_least=1,
        may_change=True,
    )

    eval_every: int = option(
        20,
        "evaluation",
        "evaluate every so many steps, and at the first and last; 0 evaluates at those two only",
        unit="steps",
        at_least=0,
        may_change=True,
    )
    eval_samples: int = option(
        1,
        "evaluation",
        "samples per held-out question at the training temperature, beside the greedy one; 0: none",
        at_least=0,
        may_change=True,
    )

    out: str = option("runs/train", "run directory", "where everything is written", may_change=True)
    checkpoint_every: int = option(
        20,
        "run directory",
        "save a checkpoint every so many steps, and at the last; 0 saves at the last only",
        unit="steps",
        at_least=0,
        may_change=True,
    )
    keep_checkpoints: int = option(
        2, "run directory", "newest checkpoints to keep", at_least=1, may_change=True
    )


DEFAULTS = TrainConfig()
_TYPES = typing.get_type_hints(TrainConfig)
KEYS: dict[str, Option] = {f.name: f.metadata["option"] for f in dataclasses.fields(TrainConfig)}


def flag(key: str) -> str:
    """The command-line spelling of a key."""
    return "--" + key.replace("_", "-")


def value_type(key: str) -> type:
    """`str`, `int`, `float` or `bool`."""
    hint = _TYPES[key]
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return typing.cast(type, hint)


def is_optional(key: str) -> bool:
    """Whether the key may be left without a value."""
    return isinstance(_TYPES[key], types.UnionType)


def check_key(key: str, where: str) -> None:
    """Raise `UserError` for a key that doesn't exist, naming the nearest that does."""
    if key in KEYS:
        return
    near = get_close_matches(key.replace("-", "_"), KEYS, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; forage train --help lists the keys"
    raise UserError(f"{where}: unknown key {key!r}{hint}")


_EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def check_value(key: str, value: object, where: str) -> object:
    """`value` as the key's type, or `UserError`; whole numbers are accepted as floats."""
    kind = value_type(key)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{where} is {value!r}; expected {_EXPECTED[kind]}")
    known = KEYS[key]
    if known.choices and value not in known.choices:
        raise UserError(f"{where} is {value!r}; choose one of: {', '.join(known.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        why = f" ({known.why})" if known.why else ""
        if known.at_least is not None and value < known.at_least:
            raise UserError(f"{where} is {value}; it must be at least {known.at_least}{why}")
        if known.above is not None and value <= known.above:
            raise UserError(f"{where} is {value}; it must be greater than {known.above}{why}")
    return value


def parse_value(key: str, text: str) -> object:
    """The value that `text` after the key's flag stands for."""
    kind = value_type(key)
    value: object = text
    if kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            value = text
    return check_value(key, value, flag(key))


def with_values(config: TrainConfig, values: Mapping[str, object], where: str) -> TrainConfig:
    """`config` with `values` laid over it, each checked; `where` names their source in errors."""
    checked: dict[str, Any] = {}
    for key, value in values.items():
        check_key(key, where)
        checked[key] = check_value(key, value, f"{where}: {key}")
    return dataclasses.replace(config, **checked)
