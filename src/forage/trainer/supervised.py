"""A supervised start as a service: a model imitates traces written from supporting facts.

Importing it is cheap: the driver does, and it imports no torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from forage import app
from forage.agent.data.evidence import EvidenceWriter
from forage.agent.data.splits import hold_out, without
from forage.agent.retrieval import RetrievalError, open_retriever
from forage.agent.types import Passage, Question
from forage.errors import UserError
from forage.trainer.memory import let_blocks_grow, training_fits
from forage.trainer.tracebatch import Tokens, TraceEncoder, trace_batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from forage.trainer.batch import TrainBatch
    from forage.trainer.finetune import Finetuner, Progress

ASIDE_SHARE, ASIDE_MOST = 0.1, 200
"""Of the questions: set aside to measure the loss on, and how many at most."""
SEARCHES = 2**15
"""Searches whose passages are remembered: every epoch asks much the same."""
BUCKET = 16
"""Batches that are sorted by length together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedConfig:
    """What a supervised start needs to know.

    Attributes:
        model: folder in Hugging Face layout, or `.gguf` file.
        out: folder that the model is written to.
        retriever: index folder, or URL of a retrieval server.
        prompt, top_k, max_searches: as rollouts use them.
        max_tokens: longer traces are left out.
        max_epochs: at most; it ends before where the loss falls no further.
        learning_rate: of AdamW, at its highest.
        batch: traces per optimizer step.
        micro_batch_tokens: tokens per forward and backward pass.
        gpu_share: of a GPU's memory that may be used.
    """

    model: str
    out: str
    retriever: str
    prompt: str
    top_k: int
    max_searches: int
    max_tokens: int
    max_epochs: int
    learning_rate: float
    batch: int
    micro_batch_tokens: int
    gpu_share: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedReport:
    """What a supervised start did.

    Attributes:
        questions: that traces were asked for.
        traces: questions in the first epoch for which a trace could be written.
        aside: traces of other questions that only the loss is measured on.
        trace_tokens, written_tokens: mean tokens of a trace, and of those that the policy writes.
        losses: mean loss per written token on the traces set aside, in nats: before the first
            epoch and after each.
        best: the epoch whose model was written.
        steps: optimizer steps.
        converged: whether it ended because the loss fell no further.
    """

    questions: int
    traces: int
    aside: int
    trace_tokens: float
    written_tokens: float
    losses: tuple[float, ...]
    best: int
    steps: int
    converged: bool


@app.service(resreq="cpu=1")
@training_fits()
def supervise(config: SupervisedConfig, questions: tuple[Question, ...]) -> SupervisedReport:
    """Let the model imitate traces about `questions`, and write it to `config.out`.

    Raises:
        UserError: if no trace can be written, or learning from them fails.
    """
    from forage.model.load import load_tokenizer, save_policy

    let_blocks_grow()
    tokenizer = load_tokenizer(config.model)
    apart = hold_out(questions, min(ASIDE_MOST, max(1, round(len(questions) * ASIDE_SHARE))))
    traces = Traces(config, without(questions, apart), TraceEncoder(tokenizer, config.prompt))
    aside, first = traces.about(apart), traces.about(traces.questions)
    if not aside or not first:
        raise UserError(
            f"of {len(questions)} questions, traces could be written about {len(first)} to learn "
            f"from and {len(aside)} to measure on; searches must find the supporting paragraphs "
            "in the corpus"
        )
    finetuner, model = _finetuner(config)
    progress = finetuner.fit(traces.epoch, trace_batch(aside), config.max_epochs, _tell)
    save_policy(model, tokenizer, Path(config.out))
    return SupervisedReport(
        questions=len(questions),
        traces=len(first),
        aside=len(aside),
        trace_tokens=sum(len(ids) for ids, _ in first) / len(first),
        written_tokens=sum(sum(mask) for _, mask in first) / len(first),
        losses=tuple(progress.losses),
        best=progress.best,
        steps=progress.steps,
        converged=progress.converged,
    )


class Traces:
    """Traces about questions, written anew for every epoch."""

    def __init__(
        self, config: SupervisedConfig, questions: Sequence[Question], encoder: TraceEncoder
    ) -> None:
        """`questions` are those to learn from."""
        self.questions = questions
        self._config = config
        self._encoder = encoder
        self._rng = random.Random(config.seed)
        retriever = open_retriever(config.retriever)

        @lru_cache(SEARCHES)
        def search(query: str) -> list[Passage]:
            try:
                return retriever.search(query, config.top_k)
            except RetrievalError as error:
                raise UserError(f"a search failed: {error}; see to --retriever") from error

        self._writer = EvidenceWriter(search, config.max_searches, self._rng)

    def about(self, questions: Sequence[Question]) -> list[Tokens]:
        """A trace about each of `questions` for which one can be written and is short enough."""
        written = (self._writer.write(question) for question in questions)
        encoded = (self._encoder.encode(trace) for trace in written if trace is not None)
        longest = self._config.max_tokens
        return [tokens for tokens in encoded if tokens is not None and len(tokens[0]) <= longest]

    def epoch(self) -> list[TrainBatch]:
        """All that there is to learn from, in batches of traces of similar lengths."""
        traces, size = self.about(self.questions), self._config.batch
        self._rng.shuffle(traces)
        batches = []
        for start in range(0, len(traces), size * BUCKET):
            bucket = sorted(traces[start : start + size * BUCKET], key=lambda pair: len(pair[0]))
            batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
        self._rng.shuffle(batches)
        return [trace_batch(batch) for batch in batches]


def _finetuner(config: SupervisedConfig) -> tuple[Finetuner, PreTrainedModel]:
    import torch

    from forage.model.facts import ModelFacts
    from forage.model.load import compute_dtype, default_device, load_policy, model_config
    from forage.trainer.finetune import Finetuner
    from forage.trainer.memory import Workload, plan_memory
    from forage.trainer.scorer import Scorer

    device, tokens, recompute, place = default_device(), config.micro_batch_tokens, 0, None
    if device.type == "cuda":
        facts = ModelFacts.from_config(model_config(config.model))
        work = Workload(
            micro_batch_tokens=tokens, longest=config.max_tokens, reference=False, shard=1
        )
        memory = torch.cuda.get_device_properties(device).total_memory
        plan = plan_memory(facts, work, config.gpu_share * memory)
        tokens, recompute = plan.micro_batch_tokens, plan.recompute
        place = torch.device("cpu") if plan.optimizer_on_cpu else None
    model = load_policy(config.model, compute_dtype(device), device)
    scorer = Scorer(model)
    scorer.recompute(recompute)
    return Finetuner(scorer, config.learning_rate, tokens, place), model


def _tell(progress: Progress) -> None:
    epoch, loss = len(progress.losses) - 1, progress.losses[-1]
    sys.stderr.write(f"epoch {epoch}: {progress.steps} steps, loss {loss:.4f} set aside\n")
