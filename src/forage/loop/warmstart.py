"""A supervised start from supporting facts: from the data to a model that `train` takes."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from forage import app
from forage.agent.data.splits import limit_to
from forage.agent.types import DataSet, Question
from forage.errors import UserError
from forage.loop.config import TrainConfig
from forage.loop.executors import gpu_share, trainer_resources
from forage.loop.files import absolute, check_writable
from forage.loop.modelfiles import check_model, fetch_model
from forage.loop.preflight import check_agent, check_fit, check_memory, load_data
from forage.loop.services import retriever_of
from forage.trainer.supervised import SupervisedConfig, SupervisedReport, supervise


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What a supervised start is told beside a run's configuration.

    Attributes:
        out: new folder that the model is written to.
        questions: traces are written about so many of the training questions; None for all.
        max_epochs: at most; it ends before where the loss falls no further.
        learning_rate: at its highest.
        batch: traces per optimizer step.
    """

    out: str
    questions: int | None
    max_epochs: int
    learning_rate: float
    batch: int


def write_start(config: TrainConfig, options: StartOptions) -> SupervisedReport:
    """Let `config.model` imitate traces about training questions, and write it to `options.out`.

    Held-out questions are those of a run with the same configuration; no trace is about them.

    Raises:
        UserError: for mistakes in the configuration or the data, before any process starts.
    """
    alone, data, questions = _checked(config, options)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix="forage-") as folder,
        app.init(
            "forage-warmstart",
            engine=alone.engine,
            address=alone.address,
            resources=alone.resources,
        ),
    ):
        retriever = retriever_of(alone, data, Path(folder))
        service = supervise.options(resreq=trainer_resources(alone), threads=alone.trainer_threads)
        asked = _supervised(alone, options, str(part.absolute()), absolute(retriever))
        report: SupervisedReport = service.remote(asked, questions).result()
    part.rename(out)
    return report


def _checked(
    config: TrainConfig, options: StartOptions
) -> tuple[TrainConfig, DataSet, tuple[Question, ...]]:
    """The configuration of a trainer that runs alone, the data, and what to write traces about."""
    # There are no rollouts to share a GPU with, and no reference.
    alone = replace(config, rollouts=0, trainers=1, shard=1, kl=0.0)
    out = Path(options.out)
    if alone.model is None:
        raise UserError("no model to start from; give --model")
    check_model(alone.model)
    check_agent(alone)
    check_fit(alone)
    check_memory(alone)
    if out.exists():
        raise UserError(f"--out {out}: exists already; choose a new folder")
    check_writable(out, "--out")
    data = load_data(alone)
    questions = _with_evidence(alone, data, options.questions)
    fetch_model(alone.model)
    return alone, data, questions


def _supervised(
    alone: TrainConfig, options: StartOptions, out: str, retriever: str
) -> SupervisedConfig:
    assert alone.model is not None
    return SupervisedConfig(
        model=absolute(alone.model),
        out=out,
        retriever=retriever,
        prompt=alone.prompt,
        top_k=alone.top_k,
        max_searches=alone.max_searches,
        max_tokens=alone.max_tokens,
        max_epochs=options.max_epochs,
        learning_rate=options.learning_rate,
        batch=options.batch,
        micro_batch_tokens=alone.micro_batch_tokens,
        gpu_share=gpu_share(trainer_resources(alone)),
        seed=alone.seed,
    )


def _with_evidence(config: TrainConfig, data: DataSet, limit: int | None) -> tuple[Question, ...]:
    """The training questions to write traces about, without the paragraphs that aren't needed."""
    found = [
        replace(question, paragraphs=()) for question in data.train if question.supporting_titles
    ]
    if config.corpus is not None or config.retriever is not None:
        # Searches find other paragraphs than those of the questions: titles have to do.
        found = [replace(question, supporting=()) for question in found]
    if not found:
        raise UserError(
            f"--data {config.data}: names no supporting paragraphs, which traces are written "
            "from; HotpotQA, 2WikiMultihopQA and MuSiQue do, and ctxs with isgold"
        )
    return tuple(found if limit is None else limit_to(found, limit))
