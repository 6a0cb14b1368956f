"""Packed samples have the log-probabilities of each alone, for every model that is accepted."""

from __future__ import annotations

import copy

import pytest
import torch
from trainer_batches import VOCABULARY, random_batch, small_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from forage.errors import UserError
from forage.trainer import logprobs
from forage.trainer.packing import pack
from forage.trainer.scorer import Scorer

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
TEMPERATURE = 1.3


def build(kind, config, **more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return kind(config(**SIZES | more)).eval()


def expected_scores(model, batch):
    """Log-probabilities and entropies of sampled tokens, a sample at a time in float64."""
    twin = copy.deepcopy(model).double()
    twin.set_attn_implementation("eager")
    logprobs, entropies = [], []
    for a, b in zip(batch.offsets, batch.offsets[1:], strict=False):
        ids = torch.tensor([batch.token_ids[a:b].tolist()])
        every = torch.log_softmax(twin(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
        for t in range(1, b - a):
            if batch.mask[a + t]:
                logprobs.append(every[t - 1, ids[0, t]])
                entropies.append(-(every[t - 1].exp() * every[t - 1]).sum())
    return twin, torch.stack(logprobs), torch.stack(entropies)


MODELS = [
    pytest.param(lambda: small_model(0), id="llama"),
    pytest.param(lambda: build(Qwen2ForCausalLM, Qwen2Config), id="qwen2"),
    pytest.param(lambda: build(Qwen3ForCausalLM, Qwen3Config, head_dim=16), id="qwen3"),
    pytest.param(lambda: build(Qwen2ForCausalLM, Qwen2Config, **WINDOW), id="some layers windowed"),
    pytest.param(
        lambda: build(MistralForCausalLM, MistralConfig, sliding_window=6), id="all layers windowed"
    ),
    pytest.param(
        lambda: build(Phi3ForCausalLM, Phi3Config, sliding_window=None), id="fused projections"
    ),
]


@pytest.mark.parametrize("chunk", [5, 4096])
@pytest.mark.parametrize("make", MODELS)
def test_packed_scores_and_gradients_are_those_of_each_sample_alone(make, chunk, monkeypatch):
    monkeypatch.setattr(logprobs, "LOGITS_CHUNK", chunk)
    model = make()
    batch = random_batch([7, 30, 1, 12, 3, 25], seed=3)
    twin, expected, entropies = expected_scores(model, batch)
    found, entropy = Scorer(model)(pack(batch, torch.device("cpu")), TEMPERATURE)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert torch.allclose(entropy.double(), entropies, atol=1e-4)
    weights = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * weights.float()).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.dist(ours.grad.double(), theirs.grad) < 1e-4 * (1e-3 + theirs.grad.norm())


def test_layers_computed_twice_change_nothing():
    batch = random_batch([7, 30, 12], seed=4)
    gradients = []
    for layers in (0, 1, 2):
        scorer = Scorer(small_model(0))
        scorer.recompute(layers)
        scorer(pack(batch, torch.device("cpu")), 1.0)[0].sum().backward()
        gradients.append([parameter.grad for parameter in scorer.parameters()])
    for others in gradients[1:]:
        assert all(map(torch.equal, gradients[0], others))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(
            lambda: build(Gemma2ForCausalLM, Gemma2Config, head_dim=8),
            "after its output layer|softcap",
            id="capped logits",
        ),
        pytest.param(
            lambda: build(
                Gemma2ForCausalLM, Gemma2Config, head_dim=8, final_logit_softcapping=None
            ),
            "softcap",
            id="capped attention",
        ),
        pytest.param(
            lambda: build(CohereForCausalLM, CohereConfig, logit_scale=0.5),
            "after its output layer",
            id="scaled logits",
        ),
        pytest.param(
            lambda: build(
                Llama4ForCausalLM, Llama4TextConfig, head_dim=8, intermediate_size_mlp=48
            ),
            "chunked_attention",
            id="attention in chunks",
        ),
        pytest.param(
            lambda: MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=32, state_size=4)),
            "can't be packed",
            id="no attention",
        ),
    ],
)
def test_models_that_packing_would_get_wrong_are_refused_in_one_line(make, reason):
    with pytest.raises(UserError, match=reason) as refused:
        Scorer(make())
    assert "\n" not in str(refused.value)
