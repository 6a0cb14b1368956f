"""Every mistake of a user's: one clear line, exit code 2, and nothing begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORDS = [
    {
        "id": f"q{i}",
        "question": f"Which river runs through town {i}?",
        "answer": f"river {i}",
        "ctxs": [{"title": f"Town {i}", "text": f"River {i} runs through town {i}."}],
    }
    for i in range(12)
]


SHAPE = {
    "model_type": "qwen2",
    "max_position_embeddings": 8192,
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
"""Of a model of 3 billion parameters."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a sound model, data file and configuration."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    (model / "tokenizer.json").touch()
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    lines = [json.dumps(record) + "\n" for record in RECORDS]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    (tmp_path / "passages.jsonl").write_text('{"title": "T", "text": "Some text."}\n')
    return tmp_path


SOUND = {
    "--model": "model",
    "--data": "data.jsonl",
    "--corpus": "passages.jsonl",
    "--heldout": "2",
    "--prompts-per-step": "4",
    "--prompts-per-task": "2",
    "--group-size": "2",
    "--resources": "cpu=8,mem=16g",
    "--out": "out",
}


def _forage(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forage.cli", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def _refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("forage: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("forage: ").rstrip("\n")


def _train(place: Path, changes: dict[str, str | None], *more: str) -> str:
    """The refusal of a sound training command with some flags changed, or left out (None)."""
    flags = {**SOUND, **changes}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    before = set(place.rglob("*"))
    line = _refused(_forage(place, "train", *words, *more))
    assert set(place.rglob("*")) == before  # Nothing was begun.
    return line


def test_the_sound_command_is_sound(place: Path) -> None:
    words = [word for pair in SOUND.items() for word in pair]
    done = _forage(place, "train", *words, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "prompts_per_step = 4\n" in done.stdout
    assert "# data: 10 training questions, 2 held out, 1 passages" in done.stdout
    assert "# fits: 1 x rollout (cpu=1) + 1 x trainer (cpu=1) = cpu=2" in done.stdout
    assert not (place / "out").exists()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="a GPU here is answered for instead")
def test_a_dry_run_says_what_a_trainer_needs_of_a_gpu(place: Path) -> None:
    words = [word for pair in SOUND.items() for word in pair]
    lines = _forage(place, "train", *words, "--dry-run").stdout.splitlines()
    small, large = (line for line in lines if line.startswith("# memory in GiB: trainer, "))
    assert "24 GiB GPU: weights 5.7 + reference 5.7 + " in small
    assert "optimizer and published copy on the CPU (51.7 GiB of the host's memory)" in small
    assert "80 GiB GPU: weights 5.7 + reference 5.7 + masters, gradient and Adam 46.0" in large


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--group-size": "1"}, "--group-size is 1; it must be at least 2 (a sample is compared"),
        (
            {"--prompts-per-task": "3"},
            "--prompts-per-step 4 is not divisible by --prompts-per-task",
        ),
        ({"--steps": "ten"}, "--steps is 'ten'; expected a whole number"),
        ({"--learning-rate": "0"}, "--learning-rate is 0.0; it must be greater than 0"),
        ({"--stepz": "3"}, "unknown flag --stepz; did you mean --steps?"),
        (
            {"--trainers": "3", "--shard": "2"},
            "--trainers 3 is not divisible by --shard 2; every copy of the model",
        ),
        ({"--model": None}, "no model to train; give --model, or try --preset quickstart"),
        ({"--model": "absent"}, "--model absent: does not exist"),
        ({"--model": "data.jsonl"}, "--model data.jsonl: neither a folder nor a .gguf file"),
        ({"--model": "absent.gguf"}, "--model absent.gguf: there is no such file"),
        ({"--max-tokens": "9000"}, "--max-tokens 9000: the model reads at most 8192; lower it"),
        ({"--retriever": "ftp://host"}, "retriever URL 'ftp://host' must look like"),
        ({"--out": "data.jsonl/run"}, "data.jsonl is no folder that can be written in"),
        ({"--model": "nobody/nothing"}, "--model nobody/nothing: no such folder, and the Hugging"),
        ({"--warm-start-steps": "5"}, "a warm start builds its own model; give one of the two"),
        (
            {"--model": None, "--warm-start-steps": "5"},
            "the small model knows the words of atlas only",
        ),
        ({"--reward": "bleu"}, "reward 'bleu' is unknown"),
        ({"--reward": "nosuchmodule:score"}, "can't import 'nosuchmodule'"),
        ({"--prompt": "haiku"}, "prompt 'haiku' is unknown; choose one of: plain, search-r1"),
        ({"--algorithm": "ppo"}, "--algorithm is 'ppo'; choose one of: grpo"),
        ({"--engine": "slurm"}, "--engine is 'slurm'; choose one of: local"),
        ({"--retriever": "absent"}, "--retriever absent: no such index folder"),
        ({"--rollout-resources": "cpu=1,tpu=1"}, "--rollout-resources: resreq 'cpu=1,tpu=1': unkn"),
        ({"--resources": "cpu=x"}, "--resources: resreq 'cpu=x': cpu='x' is not a number"),
        (
            {
                "--rollouts": "14",
                "--rollout-resources": "cpu=1,gpu=1",
                "--trainer-resources": "cpu=1",
                "--resources": "cpu=32,gpu=8",
            },
            "does not fit: 14 x rollout (cpu=1,gpu=1) + 1 x trainer (cpu=1) = cpu=15",
        ),
        ({"--data": "absent.jsonl"}, "absent.jsonl"),
        ({"--heldout": "20"}, "can't hold out 20 questions"),
        ({"--prompts-per-step": "16"}, "needs as many training questions, but data.jsonl has 10"),
        ({"--corpus": "absent.jsonl"}, "absent.jsonl"),
        (
            {"--preset": "quikstart"},
            "--preset 'quikstart' does not exist; did you mean quickstart?",
        ),
        ({"--config": "absent.toml"}, "absent.toml: can't be read: No such file or directory"),
        ({"--out": "model"}, "--out model exists and is not an empty folder"),
    ],
)
def test_bad_flags(place: Path, changes: dict[str, str | None], message: str) -> None:
    assert message in _train(place, changes)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("config.json", "--model model: the folder has no config.json"),
        ("tokenizer.json", "--model model: the folder has no tokenizer"),
        ("model.safetensors", "--model model: the folder has no weights"),
    ],
)
def test_incomplete_models(place: Path, broken: str, message: str) -> None:
    (place / "model" / broken).unlink()
    assert message in _train(place, {})


def test_a_damaged_configuration_of_a_model(place: Path) -> None:
    (place / "model" / "config.json").write_text('{"hidden_size": ')
    assert _train(place, {}) == "--model model: model/config.json can't be read as JSON"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\x00",
        (99).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{]",
        (2).to_bytes(8, "little") + b"[]",
        (34).to_bytes(8, "little") + b'{"w": {"data_offsets": [0, 1000]}}',
    ],
)
def test_broken_downloads(place: Path, content: bytes) -> None:
    (place / "model" / "model.safetensors").write_bytes(content)
    assert "model.safetensors: the file is cut short or damaged" in _train(place, {})


def test_files_that_only_claim_to_be_gguf(place: Path) -> None:
    (place / "m.gguf").write_bytes(b"PK\x03\x04")
    assert "--model m.gguf: not a GGUF file" in _train(place, {"--model": "m.gguf"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "data.jsonl"),
        (json.dumps({"id": "x", "question": "Q?", "answer": []}), "data.jsonl"),
        (json.dumps({"id": "x", "question": "Q?"}), "data.jsonl"),
    ],
)
def test_bad_records_are_found_by_their_line(place: Path, line: str, message: str) -> None:
    data = place / "data.jsonl"
    data.write_text(data.read_text() + line + "\n")
    said = _train(place, {})
    assert message in said
    assert "13" in said


def test_nothing_to_search(place: Path) -> None:
    bare = [json.dumps({"question": f"Q {i}?", "answer": "a"}) + "\n" for i in range(12)]
    (place / "data.jsonl").write_text("".join(bare))
    assert "the corpus is empty" in _train(place, {"--corpus": None})
    (place / "passages.jsonl").write_text("")
    assert "passages.jsonl" in _train(place, {})


def test_bad_toml(place: Path) -> None:
    (place / "c.toml").write_text("stepz = 3\n")
    assert "c.toml: unknown key 'stepz'; did you mean steps?" in _train(
        place, {"--config": "c.toml"}
    )
    (place / "c.toml").write_text('steps = "3"\n')
    assert "c.toml: steps is '3'; expected a whole" in _train(place, {"--config": "c.toml"})
    (place / "c.toml").write_text("steps = = 3\n")
    assert "c.toml: not valid TOML" in _train(place, {"--config": "c.toml"})


def test_a_folder_that_holds_another_run(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out" / "config.toml").write_text('model = "model"\nseed = 3\n')
    assert "--out out holds another run; continue it with --resume" in _train(place, {})
    assert "--resume: --data is 'data.jsonl', but the run in out has" in _train(
        place, {}, "--resume"
    )
    assert "--resume: elsewhere holds no run" in _train(place, {"--out": "elsewhere"}, "--resume")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("trian", "invalid choice: 'trian'"),
        ("train extra", "unexpected 'extra'"),
        ("eval", "the following arguments are required: CHECKPOINT_OR_MODEL"),
        ("eval absent", "--model absent: does not exist"),
        ("eval model --data absent.jsonl", "absent.jsonl"),
        ("eval model --learning-rate 1", "unknown flag --learning-rate"),
        ("export model --out x", "model: neither a run nor a checkpoint"),
        ("export model", "the following arguments are required: --out"),
        ("data absent.jsonl", "absent.jsonl"),
        ("data atlas --heldout 0", "--heldout is 0; it must be at least 1"),
    ],
)
def test_bad_commands(place: Path, words: str, message: str) -> None:
    assert message in _refused(_forage(place, *words.split()))


def test_flags_override_the_file_and_the_file_the_preset(place: Path) -> None:
    (place / "c.toml").write_text("steps = 7\neval_every = 3\n")
    words = [
        "train",
        "--preset",
        "quickstart",
        "--config",
        "c.toml",
        "--steps",
        "9",
        "--dry-run",
        "--out",
        "out",
    ]
    done = _forage(place, *words, "--resources", "cpu=2,mem=4g")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {"steps = 9", "eval_every = 3", 'data = "atlas"', 'out = "out"'} <= set(lines)


def test_data_shows_questions_split_and_corpus(place: Path) -> None:
    done = _forage(place, "data", "data.jsonl", "--heldout", "2", "--corpus", "passages.jsonl")
    assert done.returncode == 0
    assert "10 training questions, 2 held out, 1 passages" in done.stdout
    assert "Which river runs through town" in done.stdout


def test_version(place: Path) -> None:
    import forage

    assert _forage(place, "--version").stdout == f"forage {forage.__version__}\n"
