"""How rollouts are to generate, found out from the configuration alone."""

from __future__ import annotations

import json

import pytest

from forage.errors import UserError
from forage.loop import generating, preflight
from forage.loop.config import TrainConfig
from forage.loop.generating import (
    calls_at_once,
    check_generation,
    check_generation_memory,
    generation_share,
)
from forage.loop.preflight import check_memory
from forage.model.memory import GIB
from forage.rollout import choice

SMALL = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setattr(choice, "vllm_version", lambda: "0.25.1")


def config(gpu: float | None = None, **values) -> TrainConfig:
    resources = "cpu=1" if gpu is None else f"cpu=1,gpu={gpu}"
    return TrainConfig(rollout_resources=resources, **values)


def test_calls_fill_the_batch_where_they_share_one(vllm):
    assert calls_at_once(config(gpu=1, max_batch=256, prompts_per_task=5, group_size=5)) == 11
    assert calls_at_once(config(gpu=1, max_batch=8, prompts_per_task=5, group_size=5)) == 1
    assert calls_at_once(config(gpu=1, generation="torch")) == 1
    assert calls_at_once(config()) == 1


def test_a_part_of_a_gpu_gives_a_part_of_its_memory():
    assert generation_share(config(gpu=0.5)) == pytest.approx(0.45)
    assert generation_share(config(gpu=2)) == pytest.approx(0.9)
    assert generation_share(config(gpu=0.5, gpu_memory=0.3)) == 0.3


def test_an_engine_that_cannot_be_had_is_an_error(vllm):
    check_generation(config(gpu=1, generation="vllm"))
    with pytest.raises(UserError, match="needs a GPU in every rollout executor"):
        check_generation(config(generation="vllm"))
    with pytest.raises(UserError, match="--gpu-memory 1.5: it is a share, at most 1"):
        check_generation(config(gpu=1, gpu_memory=1.5))


def test_a_cluster_is_asked_for_nothing_but_gpus():
    check_generation(config(gpu=1, generation="vllm", address="auto", engine="ray"))
    with pytest.raises(UserError, match="needs a GPU"):
        check_generation(config(generation="vllm", address="auto", engine="ray"))


def test_a_dry_run_tells_how_many_samples_fit(vllm, monkeypatch):
    monkeypatch.setattr(generating, "gpu_memories", lambda: [8 * GIB, 24 * GIB, 24 * GIB])
    lines = check_generation_memory(config(gpu=1, max_batch=200), SMALL)
    assert [line.split(" GiB GPU: weights 0.3")[0] for line in lines] == ["8", "24"]
    assert lines[1].endswith("for 200 samples of 4096 tokens at once")
    monkeypatch.setattr(generating, "gpu_memories", lambda: [2 * GIB])
    with pytest.raises(UserError, match="generation does not fit on the GPU"):
        check_generation_memory(config(gpu=1, max_batch=200), SMALL)


LARGE = {
    "model_type": "qwen2",
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("resources", "address", "refusal"),
    [
        ("cpu=1,gpu=1", None, "does not fit on the GPU"),
        ("cpu=1", None, None),
        ("cpu=1,gpu=1", "head:6379", None),
    ],
)
def test_trainers_are_asked_to_fit_on_gpus_that_they_will_have(
    monkeypatch, tmp_path, resources, address, refusal
):
    monkeypatch.setattr(preflight, "gpu_memories", lambda: [8 * GIB])
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    asked = config(model=str(tmp_path), trainer_resources=resources, address=address)
    if refusal is None:
        check_memory(asked)
    else:
        with pytest.raises(UserError, match=refusal):
            check_memory(asked)


def test_what_trainers_keep_in_the_hosts_memory_has_to_be_there(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "gpu_memories", lambda: [24 * GIB])
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    asked = {"model": str(tmp_path), "resources": "cpu=4,mem=600g"}
    check_memory(config(trainer_resources="cpu=1,gpu=1", **asked))
    with pytest.raises(UserError, match="but it asks for 32.0 GiB"):
        check_memory(config(trainer_resources="cpu=1,gpu=1,mem=32g", **asked))
    with pytest.raises(UserError, match="but this machine has 600.0 GiB"):
        check_memory(config(trainer_resources="cpu=1,gpu=1", trainers=12, **asked))


def test_what_pytorch_generates_with_needs_no_facts(monkeypatch):
    monkeypatch.setattr(generating, "gpu_memories", lambda: [24 * GIB])
    experts = SMALL | {"num_experts": 8}
    assert check_generation_memory(config(gpu=1, generation="torch"), experts) == []
