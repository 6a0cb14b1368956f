"""The memory rule, against the parameters of real models and its own order of preference."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from forage.errors import UserError
from forage.model.facts import ModelFacts
from forage.model.memory import GIB
from forage.trainer.memory import Workload, plan_memory

QWEN_3B = Qwen2Config(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=11008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
LLAMA_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
FACTS = ModelFacts.from_config(QWEN_3B.to_dict())


def work(tokens=16384, *, longest=2048, reference=False, shard=1):
    return Workload(micro_batch_tokens=tokens, longest=longest, reference=reference, shard=shard)


def plan(gib, asked=None, facts=FACTS):
    return plan_memory(facts, asked or work(), gib * GIB)


@pytest.mark.parametrize("config", [QWEN_3B, LLAMA_8B])
def test_parameters_are_counted_as_transformers_builds_them(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = ModelFacts.from_config(config.to_dict()).parameters
    assert counted == pytest.approx(model.num_parameters(), rel=1e-3)


def test_a_large_card_gives_up_nothing():
    found = plan(140, work(reference=True))
    assert (found.micro_batch_tokens, found.recompute, found.optimizer_on_cpu) == (16384, 0, False)


def test_less_memory_gives_up_more():
    found = []
    for gib in range(160, 15, -1):
        try:
            found.append(plan(gib))
        except UserError:
            break
    assert all(each.needed <= each.budget for each in found)
    on_gpu = [each for each in found if not each.optimizer_on_cpu]
    assert found == on_gpu + [each for each in found if each.optimizer_on_cpu]
    assert (on_gpu[0].micro_batch_tokens, on_gpu[0].recompute) == (16384, 0)
    assert on_gpu[-1].recompute > FACTS.layers / 2
    assert found[-1].optimizer_on_cpu


@pytest.mark.parametrize(
    ("gib", "tokens", "fewest", "most"),
    [
        pytest.param(100, 8192, 0, 0, id="smaller micro-batches first"),
        pytest.param(66, 8192, 30, 36, id="larger ones again where most layers are computed twice"),
        pytest.param(84, 8192, 1, 10, id="some of both"),
    ],
)
def test_of_what_fits_the_fastest_is_chosen(gib, tokens, fewest, most):
    found = plan(gib)
    assert found.micro_batch_tokens == tokens
    assert fewest <= found.recompute <= most


def test_micro_batches_hold_the_longest_sample():
    assert plan(80, work(longest=4097)).micro_batch_tokens >= 8192
    assert plan(80, work(longest=4096)).micro_batch_tokens == 4096


def test_a_sample_is_planned_for_even_where_micro_batches_are_smaller():
    short, long = plan(140, work(512, longest=512)), plan(140, work(512, longest=4096))
    assert short.micro_batch_tokens == long.micro_batch_tokens == 512
    assert long.parts["activations"] == plan(140, work(4096)).parts["activations"]
    with pytest.raises(UserError, match="lower --micro-batch-tokens or --max-tokens"):
        plan(8, work(512, longest=4096))


def test_no_trainer_of_a_sharded_model_needs_room_for_all_of_it():
    large = ModelFacts.from_config(LLAMA_8B.to_dict() | {"num_hidden_layers": 320})
    assert 2 * large.parameters > 80 * GIB
    found = plan(80, work(longest=4096, shard=64), large)
    assert not found.optimizer_on_cpu
    with pytest.raises(UserError, match="raise --trainers and --shard"):
        plan(80, work(longest=4096, shard=2), large)


def test_a_3b_model_trains_on_a_24_gib_card_with_its_optimizer_on_the_cpu():
    found = plan(24)
    assert found.optimizer_on_cpu
    assert found.host == 18 * FACTS.parameters
    assert "optimizer and published copy on the CPU (51.7 GiB of the host's memory)" in str(found)


def test_shards_need_less():
    alone, shared = plan(140).parts, plan(140, work(shard=2)).parts
    for part in ("weights", "masters, gradient and Adam", "published copy"):
        assert shared[part] == alone[part] / 2
    assert plan(70, work(reference=True, shard=2)).recompute < plan(70).recompute


def test_the_published_copy_moves_to_the_host_before_the_optimizer():
    found = plan(74)
    assert (found.copy_on_cpu, found.optimizer_on_cpu) == (True, False)
    assert found.host == 2 * FACTS.parameters


def test_what_fits_nowhere_is_refused_with_the_arithmetic():
    with pytest.raises(UserError, match=r"weights 5\.7 \+ .* GiB of 8\.0; lower") as refused:
        plan(8)
    assert "\n" not in str(refused.value)


def test_a_configuration_without_the_facts_is_refused():
    with pytest.raises(UserError, match="no num_attention_heads"):
        ModelFacts.from_config({"vocab_size": 10})


def test_a_mixture_of_experts_is_refused():
    with pytest.raises(UserError, match=r"mixture of experts \(num_experts 128\)"):
        ModelFacts.from_config(QWEN_3B.to_dict() | {"num_experts": 128})
