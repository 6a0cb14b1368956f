"""Models as they are built, rounded, written and read again."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.errors import UserError
from forage.model.load import end_token_ids, load_policy, load_tokenizer, round_to_bf16, save_policy
from forage.model.small import small_llama, word_tokenizer

TEXT = 'Doc 1(Title: "Brno") Brno is a city in Czechia. <search> Brno </search> calling code 420?'
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer([TEXT])


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = small_llama(tokenizer, layers=1, width=16, heads=2, seed=0)
    save_policy(model, tokenizer, folder)
    return model, folder


@given(st.lists(st.sampled_from(TEXT.replace("?", " ?").split()), min_size=1))
def test_words_come_back_as_they_were(tokenizer, words):
    text = " ".join(words)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.unk_token_id not in ids
    assert "".join(tokenizer.decode(ids).split()) == "".join(text.split())


def test_a_tag_is_one_token_wherever_it_stands(tokenizer):
    for text in ("<search>Brno</search>", "<search> Brno </search>", "a<search>Brno</search>."):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))
        assert tokens.count("<search>") == tokens.count("</search>") == 1


def test_a_word_outside_the_vocabulary_is_unknown(tokenizer):
    assert tokenizer.encode("Ostrava", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_the_same_seed_builds_the_same_model(tokenizer):
    def build(seed):
        return small_llama(tokenizer, layers=1, width=16, heads=2, seed=seed).state_dict()

    one, two, other = build(3), build(3), build(4)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_saved_policy_is_the_bf16_rounding_and_loads_anywhere(saved):
    model, folder = saved
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.dtype == torch.bfloat16
    ours = load_policy(str(folder), torch.float32, CPU)
    for name, parameter in model.named_parameters():
        rounded = parameter.detach().to(torch.bfloat16)
        assert torch.equal(plain.get_parameter(name), rounded)
        assert torch.equal(ours.get_parameter(name), rounded.float())
    assert AutoTokenizer.from_pretrained(folder).encode("Brno") == load_tokenizer(
        str(folder)
    ).encode("Brno")


def test_rounding_twice_changes_nothing(tokenizer):
    model = small_llama(tokenizer, layers=1, width=16, heads=2, seed=1)
    round_to_bf16(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    round_to_bf16(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(saved, tokenizer):
    model, _ = saved
    model.generation_config.eos_token_id = [7, 8]
    assert end_token_ids(model.generation_config, tokenizer) == {7, 8, tokenizer.eos_token_id}


def test_a_folder_without_a_model_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="cannot be loaded") as failure:
        load_policy(str(tmp_path), torch.float32, CPU)
    assert "\n" not in str(failure.value)
    with pytest.raises(UserError, match="no tokenizer could be loaded") as failure:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(failure.value)


def test_a_damaged_file_is_one_clear_line(saved, tmp_path):
    _, folder = saved
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_policy(str(tmp_path), torch.float32, CPU)


def test_missing_weights_are_not_made_up(saved, tmp_path):
    _, folder = saved
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in sorted(tensors) if "mlp" in name)
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=f"1 of its weights are missing \\({lost}"):
        load_policy(str(tmp_path), torch.float32, CPU)


def test_a_configuration_of_another_size_is_one_clear_line(saved, tmp_path):
    _, folder = saved
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 24}))
    with pytest.raises(UserError, match=r"don't have the sizes that config.json tells \(.*mlp"):
        load_policy(str(tmp_path), torch.float32, CPU)
