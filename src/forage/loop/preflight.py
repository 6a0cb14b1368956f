"""Everything that can be wrong with a run, found out before any process starts.

Each mistake is one `UserError` of one line: what, the value, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forage.agent.data import load_dataset
from forage.agent.prompts import prompt_parts
from forage.agent.retrieval import open_retriever
from forage.agent.rewards import resolve_reward
from forage.agent.types import DataSet
from forage.app.placement import Room
from forage.app.resources import Resources, format_milli, format_size, parse_resreq
from forage.errors import UserError
from forage.loop.checkpoint import newest_checkpoint
from forage.loop.config import TrainConfig, flag
from forage.loop.executors import gpu_share, rollout_resources, this_machine, trainer_resources
from forage.loop.generating import check_generation, check_generation_memory
from forage.loop.gpus import gpu_memories
from forage.loop.modelfiles import check_model, model_config
from forage.loop.rundir import RunDir, check_out
from forage.model.facts import ModelFacts, check_length
from forage.model.memory import GIB, gib
from forage.trainer.memory import MemoryPlan, Workload, plan_memory

CARDS = (24 * GIB, 80 * GIB)
"""Sizes of GPUs that a dry run answers for where there is none."""


def check_training(config: TrainConfig, *, resume: bool) -> DataSet:
    """Check a training run, the data it reads included; returns the data.

    Raises:
        UserError: for the first thing that is wrong, cheapest checks first.
    """
    if config.prompts_per_step % config.prompts_per_task:
        raise UserError(
            f"--prompts-per-step {config.prompts_per_step} is not divisible by "
            f"--prompts-per-task {config.prompts_per_task}; calls have equally many questions"
        )
    check_shards(config)
    check_policy(config)
    check_agent(config)
    check_fit(config)
    check_memory(config)
    check_out(config, resume)
    newest = newest_checkpoint(RunDir(Path(config.out))) if resume else None
    if newest is not None and newest.counters.step > config.steps:
        raise UserError(
            f"--steps {config.steps}: the run in {config.out} has done {newest.counters.step}; "
            "give as many or more"
        )
    data = load_data(config)
    if len(data.train) < config.prompts_per_step:
        raise UserError(
            f"--prompts-per-step {config.prompts_per_step} needs as many training questions, "
            f"but {config.data} has {len(data.train)}; lower it or give more data"
        )
    return data


def check_shards(config: TrainConfig) -> None:
    """Whether the trainers make whole copies of the model."""
    if config.trainers % config.shard:
        raise UserError(
            f"--trainers {config.trainers} is not divisible by --shard {config.shard}; every "
            "copy of the model is held by as many trainers"
        )


def check_policy(config: TrainConfig) -> None:
    """Whether there is a model to train."""
    if config.warm_start_steps == 0:
        if config.model is None:
            raise UserError("no model to train; give --model, or try --preset quickstart")
        check_model(config.model)
        return
    if config.model is not None:
        raise UserError(
            f"--model {config.model} and --warm-start-steps {config.warm_start_steps}: "
            "a warm start builds its own model; give one of the two"
        )
    if config.data != "atlas":
        raise UserError(
            f"--warm-start-steps {config.warm_start_steps} with --data {config.data}: "
            "the small model knows the words of atlas only; use --data atlas or --model"
        )


def check_agent(config: TrainConfig) -> None:
    """Whether prompt, reward, retriever and the engine that generates exist."""
    prompt_parts(config.prompt, "")
    resolve_reward(config.reward)
    check_generation(config)
    retriever = config.retriever
    if retriever is None:
        return
    if "://" in retriever:
        open_retriever(retriever)  # refuses a malformed address; nothing is sent yet
    elif not Path(retriever).is_dir():
        raise UserError(
            f"--retriever {retriever}: no such index folder; give one, or http://HOST:PORT"
        )


def check_fit(config: TrainConfig) -> str:
    """Whether all executors fit on this machine at once, if they run here; the arithmetic.

    Raises:
        UserError: with the same arithmetic if they don't.
    """
    if config.address is not None and config.engine != "ray":
        raise UserError(f"--address {config.address} names a Ray cluster; add --engine ray")
    rollout = _need("rollout_resources", rollout_resources(config))
    trainer = _need("trainer_resources", trainer_resources(config))
    counts = [(config.rollouts, "rollout", rollout), (config.trainers, "trainer", trainer)]
    parts = [f"{count} x {what} ({each})" for count, what, each in counts if count]
    asked = _amounts(
        trainer.millicpu * config.trainers + rollout.millicpu * config.rollouts,
        trainer.mem * config.trainers + rollout.mem * config.rollouts,
        trainer.milligpu * config.trainers + rollout.milligpu * config.rollouts,
    )
    if config.address is not None:
        return f"{' + '.join(parts)} = {asked}; the cluster is asked once it is joined"
    node = this_machine(config)
    there = _amounts(node.millicpu, node.mem, 1000 * len(node.gpus))
    arithmetic = f"{' + '.join(parts)} = {asked}; this machine has {there}"
    room = Room.of([node])
    if room.place_all(trainer, config.trainers) is None or not all(
        _seat(room, rollout) for _ in range(config.rollouts)
    ):
        raise UserError(
            f"does not fit: {arithmetic}; lower --rollouts, --trainers or their resources"
        )
    return arithmetic


def check_memory(config: TrainConfig) -> None:
    """Whether the model, trainers and rollouts go together, on the GPUs of this machine if any.

    GPUs of a cluster aren't known here: its executors plan for themselves.

    Raises:
        UserError: for the first thing that doesn't fit, with the arithmetic.
    """
    model = model_config(config.model) if config.model is not None else None
    if model is None:
        return
    check_length(model, config.max_tokens)
    if not (sizes := _gpus(config)):
        return
    share = gpu_share(trainer_resources(config))
    for size in sizes if share else ():
        _check_host(config, _plan(config, model, share * size))
    check_generation_memory(config, model)


def memory_lines(config: TrainConfig) -> list[str]:
    """How trainers and rollouts fit on the GPUs of this machine, or would on `CARDS`.

    Nothing for a model whose configuration can't be read without loading it.
    """
    model = model_config(config.model) if config.model is not None else None
    if model is None:
        return []
    sizes = _gpus(config)
    share = gpu_share(trainer_resources(config)) if sizes else 1.0
    lines = []
    for size in (sizes or CARDS) if share else ():
        try:
            lines.append(f"trainer, {size / GIB:.0f} GiB GPU: {_plan(config, model, share * size)}")
        except UserError as error:
            lines.append(f"trainer, {size / GIB:.0f} GiB GPU: {error}")
    if sizes:
        found = check_generation_memory(config, model)
        lines += [f"rollout, {line}" for line in found]
    return lines


def _gpus(config: TrainConfig) -> list[int]:
    """Sizes of the GPUs that executors will run on, as far as this machine tells."""
    return sorted(set(gpu_memories())) if config.address is None else []


def _check_host(config: TrainConfig, plan: MemoryPlan) -> None:
    """Whether what trainers keep in the host's memory is there."""
    asked, there = parse_resreq(trainer_resources(config)).mem, this_machine(config).mem
    for needed, limit, whose in (
        (plan.host, asked or plan.host, "it asks for"),
        (config.trainers * plan.host, there, "this machine has"),
    ):
        if needed > limit:
            raise UserError(
                f"{config.trainers} x trainer: {plan}; that is {gib(needed)} GiB of the "
                f"host's memory, but {whose} {gib(limit)} GiB; give trainers more of the GPU"
            )


def _plan(config: TrainConfig, model: Mapping[str, Any], budget: float) -> MemoryPlan:
    work = Workload(
        micro_batch_tokens=config.micro_batch_tokens,
        longest=config.max_tokens,
        reference=config.kl > 0,
        shard=config.shard,
    )
    return plan_memory(ModelFacts.from_config(model), work, budget)


def load_data(config: TrainConfig) -> DataSet:
    """The questions and passages that the configuration names."""
    return load_dataset(
        config.data,
        heldout=config.heldout,
        corpus=config.corpus,
        heldout_data=config.heldout_data,
        limit=config.train_questions,
        need_corpus=config.retriever is None,
    )


def _need(key: str, text: str) -> Resources:
    try:
        return parse_resreq(text)
    except ValueError as error:
        raise UserError(f"{flag(key)}: {error}") from None


def _seat(room: Room, need: Resources) -> bool:
    placement = room.place(need)
    if placement is None:
        return False
    room.take(need, placement)
    return True


def _amounts(millicpu: int, mem: int, milligpu: int) -> str:
    return f"cpu={format_milli(millicpu)}, mem={format_size(mem)}, gpu={format_milli(milligpu)}"
