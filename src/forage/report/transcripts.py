"""The same held-out question answered before and after training, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

Record = Mapping[str, Any]


def choose(
    before: Sequence[Record], after: Sequence[Record], count: int
) -> list[tuple[Record, Record]]:
    """`count` questions, those first that were wrong and are right now, else in their order."""
    ends = {record["question_id"]: record for record in after}
    pairs = [(b, ends[b["question_id"]]) for b in before if b["question_id"] in ends]
    pairs = [(b, a) for b, a in pairs if b["failure"] is None and a["failure"] is None]
    pairs.sort(key=lambda pair: pair[0]["exact_match"] - pair[1]["exact_match"])
    return pairs[:count]


def side_by_side(before: Record, after: Record, steps: int, width: int) -> list[str]:
    """One question, its gold answers, and both transcripts in two columns."""
    column = (width - 3) // 2
    left = [f"before training: {_verdict(before)}", "", *_transcript(before, column)]
    right = [f"after step {steps}: {_verdict(after)}", "", *_transcript(after, column)]
    head = f"{before['question']}  (gold: {' | '.join(before['answers'])})"
    return [
        *textwrap.wrap(head, width),
        "-" * width,
        *(f"{a:<{column}} | {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")),
    ]


def _verdict(record: Record) -> str:
    answer = "no answer" if record["answer"] is None else _printable(record["answer"].strip())
    return f"{answer} ({'right' if record['exact_match'] else 'wrong'})"


def _transcript(record: Record, width: int) -> list[str]:
    lines: list[str] = []
    for segment in record["segments"]:
        if segment["kind"] == "prompt":
            continue
        indent = "    " if segment["kind"] == "information" else ""
        for line in segment["text"].strip().splitlines():
            lines += textwrap.wrap(
                _printable(line), width, initial_indent=indent, subsequent_indent=indent
            )
    return lines


def _printable(text: str) -> str:
    """Without control characters: what a model or a passage says must not steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
