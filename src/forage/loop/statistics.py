"""Intervals for proportions: how sure an accuracy, or a change of one, is."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

Z95 = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927, JASA 22:209).

    Raises:
        ValueError: if `n` is not positive or `successes` lies outside [0, n].
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    p, z2 = successes / n, Z95 * Z95
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At the ends the bound is exactly 0 or 1; rounding must not move it past the proportion.
    return (min(p, middle - half) if successes > 0 else 0.0), (
        max(p, middle + half) if successes < n else 1.0
    )


def paired_difference(
    before: Sequence[float], after: Sequence[float]
) -> tuple[float, float, float]:
    """Change of a proportion on the same items: (difference, low, high), 95 %.

    Newcombe 1998 (Statistics in Medicine 17:2635), method 10: Wilson bounds of both proportions,
    combined with their correlation. Items are right (1) or wrong (0).

    Raises:
        ValueError: if the lengths differ or are zero.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"{len(before)} items before, {len(after)} after")
    n = len(before)
    pairs = list(zip(before, after, strict=True))
    both = sum(b == 1 and a == 1 for b, a in pairs)
    gained = sum(b == 0 and a == 1 for b, a in pairs)
    lost = sum(b == 1 and a == 0 for b, a in pairs)
    neither = n - both - gained - lost
    p_after, p_before = (both + gained) / n, (both + lost) / n
    low_a, high_a = wilson(both + gained, n)
    low_b, high_b = wilson(both + lost, n)
    phi = _phi(both, gained, lost, neither)
    down_a, up_a = p_after - low_a, high_a - p_after
    down_b, up_b = p_before - low_b, high_b - p_before
    difference = p_after - p_before
    low = difference - sqrt(max(0.0, down_a**2 - 2 * phi * down_a * up_b + up_b**2))
    high = difference + sqrt(max(0.0, up_a**2 - 2 * phi * up_a * down_b + down_b**2))
    return difference, low, high


def _phi(both: int, gained: int, lost: int, neither: int) -> float:
    """Correlation of two right-or-wrong outcomes, with Newcombe's continuity correction."""
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    agreement = float(both * neither - gained * lost)
    if agreement > 0:
        agreement = max(agreement - (both + gained + lost + neither) / 2, 0.0)
    return agreement / sqrt(margins)
