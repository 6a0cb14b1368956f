"""What a trainer needs of a GPU's memory, and what it gives up where that is too little.

Everything is computed from the model's configuration, before anything is loaded. What can be given
up for memory is, with its price in time as measured on an H200 with a model of 3 billion
parameters:

- micro-batches of half as many tokens, and half of that, down to `LEAST_TOKENS` or the longest
  sample that there may be: `SMALL_BATCH` tokens' time more for each micro-batch;
- the activations of the first k layers, which are computed again in the backward pass: `TWICE` of
  the whole time for all layers;
- the GPU for the copy of what was published last, which the next is compared with: `COPY` of the
  whole time;
- the GPU for masters, their gradient and Adam, which then lie in the host's memory, with that copy.

The rule: of all combinations that fit, with the optimizer on the GPU if there is one, the one that
these prices call fastest.

This module imports no torch: the driver asks it too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from forage.errors import UserError
from forage.model.facts import ModelFacts
from forage.model.memory import GIB, clear_when_full, gib

RESERVE = 1.5 * GIB
"""The CUDA context, communication buffers and library workspaces."""
USABLE = 0.95
"""Of what is left, the rest being lost between blocks of various sizes."""
LOGITS_CHUNK = 4096
"""Positions whose logits exist at the same time."""
LEAST_TOKENS = 4096
"""Of a micro-batch that is made smaller to fit."""
SMALL_BATCH, SMALL_BATCH_ON_CPU = 700, 40_000
"""What a micro-batch costs beside its tokens, in tokens: its gradient is added to the others', on
the GPU or, sent there, on the CPU."""
TWICE = 0.28
"""What computing all layers' activations again adds to the time of an update."""
COPY = 0.03
"""What comparing with a copy on the CPU adds to the time of an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a trainer is asked to hold and to compute.

    Attributes:
        micro_batch_tokens: tokens per forward and backward pass, at most.
        longest: tokens of the longest sample that there may be.
        reference: whether a frozen reference model is held too.
        shard: trainers that hold one copy of everything together.
    """

    micro_batch_tokens: int
    longest: int
    reference: bool
    shard: int

    @property
    def choices(self) -> list[int]:
        """Tokens that micro-batches may have, largest first."""
        found = [self.micro_batch_tokens]
        while found[-1] // 2 >= max(LEAST_TOKENS, self.longest):
            found.append(found[-1] // 2)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How a trainer fits into `budget` bytes of a GPU.

    Attributes:
        micro_batch_tokens: tokens per forward and backward pass.
        recompute: layers whose activations are computed again in the backward pass.
        copy_on_cpu: whether the copy of what was published last is in the host's memory.
        optimizer_on_cpu: whether masters, their gradient and Adam are.
        parts: bytes on the GPU of each kind.
        host: bytes of the host's memory.
    """

    budget: float
    micro_batch_tokens: int
    recompute: int
    copy_on_cpu: bool
    optimizer_on_cpu: bool
    parts: dict[str, float]
    host: float

    @property
    def needed(self) -> float:
        """Bytes on the GPU."""
        return sum(self.parts.values())

    def arithmetic(self) -> str:
        """The parts, their sum and the budget, in GiB."""
        parts = " + ".join(f"{name} {gib(size)}" for name, size in self.parts.items() if size)
        return f"{parts} = {gib(self.needed)} GiB of {gib(self.budget)}"

    def __str__(self) -> str:
        how = [f"micro-batches of {self.micro_batch_tokens} tokens"]
        if self.recompute:
            how.append(f"{self.recompute} layers computed twice")
        if self.copy_on_cpu:
            what = "optimizer and published copy" if self.optimizer_on_cpu else "published copy"
            how.append(f"{what} on the CPU ({gib(self.host)} GiB of the host's memory)")
        return f"{self.arithmetic()}; {', '.join(how)}"


training_fits = partial(clear_when_full, "a trainer", "lower --micro-batch-tokens or --max-tokens")
"""Around what trainers compute: running out of memory becomes one line."""


def let_blocks_grow() -> None:
    """Let torch's allocator grow its blocks; to be called before it is first used.

    Micro-batches differ in size, and blocks of one size can't be reused for another otherwise.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def plan_memory(facts: ModelFacts, work: Workload, budget: float) -> MemoryPlan:
    """The plan that the rule chooses for `budget` bytes of a GPU.

    Raises:
        UserError: if nothing fits, with the arithmetic of the smallest plan.
    """
    for on_cpu in (False, True):
        plans = [
            _plan(facts, work, budget, tokens, recompute, copy_on_cpu, on_cpu)
            for tokens in work.choices
            for recompute in range(facts.layers + 1)
            for copy_on_cpu in {on_cpu, True}
        ]
        fitting = [plan for plan in plans if plan.needed <= budget]
        if fitting:
            return min(fitting, key=lambda plan: _price(facts, plan))
    smallest = min(plans, key=lambda plan: plan.needed)
    raise UserError(
        f"a trainer does not fit on the GPU even with its optimizer on the CPU: "
        f"{smallest.arithmetic()}; lower --micro-batch-tokens or --max-tokens, give the trainer "
        "more of the card, or raise --trainers and --shard"
    )


def _price(facts: ModelFacts, plan: MemoryPlan) -> float:
    """The time of an update, as a multiple of that of very large micro-batches."""
    each = SMALL_BATCH_ON_CPU if plan.optimizer_on_cpu else SMALL_BATCH
    twice = TWICE * plan.recompute / facts.layers
    return 1 + each / plan.micro_batch_tokens + twice + COPY * plan.copy_on_cpu


def _plan(
    facts: ModelFacts,
    work: Workload,
    budget: float,
    tokens: int,
    recompute: int,
    copy_on_cpu: bool,
    optimizer_on_cpu: bool,
) -> MemoryPlan:
    own = facts.parameters / work.shard
    optimizer, copy = 16.0 * own, 2.0 * own
    # Of a sharded model two layers and what is outside the layers are whole at a time, each with
    # its gradient in fp32.
    gathered = 0 if work.shard == 1 else 2 * facts.layer + facts.embeddings
    copies = 2 if work.reference else 1
    held = max(tokens, work.longest)  # a sample is never split
    parts = {
        "weights": 2.0 * own,
        "reference": 2.0 * own if work.reference else 0.0,
        "gathered": 2.0 * copies * gathered + 4.0 * gathered,
        "masters, gradient and Adam": 0.0 if optimizer_on_cpu else optimizer,
        "published copy": 0.0 if copy_on_cpu else copy,
        "activations": _activations(facts, held, recompute),
        "output layer": _output_layer(facts, held),
        "reserve": RESERVE + (1 - USABLE) * max(0.0, budget - RESERVE),
    }
    return MemoryPlan(
        budget=budget,
        micro_batch_tokens=tokens,
        recompute=recompute,
        copy_on_cpu=copy_on_cpu,
        optimizer_on_cpu=optimizer_on_cpu,
        parts=parts,
        host=optimizer * optimizer_on_cpu + copy * copy_on_cpu,
    )


def _activations(facts: ModelFacts, tokens: int, recompute: int) -> float:
    """Bytes while the gradient of a layer is formed, the others being kept or to be recomputed."""
    inputs = 2 * facts.width
    kept = (facts.layers - recompute) * facts.kept + recompute * inputs
    again = facts.kept if recompute == facts.layers else 0
    return tokens * (kept + again + facts.passing + 2 * inputs)


def _output_layer(facts: ModelFacts, tokens: int) -> float:
    """Bytes of a chunk of logits with its gradient, and of the output layer's gradient."""
    logits = 2 * 2 * min(tokens, LOGITS_CHUNK) * facts.vocabulary
    return logits + (4 + 2 + 2) * facts.vocabulary * facts.width
