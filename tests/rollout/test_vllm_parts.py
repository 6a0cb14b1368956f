"""What of generation with vLLM needs neither vLLM nor a GPU: views, arithmetic, the choice."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from forage.bench.shapes import build
from forage.errors import UserError
from forage.model.facts import ModelFacts
from forage.model.load import load_policy, save_policy
from forage.model.memory import GIB
from forage.rollout import choice
from forage.rollout.choice import use_vllm
from forage.rollout.memory import Need, cache_bytes, check_free
from forage.rollout.vllm_model import need_of, served_folder
from forage.rollout.vllm_views import (
    checkpoint_shapes,
    checkpoint_views,
    differing,
    whole_tensors,
)
from forage.weights.policy import policy_tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two layers with grouped heads, biases and tied embeddings, all weights random."""
    built = build("tiny", tmp_path_factory.mktemp("model"), seed=0)
    weights = load_file(built / "model.safetensors")
    save_file({n: torch.randn_like(t) for n, t in weights.items()}, built / "model.safetensors")
    return built


class Fused(nn.Module):
    """A model's parameters as vLLM keeps them: stacked by rows, the vocabulary padded."""

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, checkpoint: dict[str, torch.Tensor]) -> None:
        super().__init__()
        stacked: dict[str, list[torch.Tensor]] = {}
        for name, tensor in checkpoint.items():
            for target, parts in self.packed_modules_mapping.items():
                for part in parts:
                    name = name.replace(f".{part}.", f".{target}.")
            stacked.setdefault(name, []).append(tensor)
        for name, tensors in stacked.items():
            if "embed_tokens" in name:
                tensors.append(torch.zeros(64, tensors[0].shape[1], dtype=torch.bfloat16))
            place = self
            *path, last = name.split(".")
            for step in path:
                if not hasattr(place, step):
                    place.add_module(step, nn.Module())
                place = getattr(place, step)
            place.register_parameter(last, nn.Parameter(torch.cat(tensors)))


@pytest.fixture
def fused(folder):
    policy = load_policy(str(folder), torch.bfloat16, torch.device("cpu"))
    order = {"q_proj": 0, "k_proj": 1, "v_proj": 2, "gate_proj": 0, "up_proj": 1}
    tensors = policy_tensors(policy)
    names = sorted(tensors, key=lambda name: order.get(name.split(".")[-2], 0))
    return Fused({name: tensors[name] for name in names})


def test_every_tensor_of_the_checkpoint_has_a_view(folder, fused):
    shapes = checkpoint_shapes(folder)
    views = checkpoint_views(fused, shapes)
    assert views.keys() == shapes.keys()
    assert {name: view.shape for name, view in views.items()} == shapes
    assert differing(views, folder) == []
    truth = load_policy(str(folder), torch.bfloat16, torch.device("cpu"))
    for name, tensor in policy_tensors(truth).items():
        assert torch.equal(views[name], tensor)


def test_writing_into_a_view_changes_the_stacked_parameter_there_alone(folder, fused):
    before = {name: tensor.clone() for name, tensor in fused.named_parameters()}
    name = "model.layers.1.self_attn.k_proj.weight"
    view = checkpoint_views(fused, checkpoint_shapes(folder))[name]
    with torch.no_grad():
        view.fill_(7)
    stacked = "model.layers.1.self_attn.qkv_proj.weight"
    changed = {n for n, tensor in fused.named_parameters() if not torch.equal(tensor, before[n])}
    assert changed == {stacked}
    rows = (dict(fused.named_parameters())[stacked] == 7).all(dim=1)
    assert rows.nonzero().flatten().tolist() == list(range(64, 96))  # after 64 rows of queries


def test_stacking_in_another_order_fails_the_proof(folder, fused):
    with torch.no_grad():
        gate_up = fused.get_parameter("model.layers.0.mlp.gate_up_proj.weight")
        gate_up.copy_(gate_up.flip(0))
    views = checkpoint_views(fused, checkpoint_shapes(folder))
    wrong = ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"]
    assert differing(views, folder) == wrong
    held = whole_tensors(folder, wrong, torch.device("cpu"))
    assert list(held) == sorted(held)
    assert all(tensor.dtype == torch.bfloat16 for tensor in held.values())


def test_a_layout_of_its_own_has_no_view(folder, fused):
    down = fused.model.layers.get_submodule("0").mlp.down_proj
    down.weight = nn.Parameter(down.weight.t().contiguous())
    shapes = checkpoint_shapes(folder)
    views = checkpoint_views(fused, shapes)
    assert shapes.keys() - views.keys() == {"model.layers.0.mlp.down_proj.weight"}


def test_a_tensor_that_the_files_lack_is_an_error(folder):
    with pytest.raises(UserError, match=r"1 tensors aren't in its files, first model\.extra"):
        whole_tensors(folder, ["model.extra"], torch.device("cpu"))


def test_a_model_without_safetensors_is_written_as_one(folder, tmp_path):
    """As a GGUF file is: the policy is what trainers hold, the bf16 rounding."""
    weights = load_file(folder / "model.safetensors")
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({n: t.float() * 1.01 for n, t in weights.items()}, tmp_path / "pytorch_model.bin")
    with served_folder(str(tmp_path)) as served:
        assert served != tmp_path
        held = load_file(served / "model.safetensors")
    assert held.keys() == weights.keys()
    for name, tensor in held.items():
        assert torch.equal(tensor, (weights[name].float() * 1.01).to(torch.bfloat16))
    with served_folder(str(folder)) as same:
        assert same == folder


def test_saving_keeps_what_it_was_given(folder, tmp_path):
    from forage.model.load import load_tokenizer

    policy = load_policy(str(folder), torch.bfloat16, torch.device("cpu"))
    save_policy(policy, load_tokenizer(str(folder)), tmp_path)
    assert differing(policy_tensors(policy), tmp_path) == []


QWEN_3B = ModelFacts(
    layers=36,
    width=2048,
    inner=11008,
    heads=16,
    key_heads=2,
    head_width=128,
    vocabulary=151936,
    tied=True,
)
NEED = Need(facts=QWEN_3B, max_batch=350, max_tokens=1344, step_tokens=16384)


def test_the_cache_is_as_large_as_all_samples_where_there_is_room():
    assert NEED.weights / GIB == pytest.approx(5.75, abs=0.01)
    assert NEED.sample == 1344 * 36864  # 36 layers x 2 x 2 heads x 128 x 2 bytes
    # vLLM keeps one block of 16 tokens for itself.
    assert cache_bytes(NEED, 140 * GIB, 0.9) == 350 * NEED.sample + 16 * 36864
    tight = cache_bytes(NEED, 24 * GIB, 0.9)
    assert NEED.sample < tight < 350 * NEED.sample
    assert NEED.weights + NEED.working + tight <= 0.9 * 24 * GIB


def test_what_does_not_fit_is_an_error_with_the_arithmetic():
    with pytest.raises(UserError) as error:
        cache_bytes(NEED, 16 * GIB, 0.45)
    text = str(error.value)
    assert "weights 5.7 + working memory" in text
    assert "0.45 x 16.0 = 7.2 GiB" in text
    assert "--gpu-memory" in text
    assert "\n" not in text


def test_memory_that_others_use_is_an_error():
    check_free(NEED, GIB, 30 * GIB)
    with pytest.raises(UserError, match=r"only 5\.0 GiB are free"):
        check_free(NEED, GIB, 5 * GIB)


def test_the_need_is_read_from_the_folder(folder):
    need = need_of(folder, max_batch=4, max_tokens=4096, total=24 * GIB)
    parameters = sum(shape.numel() for shape in checkpoint_shapes(folder).values())
    assert need.weights == pytest.approx(2 * parameters, rel=0.01)
    assert need.step_tokens == 8192
    with pytest.raises(UserError, match="--max-tokens 4097: the model reads at most 4096"):
        need_of(folder, max_batch=4, max_tokens=4097, total=24 * GIB)


@pytest.mark.parametrize(
    ("generation", "gpu", "installed", "expected"),
    [
        ("torch", True, "0.25.1", False),
        ("auto", False, "0.25.1", False),
        ("auto", True, None, False),
        ("auto", True, "0.25.1", True),
        ("vllm", True, "1.2", True),
        ("vllm", False, "0.25.1", "needs a GPU"),
        ("vllm", True, None, r"pip install 'forage-rl\[vllm\]'"),
        ("vllm", True, "0.9.2", "vLLM 0.9.2 is too old"),
        ("auto", True, "0.24.3rc1", "vLLM 0.24.3rc1 is too old"),
    ],
)
def test_which_engine_generates(monkeypatch, generation, gpu, installed, expected):
    monkeypatch.setattr(choice, "vllm_version", lambda: installed)
    if isinstance(expected, bool):
        assert use_vllm(generation, gpu=gpu) is expected
    else:
        with pytest.raises(UserError, match=expected):
            use_vllm(generation, gpu=gpu)


def test_working_memory_grows_with_the_batch():
    assert dataclasses.replace(NEED, max_batch=700).working > NEED.working
