"""`forage bench step`: whole training steps on the shape of a run, phase by phase.

Services, driver and step are those of `forage train`. Turns end by count, since random weights
never write a tag, and rewards differ within every second group only, so that half of the samples
are trained on.
"""

from __future__ import annotations

import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import cast

from forage import app
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Question
from forage.app.services import ServiceClass
from forage.bench.scripted import Script, ScriptedRollout
from forage.bench.shapes import build
from forage.bench.table import Row, note, rate, show
from forage.bench.texts import made_up_passages
from forage.errors import UserError
from forage.loop.config import TrainConfig
from forage.loop.generation import Policy
from forage.loop.metrics import SETTLING_STEPS, StepMetrics
from forage.loop.preflight import check_fit, check_shards
from forage.loop.rundir import RunDir
from forage.loop.services import Services, open_trainers, rollout_config, rollout_options
from forage.loop.step import train_step
from forage.report.numbers import percent, size

PASSAGES, WORDS, TOP_K = 20_000, 100, 3
"""Made-up passages, words of each, and how many a search brings."""


def run(options: Namespace) -> None:
    """Measure, and print the table.

    Raises:
        UserError: if the numbers don't go together, or the executors don't fit.
    """
    if options.prompts % options.prompts_per_task or options.prompts % 2:
        raise UserError(
            f"--prompts {options.prompts}: must be even and divisible by --prompts-per-task "
            f"{options.prompts_per_task}"
        )
    script = Script(
        prompt_tokens=options.prompt_tokens,
        searches=options.searches,
        turn_tokens=options.turn_tokens,
        information_tokens=options.information_tokens,
    )
    config = _config(options, script)
    check_shards(config)
    check_fit(config)
    with TemporaryDirectory(prefix="forage-bench-") as folder:
        steps = _steps(config, script, options, Path(folder))
    measured = steps[SETTLING_STEPS:]
    title = f"step, {options.shape}, {config.rollouts} x rollout, {config.trainers} x trainer"
    show(title, _rows(config, script, measured))
    _notes(measured)


def reward(question: Question, answer: str | None, transcript: str) -> float:
    """Alike for all samples of a question with an even number, else different for each."""
    odd = int(question.id.removeprefix("q")) % 2
    return odd * zlib.crc32(transcript.encode()) / 2**32


def _steps(
    config: TrainConfig, script: Script, options: Namespace, folder: Path
) -> list[StepMetrics]:
    """What is recorded of every step, the first ones included."""
    passages = made_up_passages(PASSAGES, WORDS, options.seed)
    texts = [passage.text for passage in passages]
    model = str(build(options.shape, folder / "model", options.seed, texts))
    index = str(build_index(passages, folder / "index"))
    run = RunDir(folder / "run")
    run.create(config)
    policy, steps = Policy(), []
    scripted = cast(
        ServiceClass[ScriptedRollout], app.service(resreq="cpu=1")(ScriptedRollout)
    ).options(**rollout_options(config))
    with app.init("bench-step", run_dir=run.path):
        services = Services(
            trainers=open_trainers(config, model),
            rollouts=scripted.remote(rollout_config(config, model, index), script),
        )
        for step in range(1, config.steps + 1):
            questions = _questions(config.prompts_per_step, step, options.seed)
            metrics, policy = train_step(step, questions, policy, config, services, run)
            steps.append(metrics)
            note(f"step {step}: {metrics.step_s:.1f} s")
    return steps


def _questions(count: int, step: int, seed: int) -> list[Question]:
    """Other ones for every step."""
    asked = made_up_passages(count, 12, hash((seed, step)) % 2**32)
    return [Question(f"q{number}", text.text, ("",)) for number, text in enumerate(asked)]


def _config(options: Namespace, script: Script) -> TrainConfig:
    samples = options.prompts * options.samples
    return TrainConfig(
        model=options.shape,
        steps=SETTLING_STEPS + options.steps,
        seed=options.seed,
        reward=f"{__name__}:reward",
        top_k=TOP_K,
        max_searches=script.limits.max_searches,
        max_turn_tokens=script.limits.max_turn_tokens,
        max_tokens=script.limits.max_tokens,
        prompts_per_step=options.prompts,
        prompts_per_task=options.prompts_per_task,
        group_size=options.samples,
        max_batch=-(-samples // options.rollouts),
        rollouts=options.rollouts,
        max_rollouts=options.rollouts,
        trainers=options.trainers,
        shard=options.shard,
        rollout_resources=options.rollout_resources,
        trainer_resources=options.trainer_resources,
        micro_batch_tokens=options.micro_batch_tokens,
        kl=options.kl,
    )


def _rows(config: TrainConfig, script: Script, steps: Sequence[StepMetrics]) -> list[Row]:
    samples = config.prompts_per_step * config.group_size
    trained = round(mean(step.samples_trained for step in steps))
    each = script.read + script.sampled
    whole, rollout, sync, update, publish = (
        mean(getattr(step, name) for step in steps)
        for name in ("step_s", "rollout_s", "sync_s", "update_s", "publish_s")
    )
    drawn = samples * script.sampled
    return [
        Row(
            "rollout",
            f"{samples} samples, {samples * script.read:,} + {drawn:,} tokens",
            rollout,
            rate(drawn, rollout, "tokens"),
            rollout / whole,
        ),
        Row("of that, weights fetched and applied", "", sync, "", sync / whole),
        Row(
            "update",
            f"{trained} samples, {trained * each:,} tokens",
            update,
            rate(trained * each, update, "tokens"),
            update / whole,
        ),
        Row(
            "publish",
            size(mean(step.published_bytes for step in steps)),
            publish,
            "",
            publish / whole,
        ),
        Row("step", f"mean of {len(steps)}", whole, "", 1.0),
    ]


def _notes(steps: Sequence[StepMetrics]) -> None:
    idle = [
        percent(mean(getattr(step, f"{who}_idle_fraction") for step in steps))
        for who in ("rollout", "trainer")
    ]
    note(f"idle: rollout executors {idle[0]}, trainers {idle[1]}")
    changed = mean(step.changed_fraction for step in steps)
    mismatch = [step.mismatch_mean for step in steps if step.mismatch_mean is not None]
    note(f"weights changed by an update: {percent(changed)}")
    if mismatch:
        note(f"|log p(trainer) - log p(engine)|: mean {mean(mismatch):.4f}")
