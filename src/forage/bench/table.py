"""The tables of `forage bench`: work, time, rate, and the share of a ceiling."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from forage.report.console import Console
from forage.report.numbers import percent

HEADINGS = ("work", "amount", "time", "rate", "share")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured piece of work.

    Attributes:
        work: what was done.
        amount: how much, in words: `105,000 tokens`.
        seconds: how long it took; None where that isn't what was measured.
        rate: amount per second, in words: `20,200 tokens/s`.
        share: of the ceiling measured in the same run, or of the whole that it is a part of; None
            without either.
    """

    work: str
    amount: str = ""
    seconds: float | None = None
    rate: str = ""
    share: float | None = None


def table_lines(title: str, rows: Sequence[Row]) -> list[str]:
    """A titled table in Markdown, its columns aligned."""
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    lines = ["| " + " | ".join(_pad(row, widths)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return [title, "", lines[0], rule, *lines[1:], ""]


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table."""
    console = Console(sys.stdout)
    for line in table_lines(title, rows):
        console.line(line)


def note(text: str) -> None:
    """Print a line beside the tables."""
    Console(sys.stdout).line(text)


def clock(seconds: float) -> str:
    """A measured time with three significant digits: `12.3 s`, `43.1 ms`, `250 us`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            value = seconds * factor
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


def rate(amount: float, seconds: float, unit: str) -> str:
    """`amount` per second in words: `20,200 tokens/s`."""
    return f"{amount / seconds:,.0f} {unit}/s"


def _cells(row: Row) -> tuple[str, ...]:
    time = "" if row.seconds is None else clock(row.seconds)
    share = "" if row.share is None else percent(row.share)
    return (row.work, row.amount, time, row.rate, share)


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first = row[0].ljust(widths[0])
    return [first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
