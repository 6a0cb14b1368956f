"""`forage bench update` does whole updates, and counts the operations that they take."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from forage.bench.shapes import SHAPES
from forage.bench.update import made_up_batch, update_flops
from forage.cli import main
from forage.model.facts import ModelFacts
from forage.trainer.packing import pack
from forage.trainer.scorer import Scorer


def options(**changes):
    usual = {"tokens": 2000, "shortest": 20, "longest": 60, "sampled": 0.25, "seed": 0}
    return argparse.Namespace(**usual | changes)


@pytest.mark.parametrize("kl", ["0", "0.001"])
def test_it_prints_a_table(kl, capsys):
    words = ["--shape", "tiny", "--tokens", "600", "--shortest", "30", "--longest", "90"]
    assert main(["bench", "update", *words, "--kl", kl]) == 0
    printed = capsys.readouterr().out
    assert f"of them sampled, KL {float(kl)}" in printed
    assert "tokens/s" in printed
    assert "| of that, optimizer" in printed


def test_lengths_that_do_not_go_together_are_refused_in_one_line(capsys):
    assert main(["bench", "update", "--shape", "tiny", "--shortest", "9", "--longest", "8"]) == 2
    assert capsys.readouterr().err.startswith("forage: --shortest 9, --longest 8, ")


def test_a_batch_has_the_lengths_and_the_share_asked_for():
    batch = made_up_batch(options(tokens=20_000), vocabulary=100)
    assert 20_000 <= len(batch.token_ids) < 20_060
    assert batch.lengths.min() >= 20
    assert batch.lengths.max() <= 60
    assert batch.mask.mean() == pytest.approx(0.25, abs=0.03)
    assert not batch.mask[batch.offsets[:-1]].any()


@pytest.mark.parametrize("share", [0.7, 1.0])
def test_turns_do_not_overlap_where_almost_all_is_sampled(share):
    batch = made_up_batch(options(tokens=20_000, shortest=200, longest=600, sampled=share), 100)
    assert batch.mask.mean() == pytest.approx(share, abs=0.01)


def test_operations_are_those_that_torch_counts():
    config = SHAPES["tiny"].config()
    facts = ModelFacts.from_config(config.to_dict())
    batch = made_up_batch(options(), facts.vocabulary)

    scorer = Scorer(AutoModelForCausalLM.from_config(config).eval())
    packed = pack(batch, torch.device("cpu"))
    counter = FlopCounterMode(display=False)
    with counter:
        scorer(packed, 1.0)[0].sum().backward()
    # The logits of sampled tokens are computed once more; scores, which torch counts for tokens
    # that come later too, are few in samples this short.
    again = 2 * facts.vocabulary * facts.width * int(batch.mask.sum())
    expected = update_flops(facts, batch, reference=False) + again
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.05)
