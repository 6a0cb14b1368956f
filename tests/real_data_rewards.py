"""A reward that an untrained model can already vary in."""

from __future__ import annotations

from forage.agent.types import Question


def words_of_gold(question: Question, answer: str | None, transcript: str) -> float:
    """How much of what was written are words of a gold answer, and how short it is."""
    words = transcript.lower().split()
    gold = set(" ".join(question.answers).lower().split())
    return sum(word in gold for word in words) / (1 + len(words)) - len(words) / 1000
