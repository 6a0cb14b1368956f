"""`forage warmstart`, from question files to a model that training takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hop_questions import hop_records
from transformers import AutoModelForCausalLM

from forage.agent.prompts import PROMPTS
from forage.agent.protocol import information_parts
from forage.agent.types import Passage
from forage.model.load import round_to_bf16, save_policy
from forage.model.small import small_llama, word_tokenizer

FLAGS = {
    "--model": "model",
    "--data": "hops.jsonl",
    "--heldout": "20",
    "--prompt": "plain",
    "--top-k": "2",
    "--max-tokens": "400",
    "--resources": "cpu=4,mem=8g",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two-hop questions and a small model that knows their words."""
    folder = tmp_path_factory.mktemp("warmstart")
    records = hop_records(120)
    (folder / "hops.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    texts = [json.dumps(record["context"]) + record["question"] for record in records]
    texts += [text for text, _ in information_parts([Passage("T", "t"), Passage("T", "t")])]
    texts += [
        *PROMPTS.values(),
        "I need to know about. Let me look up. Now I know the answer.",
        "I search for what the question asks. Let me look for the question's words.",
        "The passages tell it. <think></think><search></search><answer></answer>",
    ]
    tokenizer = word_tokenizer(texts)
    model = small_llama(tokenizer, layers=2, width=64, heads=4, seed=0)
    round_to_bf16(model)
    save_policy(model, tokenizer, folder / "model")
    return folder


def forage(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forage.cli", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def warmstart(place: Path, **changes: str | None) -> subprocess.CompletedProcess[str]:
    flags = {**FLAGS, "--out": "start"}
    flags |= {f"--{key.replace('_', '-')}": value for key, value in changes.items()}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    return forage(place, "warmstart", *words)


def test_a_model_learns_from_traces_and_can_be_evaluated(place: Path) -> None:
    done = warmstart(place, rate="5e-3", max_epochs="6", batch="8")
    assert done.returncode == 0, done.stderr
    first, losses, kept, wrote = done.stdout.splitlines()
    assert first.startswith("90 traces to learn from, 10 set aside, about 100 questions")
    found = [float(word) for word in losses.partition(": ")[2].split()]
    assert found[-1] < 0.5 * found[0]
    assert kept.startswith("kept epoch ")
    assert wrote == "wrote start; go on with: forage train --model start"
    assert sorted(path.name for path in place.iterdir()) == ["hops.jsonl", "model", "start"]
    assert AutoModelForCausalLM.from_pretrained(place / "start").dtype == torch.bfloat16

    keys = ("--data", "--heldout", "--prompt", "--top-k", "--max-tokens", "--resources")
    words = [word for key in keys for word in (key, FLAGS[key])]
    more = ["--max-turn-tokens", "80", "--eval-samples", "0", "--max-rollouts", "1", "--json"]
    evaluated = forage(place, "eval", "start", *words, *more)
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["n"] == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no model to start from; give --model"),
        ({"model": "absent"}, "--model absent: does not exist"),
        ({"data": "atlas"}, "--data atlas: names no supporting paragraphs, which traces are"),
        ({"out": "model"}, "--out model: exists already; choose a new folder"),
        ({"prompt": "haiku"}, "prompt 'haiku' is unknown"),
        ({"rate": "0"}, "argument --rate: is 0; it must be greater than 0"),
        ({"rate": "fast"}, "argument --rate: invalid"),
        ({"batch": "0"}, "argument --batch: is 0; it must be at least 1"),
        ({"questions": "none"}, "argument --questions: invalid whole number value: 'none'"),
        ({"max_tokens": "20"}, "of 100 questions, traces could be written about 0 to learn from"),
        ({"learning_rate": "1"}, "unknown flag --learning-rate"),
        ({"trainer_resources": "cpu=64"}, "does not fit"),
    ],
)
def test_mistakes(place: Path, changes: dict[str, str | None], message: str) -> None:
    done = warmstart(place, **{"out": "other", **changes})
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (place / "other").exists()
