"""Parts of a batch: nothing lost, nothing twice, nothing moved."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_batches import random_batch

from forage.trainer.packing import pack

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def samples(batch):
    """Each sample's content, in a form that can be counted."""
    spans = zip(batch.offsets, batch.offsets[1:], batch.advantages, strict=False)
    return [
        (
            batch.token_ids[a:b].tobytes(),
            batch.mask[a:b].tobytes(),
            batch.logprobs[a:b].tobytes(),
            float(advantage),
        )
        for a, b, advantage in spans
    ]


@given(LENGTHS, st.integers(1, 5))
def test_shares_of_all_ranks_are_the_batch(lengths, size):
    batch = random_batch(lengths, seed=0)
    shares = [batch.share(rank, size) for rank in range(size)]
    assert sorted(s for share in shares for s in samples(share)) == sorted(samples(batch))


@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_hold_every_sample_once_and_keep_to_the_limit(lengths, limit):
    batch = random_batch(lengths, seed=1)
    parts = list(batch.micro_batches(limit))
    assert [s for part in parts for s in samples(part)] == samples(batch)
    for part in parts:
        assert len(part) == 1 or part.lengths.sum() <= limit


@given(LENGTHS)
def test_packing_keeps_tokens_positions_and_what_each_is_trained_on(lengths):
    batch = random_batch(lengths, seed=2)
    packed = pack(batch, torch.device("cpu"))
    assert packed.ids[0].tolist() == batch.token_ids.tolist()
    assert packed.positions[0].tolist() == [t for length in lengths for t in range(length)]
    assert packed.bounds.tolist() == batch.offsets.tolist()
    assert packed.longest == max(lengths)
    trained = [
        (a + t - 1, batch.token_ids[a + t], batch.logprobs[a + t], batch.advantages[i])
        for i, (a, b) in enumerate(zip(batch.offsets, batch.offsets[1:], strict=False))
        for t in range(b - a)
        if batch.mask[a + t]
    ]
    columns = (packed.drawn_from, packed.targets, packed.engine, packed.advantages)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == trained
