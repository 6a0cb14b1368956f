"""Intervals against published values and against what defines them."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.loop.statistics import Z95, paired_difference, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_where_the_score_test_turns(counts: tuple[int, int]) -> None:
    successes, n = counts
    share = successes / n
    low, high = wilson(successes, n)
    assert 0 <= low <= share <= high <= 1
    for bound, at_end in ((low, successes == 0), (high, successes == n)):
        if not at_end:
            score = abs(share - bound) / sqrt(bound * (1 - bound) / n)
            assert score == pytest.approx(Z95, rel=1e-6)


def _pairs(both: int, gained: int, lost: int, neither: int) -> tuple[list[float], list[float]]:
    before = [1.0] * both + [0.0] * gained + [1.0] * lost + [0.0] * neither
    after = [1.0] * both + [1.0] * gained + [0.0] * lost + [0.0] * neither
    return before, after


def test_paired_difference_matches_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17:2635, table II, method 10.
    before, after = _pairs(36, 12, 2, 0)
    assert paired_difference(before, after) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)


cells = st.tuples(*[st.integers(0, 60)] * 4).filter(lambda counts: sum(counts) > 0)


@given(cells)
def test_paired_difference_is_antisymmetric_and_holds_its_estimate(
    counts: tuple[int, int, int, int],
) -> None:
    before, after = _pairs(*counts)
    difference, low, high = paired_difference(before, after)
    assert difference == pytest.approx((counts[1] - counts[2]) / sum(counts))
    assert -1 - 1e-9 <= low <= difference + 1e-12
    assert difference - 1e-12 <= high <= 1 + 1e-9
    back = paired_difference(after, before)
    assert back == pytest.approx((-difference, -high, -low))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="of 0"):
        wilson(0, 0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="1 items before, 2 after"):
        paired_difference([1.0], [1.0, 0.0])
