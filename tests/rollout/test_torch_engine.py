"""The engine against the model run plainly, one sequence at a time, without a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forage.rollout.draws import stream, uniforms
from forage.rollout.torch_engine import TorchEngine

TEMPERATURE = 0.7


@pytest.fixture(params=["model", "grouped_model"])
def any_model(request):
    return request.getfixturevalue(request.param)


def plain_logprobs(model, ids: list[int]) -> torch.Tensor:
    """float64 log-probabilities of the next token after `ids`."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return torch.log_softmax(logits.double() / TEMPERATURE, dim=-1)


def generate(model, script, seed=0, greedy=False):
    """Run rows by a script: row -> (prompt, {tokens drawn: ids to read then}, tokens in all)."""
    engine = TorchEngine(model, TEMPERATURE)
    contexts, drawn, logprobs = {}, {}, {}
    for row, (prompt, _, _) in script.items():
        draws = None if greedy else stream(seed, "test", 0, f"q{row}", 0)
        engine.start(row, prompt, draws)
        contexts[row], drawn[row], logprobs[row] = list(prompt), 0, []
    while contexts.keys() - {row for row in script if drawn[row] >= script[row][2]}:
        for draw in engine.step():
            row = draw.row
            logprobs[row].append((list(contexts[row]), draw.token, draw.logprob))
            contexts[row].append(draw.token)
            drawn[row] += 1
            _, reads, total = script[row]
            if drawn[row] == total:
                engine.finish(row)
            elif drawn[row] in reads:
                engine.pause(row)
                engine.extend(row, reads[drawn[row]])
                contexts[row] += reads[drawn[row]]
    return contexts, logprobs


SCRIPT = {
    0: ([5, 6, 7], {2: [9, 9, 8, 4]}, 12),
    1: ([8], {}, 3),
    2: ([4, 9, 11, 12, 13, 5, 6], {1: [7], 5: [4] * 9}, 30),
    3: ([5, 6, 7], {}, 2),
}


def test_logprobs_are_those_of_the_plain_model(any_model):
    _, logprobs = generate(any_model, SCRIPT)
    for steps in logprobs.values():
        for context, token, logprob in steps:
            expected = plain_logprobs(any_model, context)[token]
            assert logprob == pytest.approx(float(expected), abs=2e-4)


def test_greedy_draws_the_likeliest_token(any_model):
    _, logprobs = generate(any_model, SCRIPT, greedy=True)
    for steps in logprobs.values():
        for context, token, _ in steps:
            expected = plain_logprobs(any_model, context)
            assert expected[token] >= expected.max() - 1e-6


def test_draws_depend_on_the_sample_alone(model):
    together, _ = generate(model, SCRIPT, seed=3)
    for row, script in SCRIPT.items():
        alone, _ = generate(model, {row: script}, seed=3)
        assert alone[row] == together[row]
    other, _ = generate(model, SCRIPT, seed=4)
    assert other != together


def test_the_same_calls_give_the_same_bits(model):
    assert generate(model, SCRIPT, seed=5) == generate(model, SCRIPT, seed=5)


def test_draws_follow_the_distribution(model):
    prompt, rows = [5, 6], 4000
    engine = TorchEngine(model, TEMPERATURE)
    for row in range(rows):
        engine.start(row, prompt, stream(0, "test", 0, "q", row))
    counts = np.bincount([draw.token for draw in engine.step()], minlength=model.config.vocab_size)
    expected = plain_logprobs(model, prompt).exp().numpy() * rows
    deviation = (counts - expected) / np.sqrt(expected + 1)
    assert np.abs(deviation).max() < 5


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
@settings(max_examples=50)
def test_uniforms_match_splitmix64_in_plain_integers(start, position):
    z = (start + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    expected = ((z ^ (z >> 31)) >> 11) / 2**53
    assert uniforms(np.array([start], np.uint64), np.array([position]))[0] == expected
