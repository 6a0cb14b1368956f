"""`forage bench update`: one update of a trainer, beside plain matrix products of the same run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from forage.bench.shapes import shape_of
from forage.bench.table import Row, note, show
from forage.errors import UserError
from forage.model.facts import ModelFacts
from forage.model.load import compute_dtype, default_device
from forage.model.memory import gib
from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.batch import TrainBatch
from forage.trainer.learner import Learner
from forage.trainer.memory import MemoryPlan, Workload, let_blocks_grow, plan_memory
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer

TIMES = 3
"""Updates that are measured, after one that isn't."""


def run(options: argparse.Namespace) -> None:
    """Measure updates with everything that a trainer does in them, loss and optimizer included.

    Raises:
        UserError: if the lengths don't go together, or the trainer doesn't fit on the GPU.
    """
    if not options.shortest <= options.longest <= options.tokens:
        raise UserError(
            f"--shortest {options.shortest}, --longest {options.longest}, --tokens "
            f"{options.tokens}: give shortest <= longest <= tokens"
        )
    let_blocks_grow()
    device = default_device()
    facts = ModelFacts.from_config(shape_of(options.shape).config().to_dict())
    plan = _plan(options, facts, device)
    batch = made_up_batch(options, facts.vocabulary)
    ceiling = matmul_flops(device)
    learner = _learner(options, device, plan)
    first, seconds = _seconds(lambda: learner.update(batch, 1, 1.0), device)
    optimizer_s = min(_seconds(lambda: learner.policy.step(1.0), device))
    tokens, flops = len(batch.token_ids), update_flops(facts, batch, reference=options.kl > 0)
    show(
        f"update of {options.shape}, {tokens:,} tokens in {len(batch)} samples, "
        f"{batch.mask.mean():.0%} of them sampled, KL {options.kl}",
        [
            Row("plain matrix products", rate=_tera(ceiling)),
            Row(
                "update",
                f"{tokens:,} tokens",
                seconds,
                f"{tokens / seconds:,.0f} tokens/s, {_tera(flops / seconds)}",
                flops / seconds / ceiling,
            ),
            Row("of that, optimizer", f"{facts.parameters:,} parameters", optimizer_s),
        ],
    )
    note(f"the first update, with compilation: {first:.1f} s")
    if plan is not None:
        note(f"planned, in GiB: {plan}")
        note(f"allocated at most: {gib(torch.cuda.max_memory_allocated(device))} GiB")


def made_up_batch(options: argparse.Namespace, vocabulary: int) -> TrainBatch:
    """Samples of uniform lengths, each with two turns of the policy's own."""
    rng = np.random.default_rng(options.seed)
    lengths: list[int] = []
    while sum(lengths) < options.tokens:
        lengths.append(int(rng.integers(options.shortest, options.longest + 1)))
    mask = np.concatenate([_turns(length, options.sampled) for length in lengths])
    return TrainBatch(
        rng.integers(0, vocabulary, len(mask)).astype(np.int32),
        mask,
        np.full(len(mask), -np.log(vocabulary), np.float32),
        np.cumsum([0, *lengths]).astype(np.int64),
        rng.normal(size=len(lengths)).astype(np.float32),
    )


def update_flops(facts: ModelFacts, batch: TrainBatch, *, reference: bool) -> float:
    """Operations that the mathematics of an update needs, whatever is computed twice.

    A parameter costs two operations per token forward and four backward, the output layer's at
    sampled tokens alone; a causal attention score twice as many per head width.
    """
    lengths = batch.lengths.astype(np.float64)
    scores = 2 * facts.layers * facts.queries * (lengths**2).sum()
    layers = 2 * facts.layers * facts.layer * lengths.sum()
    output = 2 * facts.vocabulary * facts.width * float(batch.mask.sum())
    return float((4 if reference else 3) * (scores + layers + output))


def matmul_flops(device: torch.device) -> float:
    """Operations per second of plain matrix products of random numbers, in the dtype computed in.

    Large enough to keep a GPU busy, small enough for a CPU.
    """
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=compute_dtype(device)) for _ in range(2))
    times = 10

    def multiply() -> None:
        for _ in range(times):
            a @ b

    return float(times * 2 * size**3 / _seconds(multiply, device)[1])


def _seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Of the first time, and the mean of `TIMES` more."""
    found = []
    for _ in range(1 + TIMES):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - started)
    return found[0], sum(found[1:]) / TIMES


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _turns(length: int, sampled: float) -> np.ndarray:
    mask = np.zeros(length, np.uint8)
    turn = max(1, int(length * sampled / 2))
    first = min(length // 3, length - 2 * turn)
    mask[first : first + turn] = 1
    mask[length - turn :] = 1
    mask[0] = 0
    return mask


def _plan(
    options: argparse.Namespace, facts: ModelFacts, device: torch.device
) -> MemoryPlan | None:
    if device.type != "cuda":
        return None
    work = Workload(
        micro_batch_tokens=options.micro_batch_tokens,
        longest=options.longest,
        reference=options.kl > 0,
        shard=1,
    )
    memory = torch.cuda.get_device_properties(device).total_memory
    return plan_memory(facts, work, options.gpu_share * memory)


def _learner(options: argparse.Namespace, device: torch.device, plan: MemoryPlan | None) -> Learner:
    scorer = _scorer(options, device, plan, frozen=False)
    on_cpu = plan is not None and plan.optimizer_on_cpu
    return Learner(
        Policy(
            scorer.model,
            learning_rate=1e-6,
            weight_decay=0.0,
            optimizer_device=torch.device("cpu") if on_cpu else None,
        ),
        scorer,
        _scorer(options, device, plan, frozen=True) if options.kl > 0 else None,
        ALGORITHMS["grpo"],
        LossSettings(clip=0.2, kl=options.kl),
        Ranks(0, 1, "", device),
        temperature=1.0,
        micro_batch_tokens=plan.micro_batch_tokens if plan else options.micro_batch_tokens,
    )


def _scorer(
    options: argparse.Namespace, device: torch.device, plan: MemoryPlan | None, *, frozen: bool
) -> Scorer:
    config = shape_of(options.shape).config()
    torch.manual_seed(options.seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=compute_dtype(device)).eval()
    scorer = Scorer(model.requires_grad_(not frozen))
    if plan is not None:
        scorer.compile_layers()
        scorer.recompute(0 if frozen else plan.recompute)
    return scorer


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.1f} TFLOP/s"
