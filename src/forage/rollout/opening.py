"""From a configuration to an engine that generates, with what it needs of the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

from forage.agent.retrieval import Retriever
from forage.model.load import compute_dtype, default_device, end_token_ids, load_policy
from forage.rollout.batches import Batches, OneByOne, Shared
from forage.rollout.choice import use_vllm
from forage.rollout.collect import Collector
from forage.rollout.engine import Engine
from forage.rollout.types import RolloutConfig

SEARCH_THREADS, REQUESTS = 4, 16
"""Searches under way at once in one executor: in this process, where more would only take turns
with each other and with generation, and at a server."""
SWITCH = 0.0005
"""Seconds after which a searching thread lets the one that feeds the GPU go on, at the latest."""


def open_batches(
    config: RolloutConfig, tokenizer: PreTrainedTokenizerBase, retriever: Retriever
) -> tuple[Batches, frozenset[int]]:
    """Load the model into the engine that is to generate; also the ids that end a turn.

    Raises:
        UserError: if the model can't be loaded, or the engine can't be had.
    """
    collector = partial(
        Collector,
        retriever=retriever,
        pool=ThreadPoolExecutor(
            SEARCH_THREADS if retriever.in_process else REQUESTS, thread_name_prefix="search"
        ),
        top_k=config.top_k,
        max_batch=config.max_batch,
    )
    device = default_device()
    if use_vllm(config.generation, gpu=device.type == "cuda"):
        return _with_vllm(config, tokenizer, collector)
    from forage.rollout.torch_engine import TorchEngine

    model = load_policy(config.model, compute_dtype(device), device)
    engine = TorchEngine(model, config.temperature)
    return OneByOne(lambda: collector(engine)), end_token_ids(model.generation_config, tokenizer)


def _with_vllm(
    config: RolloutConfig,
    tokenizer: PreTrainedTokenizerBase,
    collector: Callable[[Engine], Collector],
) -> tuple[Batches, frozenset[int]]:
    from forage.rollout.vllm_engine import VllmEngine
    from forage.rollout.vllm_model import served_folder

    sys.setswitchinterval(SWITCH)
    with served_folder(config.model) as folder:
        engine = partial(
            VllmEngine,
            folder,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            max_batch=config.max_batch,
            gpu_memory=config.gpu_memory,
            seed=config.seed,
        )
        batches = Shared(lambda: collector(engine()))
        return batches, end_token_ids(_generation_config(folder), tokenizer)


def _generation_config(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None
