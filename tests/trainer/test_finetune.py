"""Imitation of traces: their tokens, its loss against a plain computation, when it ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trainer_batches import random_batch, small_model

from forage.agent.prompts import PromptEncoder
from forage.agent.traces import Draft
from forage.agent.types import Passage
from forage.errors import UserError
from forage.model.small import END, word_tokenizer
from forage.trainer.finetune import PATIENCE, Finetuner
from forage.trainer.scorer import Scorer
from forage.trainer.tracebatch import TraceEncoder, trace_batch

PASSAGE = Passage("Brno", "Brno lies in Czechia.")
TEXT = (
    "Question: Where does Brno lie? <think>Look.</think> <search>Brno</search> <information>Doc "
    '1(Title: "Brno") Brno lies in Czechia.</information> <answer>Czechia</answer>'
)


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer([TEXT])


def trace(answer="Czechia"):
    draft = Draft("Where does Brno lie?")
    draft.ask("Look.", "Brno", [PASSAGE])
    return draft.answer("Brno lies in Czechia.", answer)


def test_a_trace_has_the_tokens_that_a_rollout_would_have(tokenizer):
    ids, mask = TraceEncoder(tokenizer, "plain").encode(trace())
    prompt = PromptEncoder(tokenizer, "plain")("Where does Brno lie?")
    assert ids[: len(prompt)] == prompt
    assert tokenizer.unk_token_id not in ids
    written = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if own])
    assert written.replace(" ", "") == (
        "<think>Look.</think><search>Brno</search>"
        "<think>BrnoliesinCzechia.</think><answer>Czechia</answer>"
    )


def test_a_trace_that_quotes_a_special_token_is_left_out(tokenizer):
    encoder = TraceEncoder(tokenizer, "plain")
    assert encoder.encode(trace(f"Czechia {END}")) is None
    # A word outside the vocabulary is no such quotation.
    assert encoder.encode(trace("Moravia")) is not None


def test_traces_lie_end_to_end(tokenizer):
    ids, mask = TraceEncoder(tokenizer, "plain").encode(trace())
    batch = trace_batch([(ids, mask), (ids[:5], [0, 0, 1, 1, 1])])
    assert batch.offsets.tolist() == [0, len(ids), len(ids) + 5]
    assert batch.token_ids.tolist() == ids + ids[:5]
    assert batch.mask.tolist() == [*mask, 0, 0, 1, 1, 1]
    assert batch.advantages.tolist() == [1, 1]


def plain_loss(model, batch):
    """Mean cross-entropy of the marked tokens, each sample by itself, in float64."""
    losses = []
    for start, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        ids = torch.from_numpy(batch.token_ids[start:end].astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0].double()
        each = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
        losses += each[torch.from_numpy(batch.mask[start + 1 : end]).bool()].tolist()
    return np.mean(losses)


def test_the_loss_is_the_cross_entropy_of_what_was_written():
    batch = random_batch([9, 4, 17, 30], seed=1)
    found = Finetuner(Scorer(small_model(0)), 1e-3, 32).loss(batch)
    assert found == pytest.approx(plain_loss(small_model(0).double(), batch), abs=1e-5)


def test_it_learns_and_keeps_the_best_epoch():
    learned, aside = random_batch([12, 20, 8, 15], seed=1), random_batch([10, 14], seed=2)
    model = small_model(0)
    finetuner = Finetuner(Scorer(model), 1e-2, 64)
    before = finetuner.loss(learned)
    seen = []
    progress = finetuner.fit(
        lambda: [learned] * 4, aside, 30, lambda now: seen.append(len(now.losses))
    )
    # Noise can be learned by heart only: the loss on other noise soon rises.
    assert progress.converged
    assert len(progress.losses) == progress.best + PATIENCE + 1 < 31
    assert seen == list(range(1, len(progress.losses) + 1))
    assert progress.best == int(np.argmin(progress.losses))
    assert progress.steps == 4 * (len(progress.losses) - 1)
    assert finetuner.loss(aside) == progress.losses[progress.best]
    assert finetuner.loss(learned) <= before
    for parameter in model.parameters():
        assert torch.equal(parameter, parameter.to(torch.bfloat16).float())


def test_what_is_learned_by_heart_is_told_again():
    learned = random_batch([12, 20, 8, 15], seed=1)
    finetuner = Finetuner(Scorer(small_model(0)), 1e-2, 64)
    progress = finetuner.fit(lambda: [learned] * 10, learned, 4, lambda now: None)
    assert progress.losses == sorted(progress.losses, reverse=True)
    assert progress.losses[-1] < 0.5 * progress.losses[0]
    assert (progress.best, progress.converged) == (4, False)


def test_epochs_that_help_nothing_are_an_error():
    learned, aside = random_batch([12, 20, 8, 15], seed=1), random_batch([10, 14], seed=2)
    with pytest.raises(UserError, match=r"no epoch made .* lower --rate"):
        Finetuner(Scorer(small_model(0)), 10.0, 64).fit(
            lambda: [learned] * 4, aside, 5, lambda now: None
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_the_loss_is_that_of_the_cpu_and_falls():
    learned = random_batch([120, 200, 80, 150], seed=1)
    model = small_model(0).to("cuda")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    finetuner = Finetuner(Scorer(model), 1e-2, 256)
    on_cpu = Finetuner(Scorer(small_model(0)), 1e-2, 256).loss(learned)
    assert finetuner.loss(learned) == pytest.approx(on_cpu, rel=0.02)
    progress = finetuner.fit(lambda: [learned] * 10, learned, 4, lambda now: None)
    assert progress.losses[-1] < 0.8 * progress.losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
