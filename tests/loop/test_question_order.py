"""The order of questions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.loop.draws import QuestionOrder

sizes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 2**32), st.integers(1, 6))
def test_every_epoch_asks_every_question_once(
    size: tuple[int, int], seed: int, epochs: int
) -> None:
    questions, per_step = size
    order = QuestionOrder(questions, per_step, seed)
    steps = -(-questions * epochs // per_step)
    asked = [index for step in range(steps) for index in order.take(step * per_step)]
    for epoch in range(epochs):
        part = asked[epoch * questions : (epoch + 1) * questions]
        assert sorted(part) == list(range(questions))


@given(sizes, st.integers(0, 2**32), st.integers(0, 30))
def test_no_question_twice_in_a_step(size: tuple[int, int], seed: int, step: int) -> None:
    questions, per_step = size
    taken = QuestionOrder(questions, per_step, seed).take(step * per_step)
    assert len(taken) == per_step == len(set(taken))


@given(sizes, st.integers(0, 2**32), st.integers(0, 30))
def test_a_resumed_order_goes_on_as_the_uninterrupted_one(
    size: tuple[int, int], seed: int, step: int
) -> None:
    questions, per_step = size
    walked = QuestionOrder(questions, per_step, seed)
    for earlier in range(step):
        walked.take(earlier * per_step)
    resumed = QuestionOrder(questions, per_step, seed)
    assert walked.take(step * per_step) == resumed.take(step * per_step)


def test_epochs_and_seeds_differ() -> None:
    order = QuestionOrder(50, 50, seed=1)
    epochs = [order.take(epoch * 50) for epoch in range(3)]
    assert all(a != b for a, b in pairwise(epochs))
    assert QuestionOrder(50, 50, seed=2).take(0) != epochs[0]


@pytest.mark.parametrize("per_step", [0, 4])
def test_steps_larger_than_an_epoch_are_refused(per_step: int) -> None:
    with pytest.raises(ValueError, match="3"):
        QuestionOrder(3, per_step, seed=0)
