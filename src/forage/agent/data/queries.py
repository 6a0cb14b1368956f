"""Queries that somebody could ask who knows the question and what was read so far."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["name", "words", "both"]

STYLES: dict[Style, float] = {"name": 0.4, "words": 0.35, "both": 0.25}
"""How often each style is asked where all would do: a name; the words of the question; a name
with words of the question."""

WORDS_WITH_NAME = 2
"""Words of the question that are added to a name."""

_LINKS = "of|the|de|da|di|du|la|le|van|von|der|&"
_CAPITALISED = r"(?:(?:[A-Z]\.)+|[A-Z0-9][\w'’&-]*(?:\.\w+)*)"
_NAME = re.compile(
    rf"[\"“]([^\"”]+)[\"”]|{_CAPITALISED}(?:\s+(?:(?:{_LINKS})\s+){{0,2}}{_CAPITALISED})*"
)
_DISAMBIGUATION = re.compile(r"\s*\([^)]*\)$")
_POSSESSIVE = re.compile(r"['’]s?$")
_WORD = re.compile(r"[^\W_][\w'’.-]*")
_ASKING = re.compile(
    "a|about|after|also|am|an|and|are|as|at|be|been|before|between|born|both|but|by|can|could|"
    "did|do|does|during|first|for|from|had|has|have|he|her|his|how|i|in|into|is|it|its|know|"
    "known|many|more|most|name|named|of|on|one|or|other|same|she|some|than|that|the|their|them|"
    "there|they|this|to|two|was|were|what|when|where|whether|which|who|whom|whose|why|will|"
    "with|would|you",
    re.IGNORECASE,
)
"""Words of a question that say nothing of what it is about."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked, in which style, and the name or the question that it is about."""

    text: str
    style: Style
    about: str


def plain_name(title: str) -> str:
    """A title without what tells it from others: `Unbreakable (film)` is `Unbreakable`."""
    return _DISAMBIGUATION.sub("", title)


def mentions(texts: Iterable[str], name: str) -> bool:
    """Whether one of `texts` holds the name, whatever its case."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    return any(pattern.search(text) for text in texts)


def names_in(text: str) -> list[str]:
    """Quoted titles and runs of capitalised words, in order of appearance, each once."""
    found: dict[str, None] = {}
    for match in _NAME.finditer(text):
        words = _POSSESSIVE.sub("", match[1] or match[0]).strip(" ,").split()
        while words and _ASKING.fullmatch(words[0]):
            del words[0]
        if words and not (len(words) == 1 and len(words[0]) < 3):
            found[" ".join(words)] = None
    return list(found)


def telling_words(question: str) -> list[str]:
    """The words of a question without those that only ask, in order, each once."""
    words = (word.strip(".'’-") for word in _WORD.findall(question))
    telling = (word for word in words if word and not _ASKING.fullmatch(word))
    return list(dict.fromkeys(telling))


def queries(question: str, titles: Sequence[str], read: Sequence[str]) -> Iterator[Query]:
    """What one could ask next, the most natural first.

    Args:
        question: its text.
        titles: what the searcher is after; used only where question or `read` name it.
        read: sentences that were read, the newest last.
    """
    names = [name for name in map(plain_name, titles) if mentions((question, *read), name)]
    for text in (question, *reversed(read)):
        names += names_in(text)
    names = list(dict.fromkeys(names))
    words = telling_words(question)
    yield from (Query(name, "name", name) for name in names)
    yield Query(" ".join(words), "words", question)
    for name in names:
        known = set(name.lower().split())
        more = [word for word in words if word.islower() and word not in known]
        if more:
            yield Query(" ".join([name, *more[:WORDS_WITH_NAME]]), "both", name)
