"""Updates against a plain float64 computation of the loss, one sample at a time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from trainer_batches import random_batch, small_model

from forage.trainer.algorithms import ALGORITHMS, LossSettings
from forage.trainer.learner import Learner, Tally
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer

TEMPERATURE, CLIP, KL = 1.3, 0.2, 0.05


def learner(model, reference=None, micro_batch_tokens=64, kl=KL):
    scorer = Scorer(model)
    return Learner(
        Policy(model, learning_rate=1e-2, weight_decay=0.0),
        scorer,
        reference and Scorer(reference),
        ALGORITHMS["grpo"],
        LossSettings(CLIP, kl),
        Ranks(0, 1, "", torch.device("cpu")),
        temperature=TEMPERATURE,
        micro_batch_tokens=micro_batch_tokens,
    )


def plain(model):
    """A copy in float64 with transformers' own attention."""
    twin = copy.deepcopy(model).double()
    twin.set_attn_implementation("eager")
    return twin


def plain_logprobs(model, ids):
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    every = torch.log_softmax(logits.double() / TEMPERATURE, dim=-1)
    return [every[i - 1, ids[i]] for i in range(1, len(ids))]


def plain_loss(model, reference, batch, samples=None, old=None):
    """DESIGN's loss over some samples; `old` maps (sample, position) to a log-probability."""
    total, count, seen = 0.0, 0, {}
    for i in range(len(batch)) if samples is None else samples:
        a, b = batch.offsets[i], batch.offsets[i + 1]
        ids = batch.token_ids[a:b].tolist()
        ours, theirs = plain_logprobs(model, ids), plain_logprobs(reference, ids)
        for t in range(1, len(ids)):
            if not batch.mask[a + t]:
                continue
            logprob = ours[t - 1]
            seen[i, t] = logprob.item()
            before = logprob.item() if old is None else old[i, t]
            ratio = torch.exp(logprob - before)
            weight = min(np.exp(before - float(batch.logprobs[a + t])), 2.0)
            advantage = float(batch.advantages[i])
            clipped = min(max(ratio.item(), 1 - CLIP), 1 + CLIP)
            gain = ratio * advantage
            if clipped * advantage < gain.item():
                gain = clipped * advantage
            gap = theirs[t - 1].detach() - logprob
            total = total - weight * gain + KL * (torch.exp(gap) - gap - 1)
            count += 1
    return total / count, seen


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


@pytest.mark.parametrize("micro_batch_tokens", [1, 64, 10_000])
def test_gradient_is_that_of_the_plain_loss(micro_batch_tokens):
    model, reference = small_model(0), small_model(1)
    twin = plain(model)
    batch = random_batch([7, 30, 12, 3, 25], seed=3)
    loss, _ = plain_loss(twin, plain(reference), batch)
    loss.backward()
    ours = learner(model, reference, micro_batch_tokens)
    ours.accumulate(batch, Tally())
    expected = flat_gradient(twin)
    assert torch.dist(ours.policy.gradient.double(), expected) < 1e-5 * expected.norm()


def test_second_minibatch_is_measured_against_the_policy_before_the_first():
    model, reference = small_model(0), plain(small_model(1))
    batch = random_batch([9, 14, 11, 20], seed=4)
    _, old = plain_loss(plain(model), reference, batch)
    ours = learner(model, small_model(1), micro_batch_tokens=10_000)
    gradients = []
    step = ours.policy.step

    def watched_step(max_norm):
        gradients.append((plain(model), ours.policy.gradient.clone().double()))
        return step(max_norm)

    ours.policy.step = watched_step
    ours.update(batch, minibatches=2, max_norm=1e9)
    for (twin, gradient), samples in zip(gradients, ([0, 2], [1, 3]), strict=True):
        loss, _ = plain_loss(twin, reference, batch, samples, old)
        loss.backward()
        expected = flat_gradient(twin)
        assert torch.dist(gradient, expected) < 1e-5 * expected.norm()


def test_tally_counts_sampled_tokens_only():
    model = plain(small_model(0))
    batch = random_batch([10, 20, 30], seed=5)
    tally = Tally()
    learner(small_model(0)).accumulate(batch, tally)
    assert tally.tokens == batch.mask.sum()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([batch.token_ids[:10].tolist()])).logits[0]
    entropy = torch.distributions.Categorical(logits=logits / TEMPERATURE).entropy()
    alone = Tally()
    learner(small_model(0)).accumulate(batch.take([0]), alone)
    expected = sum(entropy[t - 1] for t in range(1, 10) if batch.mask[t])
    assert alone.sums()[1] == pytest.approx(float(expected), rel=1e-5)
    assert alone.mismatch().shape == (batch.mask[:10].sum(),)


def test_policy_stays_the_bf16_rounding_of_its_masters():
    ours = learner(small_model(0))
    for seed in range(3):
        ours.update(random_batch([10, 20], seed=seed), minibatches=1, max_norm=1.0)
    for master, parameter in zip(ours.policy.masters, ours.policy.parameters, strict=True):
        assert torch.equal(parameter, master.to(torch.bfloat16).float())
        assert not torch.equal(parameter, master)


def test_saved_policy_continues_bit_for_bit(tmp_path):
    straight, interrupted = learner(small_model(0)), learner(small_model(0))
    batches = [random_batch([10, 20], seed=seed) for seed in range(4)]
    for batch in batches:
        straight.update(batch, minibatches=1, max_norm=1.0)
    for batch in batches[:2]:
        interrupted.update(batch, minibatches=1, max_norm=1.0)
    interrupted.policy.save(tmp_path)
    resumed = learner(small_model(0))
    resumed.policy.restore(tmp_path)
    for batch in batches[2:]:
        resumed.update(batch, minibatches=1, max_norm=1.0)
    for ours, theirs in zip(resumed.policy.masters, straight.policy.masters, strict=True):
        assert torch.equal(ours, theirs)


def test_clipping_limits_the_step_and_reports_the_norm_before_it():
    batch = random_batch([10, 20], seed=6)
    probe = learner(small_model(0))
    probe.accumulate(batch, Tally())
    norm = float(probe.policy.gradient.norm())
    _, reported = learner(small_model(0)).update(batch, minibatches=1, max_norm=norm / 10)
    assert reported == pytest.approx(norm)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_gradient_that_is_not_finite_is_reported_and_moves_nothing(minibatches):
    batch = random_batch([10, 20], seed=6)
    batch.advantages[0] = np.nan
    ours, untouched = learner(small_model(0)), learner(small_model(0))
    _, reported = ours.update(batch, minibatches=minibatches, max_norm=1.0)
    assert np.isnan(reported)
    for moved, master in zip(ours.policy.masters, untouched.policy.masters, strict=True):
        assert torch.equal(moved, master)
    _, reported = ours.update(random_batch([10, 20], seed=6), minibatches=1, max_norm=1.0)
    assert np.isfinite(reported)


@pytest.mark.slow
def test_the_norm_of_a_large_gradient_is_right_on_a_cpu():
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1 << 27))

    policy = Policy(Large(), learning_rate=1e-6, weight_decay=0.0)
    policy.gradient.normal_(generator=torch.Generator().manual_seed(0))
    expected = sum(float(piece.double().square().sum()) for piece in policy.gradient.split(1 << 22))
    assert policy.step(1e9) == pytest.approx(expected**0.5, rel=1e-4)
