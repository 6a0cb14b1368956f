"""Two-hop questions in HotpotQA's layout, on made-up towns, their rivers and the rivers' lands."""

from __future__ import annotations

from itertools import product
from typing import Any

NAMES = ["".join(parts).capitalize() for parts in product(("ba", "ke", "lo", "mi"), repeat=4)]
LANDS = ("Arda", "Borea", "Cimmeria", "Doria", "Elam")


def hop_records(count: int) -> list[dict[str, Any]]:
    """Questions that take a town's paragraph and its river's; two other paragraphs are beside."""
    return [_record(i, (i + 1) % count) for i in range(count)]


def _record(i: int, other: int) -> dict[str, Any]:
    town, river, land = _town(i), _river(i), LANDS[i % len(LANDS)]
    return {
        "_id": f"hop{i}",
        "question": f"In which land does the river of {town} end?",
        "answer": land,
        "type": "bridge",
        "supporting_facts": [[town, 1], [river, 0]],
        "context": [
            [town, [f"{town} has a market.", f" The stream at its walls is the {river}."]],
            [river, [f"The {river} ends in {land}.", " It is full of fish."]],
            [_town(other), [f"{_town(other)} has a mill."]],
            [_river(other), [f"The {_river(other)} is cold."]],
        ],
    }


def _town(i: int) -> str:
    return NAMES[i]


def _river(i: int) -> str:
    return f"{NAMES[-1 - i]} Water"
