"""Generation with real searches beside raw vLLM on the same tokens, one request per sample."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

from forage.agent.data import load_dataset
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Passage, Question
from forage.bench.scripted import Script, ScriptedRollout
from forage.bench.shapes import build
from forage.bench.table import Row, note, rate, show
from forage.bench.texts import made_up_passages
from forage.errors import UserError
from forage.rollout.trajectory import Trajectory
from forage.rollout.types import GenerateRequest, RolloutConfig

PASSAGES, WORDS, TOP_K = 20_000, 100, 3
"""Made-up passages, words of each, and how many a search brings."""
ROUNDS = 2
"""Times that either is measured, in turns, after one to warm up."""


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over all samples."""

    seconds: float
    samples: tuple[Trajectory, ...]


def run(options: Namespace) -> None:
    """Measure, and print the table."""
    if options.corpus is not None and options.data is None:
        raise UserError(f"--corpus {options.corpus}: give --data too, whose questions are asked")
    script = Script(
        prompt_tokens=options.prompt_tokens,
        searches=options.searches,
        turn_tokens=options.turn_tokens,
        information_tokens=options.information_tokens,
    )
    questions, passages = _texts(options)
    with tempfile.TemporaryDirectory(prefix="forage-bench-") as folder:
        model = build(options.shape, Path(folder) / "model", options.seed, _texts_of(passages))
        index = build_index(passages, Path(folder) / "index")
        rollout = ScriptedRollout(_config(options, script, model, index), script)
    ours, raw = _measure(rollout, questions, script, options.calls)
    searches = [time for round in ours for sample in round.samples for time in sample.search_ms]
    show(f"rollout, {options.shape}", _rows(script, options.prompts, ours, raw))
    if not raw:
        note("PyTorch generates here; beside vLLM, on a GPU, its own loop is measured too")
    if searches:
        count = f"{len(searches)} searches of {len(passages)} passages"
        note(f"{count}: median {median(searches):.1f} ms")


def _measure(
    rollout: ScriptedRollout, questions: Sequence[Question], script: Script, calls: int
) -> tuple[list[Round], list[float]]:
    """Rounds of ours, and seconds of raw vLLM (none without it), taken in turns."""
    ours: list[Round] = []
    raw: list[float] = []
    each = len(questions) // (1 + ROUNDS)
    for step in range(1 + ROUNDS):
        asked = questions[step * each : (step + 1) * each]
        ours.append(_ours(rollout, asked, calls, step))
        raw += _raw(rollout, ours[-1].samples, script)
    return ours[1:], raw[1:]


def _ours(rollout: ScriptedRollout, questions: Sequence[Question], calls: int, step: int) -> Round:
    """All questions in `calls` calls at the same time."""
    rollout.batches.change(rollout.batches.engine.weights_changed)  # an empty prefix cache
    each = -(-len(questions) // calls)
    requests = [
        GenerateRequest(
            purpose="bench",
            step=step,
            questions=tuple(questions[start : start + each]),
            samples=1,
            greedy=False,
            manifest=None,
            weight_version=0,
        )
        for start in range(0, len(questions), each)
    ]
    started = perf_counter()
    with ThreadPoolExecutor(len(requests)) as threads:
        results = list(threads.map(rollout.generate, requests))
    seconds = perf_counter() - started
    return Round(seconds, tuple(each for result in results for each in result.trajectories))


def _raw(rollout: ScriptedRollout, samples: Sequence[Trajectory], script: Script) -> list[float]:
    """Seconds that vLLM's own loop takes, reading what the samples read, all of it at first."""
    llm = getattr(rollout.batches.engine, "llm", None)
    if llm is None:
        return []
    prompts = [sample.token_ids[sample.mask == 0].tolist() for sample in samples]

    def loop() -> None:
        for number, prompt in enumerate(prompts):
            tokens: Any = {"type": "token", "prompt_token_ids": prompt}
            llm.add_request(f"raw-{number}", tokens, _raw_sampling(script.sampled))
        while llm.has_unfinished_requests():
            llm.step()

    rollout.batches.change(rollout.batches.engine.weights_changed)  # an empty prefix cache
    return [rollout.batches.change(loop)]


def _raw_sampling(tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _rows(script: Script, samples: int, ours: Sequence[Round], raw: Sequence[float]) -> list[Row]:
    drawn = samples * script.sampled
    amount = f"{samples} samples, {samples * script.read:,} + {drawn:,} tokens"
    seconds = mean(round.seconds for round in ours)
    share = mean(raw) / seconds if raw else None
    rows = [Row("rollout", amount, seconds, rate(drawn, seconds, "tokens"), share)]
    if raw:
        rows.append(Row("raw vLLM", amount, mean(raw), rate(drawn, mean(raw), "tokens"), 1.0))
    return rows


def _texts(options: Namespace) -> tuple[list[Question], list[Passage]]:
    """A question for each sample of all rounds, all different, and the passages to search."""
    count = (1 + ROUNDS) * options.prompts
    if options.data is None:
        passages = made_up_passages(PASSAGES, WORDS, options.seed)
        asked = made_up_passages(count, 12, options.seed + 1)
        return [Question(f"q{i}", p.text, ("",)) for i, p in enumerate(asked)], passages
    data = load_dataset(options.data, heldout=1, corpus=options.corpus)
    asked_of = [data.train[index % len(data.train)] for index in range(count)]
    questions = [
        Question(f"q{index}", f"{index} {question.text}", question.answers)
        for index, question in enumerate(asked_of)
    ]
    return questions, list(data.corpus)


def _texts_of(passages: Sequence[Passage]) -> list[str]:
    return [passage.text for passage in passages]


def _config(options: Namespace, script: Script, model: Path, index: Path) -> RolloutConfig:
    return RolloutConfig(
        model=str(model),
        retriever=str(index),
        prompt="search-r1",
        reward="em",
        top_k=TOP_K,
        max_searches=script.limits.max_searches,
        max_turn_tokens=script.limits.max_turn_tokens,
        max_tokens=script.limits.max_tokens,
        temperature=1.0,
        seed=options.seed,
        max_batch=options.prompts,
        generation="auto",
        gpu_memory=options.gpu_memory,
    )
