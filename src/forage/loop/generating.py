"""How rollout executors generate: with which engine, on how much of a GPU, how many calls at once.

Everything is found out without loading anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forage.app.resources import parse_resreq
from forage.errors import UserError
from forage.loop.config import TrainConfig
from forage.loop.executors import gpu_share, rollout_resources
from forage.loop.gpus import gpu_memories
from forage.model.facts import ModelFacts
from forage.model.memory import GIB, gib
from forage.rollout.choice import use_vllm
from forage.rollout.memory import Need, cache_bytes, step_tokens

USUAL_SHARE = 0.9
"""Of the part of a GPU that an executor asks for; the rest is left to others' surprises."""


def generates_with_vllm(config: TrainConfig) -> bool:
    """Whether rollouts will use vLLM, as far as this machine tells.

    Executors of a cluster decide for themselves; there this is whether they may.

    Raises:
        UserError: if they are to, but can't.
    """
    if config.rollouts == 0:
        return False
    gpu = gpu_share(rollout_resources(config)) > 0
    if config.address is not None and gpu:
        return config.generation != "torch"
    return use_vllm(config.generation, gpu=gpu)


def check_generation(config: TrainConfig) -> None:
    """Raise `UserError` for an engine that can't be had, or a share that there is not."""
    if config.gpu_memory is not None and config.gpu_memory > 1:
        raise UserError(f"--gpu-memory {config.gpu_memory}: it is a share, at most 1")
    _parsed(config)
    generates_with_vllm(config)


def calls_at_once(config: TrainConfig) -> int:
    """Calls that fill an executor's batch, where its calls share one."""
    if not generates_with_vllm(config):
        return 1
    return -(-config.max_batch // (config.prompts_per_task * config.group_size))


def generation_share(config: TrainConfig) -> float:
    """Of a GPU's memory, what generation may use."""
    return config.gpu_memory or USUAL_SHARE * gpu_share(rollout_resources(config))


def check_generation_memory(config: TrainConfig, model: Mapping[str, Any]) -> list[str]:
    """Whether generation with vLLM fits on the GPUs of this machine; a line for each size of GPU.

    Args:
        config: of the run.
        model: the configuration of what generates.

    Raises:
        UserError: if it doesn't fit.
    """
    if not generates_with_vllm(config):
        return []
    share, facts = generation_share(config), ModelFacts.from_config(model)
    lines = []
    for size in sorted(set(gpu_memories())):
        need = Need(
            facts=facts,
            max_batch=config.max_batch,
            max_tokens=config.max_tokens,
            step_tokens=step_tokens(size),
        )
        cache = cache_bytes(need, size, share)
        parts = f"weights {gib(need.weights)} + working memory {gib(need.working)}"
        samples = cache // need.sample
        lines.append(
            f"{size / GIB:.0f} GiB GPU: {parts} + cache {gib(cache)} GiB, for "
            f"{samples} samples of {config.max_tokens} tokens at once"
        )
    return lines


def _parsed(config: TrainConfig) -> None:
    try:
        parse_resreq(rollout_resources(config))
    except ValueError as error:
        raise UserError(f"--rollout-resources: {error}") from None
