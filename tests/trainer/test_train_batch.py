"""Parts of a batch: nothing lost, nothing twice, nothing moved."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trainer_batches import random_batch

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
    assert sorted(s for part in parts for s in samples(part)) == sorted(samples(batch))
    for part in parts:
        assert len(part) == 1 or len(part) * part.lengths.max() <= limit


@given(LENGTHS)
def test_padding_keeps_tokens_and_mask(lengths):
    batch = random_batch(lengths, seed=2)
    ids, sampled = batch.padded()
    for line, (a, b) in enumerate(zip(batch.offsets, batch.offsets[1:], strict=False)):
        assert np.array_equal(ids[line, : b - a], batch.token_ids[a:b])
        assert np.array_equal(sampled[line, : b - a], batch.mask[a:b].astype(bool))
        assert not sampled[line, b - a :].any()
