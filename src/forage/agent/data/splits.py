"""Which questions are held out: decided by what they ask, whatever their order in a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from forage.agent.rewards import normalize_answer
from forage.agent.types import Question


def identity(question: Question) -> str:
    """What makes two questions the same: a hash of their normalised text, in hex."""
    normalized = normalize_answer(question.text) or question.text
    return blake2b(normalized.encode(), digest_size=16).hexdigest()


def hold_out(questions: Iterable[Question], count: int) -> list[Question]:
    """`count` questions that differ, in the order of their hashes; fewer if there are no more.

    The same ones whatever the order of `questions`, and among those of any larger `count`.
    """
    different: dict[str, Question] = {}
    for question in sorted(questions, key=_content):
        different.setdefault(identity(question), question)
    return list(different.values())[:count]


def limit_to(questions: Iterable[Question], count: int) -> list[Question]:
    """`count` of `questions`, chosen by content, in the order given."""
    kept = list(questions)
    last = sorted(range(len(kept)), key=lambda position: _content(kept[position]), reverse=True)
    return [kept[position] for position in sorted(last[:count])]


def without(questions: Iterable[Question], excluded: Iterable[Question]) -> list[Question]:
    """`questions` apart from those that ask the same as one of `excluded`."""
    identities = {identity(question) for question in excluded}
    return [question for question in questions if identity(question) not in identities]


def distinct(questions: Iterable[Question]) -> list[Question]:
    """`questions` under different ids, each record once.

    Of two questions under an id `x`, the second becomes `x-2`.
    """
    kept: dict[str, Question] = {}
    for question in dict.fromkeys(questions):
        number, unused = 2, question.id
        while unused in kept:
            unused, number = f"{question.id}-{number}", number + 1
        kept[unused] = question if unused == question.id else replace(question, id=unused)
    return list(kept.values())


def _content(question: Question) -> tuple[str, str, str, tuple[str, ...]]:
    return identity(question), question.id, question.text, question.answers
