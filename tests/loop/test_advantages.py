"""Group-relative advantages against the formula, worked out one group at a time."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forage.loop.advantage import group_advantages, kept_groups, shuffled

shapes = st.tuples(st.integers(1, 6), st.integers(2, 8))
steps = shapes.flatmap(
    lambda shape: st.tuples(
        hnp.arrays(
            np.float64, shape, elements=st.sampled_from([0.0, 1.0, 0.5]) | st.floats(-10, 10)
        ),
        hnp.arrays(np.bool_, shape),
    )
)


@given(steps)
def test_matches_the_formula_group_by_group(step: tuple[np.ndarray, np.ndarray]) -> None:
    rewards, failed = step
    found = group_advantages(rewards, failed)
    for group, lost, row in zip(rewards, failed, found, strict=True):
        valid = [float(r) for r, f in zip(group, lost, strict=True) if not f]
        expected: list[float] = []
        if len(set(valid)) > 1:
            mean, std = statistics.fmean(valid), statistics.stdev(valid)
            expected = [(r - mean) / (std + 1e-6) for r in valid]
        np.testing.assert_allclose(row[~np.isnan(row)], expected, rtol=1e-9, atol=1e-9)
        assert not np.any(~np.isnan(row) & lost)


def test_groups_without_spread_are_left_out() -> None:
    rewards = [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.1, 0.1, 0.1]]
    found = group_advantages(rewards, np.zeros((3, 3), bool))
    assert kept_groups(found) == 1
    assert np.isnan(found[[0, 2]]).all()
    assert found[1].sum() == pytest.approx(0, abs=1e-12)


def test_a_failed_sample_is_not_a_wrong_one() -> None:
    lone = group_advantages([[1.0, 0.0, 1.0]], [[False, True, False]])
    assert np.isnan(lone).all()
    pair = group_advantages([[1.0, 0.0, 0.0]], [[False, True, False]])
    np.testing.assert_allclose(pair[0, [0, 2]], [0.7071058, -0.7071058], atol=1e-6)
    assert np.isnan(pair[0, 1])


@given(steps, st.integers(0, 2**32), st.integers(0, 1000))
def test_shuffled_rewards_are_the_same_ones_elsewhere(
    step: tuple[np.ndarray, np.ndarray], seed: int, number: int
) -> None:
    rewards, failed = step
    found = shuffled(rewards, failed, seed, number)
    np.testing.assert_array_equal(np.sort(found[~failed]), np.sort(rewards[~failed]))
    np.testing.assert_array_equal(found, shuffled(rewards, failed, seed, number))


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2-d"):
        group_advantages([[1.0, 0.0]], [[False]])
