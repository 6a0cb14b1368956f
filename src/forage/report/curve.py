"""The learning curve in plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROWS = 10
GREEDY, SAMPLED, BOTH = "*", "o", "@"


def draw_curve(evals: Sequence[Mapping[str, Any]], width: int = 64) -> list[str]:
    """Exact match over steps: greedy `*`, sampled `o`, both `@`; lines from 100 % down to 0 %."""
    last = max(record["step"] for record in evals)
    grid = [[" "] * width for _ in range(ROWS + 1)]
    for record in evals:
        column = round(record["step"] / last * (width - 1)) if last else 0
        for key, mark in (("exact_match", GREEDY), ("sampled_exact_match", SAMPLED)):
            if record[key] is not None:
                row = ROWS - round(record[key] * ROWS)
                taken = grid[row][column]
                grid[row][column] = mark if taken in (" ", mark) else BOTH
    lines = [
        f"{100 - 100 * row // ROWS:>4} % |{''.join(cells).rstrip()}"
        for row, cells in enumerate(grid)
    ]
    end = str(last)
    lines.append(" " * 7 + "+" + "-" * width)
    lines.append(" " * 8 + "0" + end.rjust(width - 1) if last else " " * 8 + "0")
    lines.append(
        f"        exact match over steps: {GREEDY} greedy   {SAMPLED} sampled   {BOTH} both"
    )
    return lines
