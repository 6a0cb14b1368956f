"""How passages reach the policy: text from outside that must not pass for anything else.

A passage, its title or a question may hold `</information>`, `<answer>`, or the text of a special
token. Such text is kept apart from the frame around it (`trusted` pieces), loses the bracket of
anything that looks like a tag, and is encoded so that no special token can come out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

from forage.agent.types import Passage

Part = tuple[str, bool]
"""A piece of text, and whether it is ours (tags allowed) or from outside."""

_NAMES = ("think", "search", "answer", "information")
_LONGEST = max(map(len, _NAMES))
_BRACKETS = re.compile("[<＜﹤]")
NO_PASSAGE = "No passage was found."

REMEMBERED = 2**15
"""Pieces of text whose tokens are remembered, about 6 kB for a passage of 100 words."""


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    bos_token_id: Any
    unk_token_id: Any
    all_special_ids: Any

    def encode(self, text: str, *, add_special_tokens: bool, **kwargs: Any) -> Any:
        """Token ids of `text`."""
        ...

    def get_added_vocab(self) -> dict[str, int]:
        """Tokens beyond the base vocabulary."""
        ...


def information_parts(passages: Sequence[Passage]) -> list[Part]:
    """What is appended after a search, in pieces: Search-R1's layout of the passages found."""
    if not passages:
        return notice_parts(NO_PASSAGE)
    parts: list[Part] = [("\n\n<information>", True)]
    for number, passage in enumerate(passages, 1):
        lead = f'Doc {number}(Title: "' if number == 1 else f'\nDoc {number}(Title: "'
        parts += [(lead, True), (neutralise(passage.title), False)]
        parts += [('")', True), (" " + neutralise(passage.text.strip()), False)]
    return [*parts, ("</information>\n\n", True)]


def notice_parts(notice: str) -> list[Part]:
    """What is appended after a search that has no passages: a remark of ours in their place."""
    return [("\n\n<information>", True), (notice, True), ("</information>\n\n", True)]


def neutralise(text: str) -> str:
    """Replace the bracket of whatever could pass for a tag of the protocol by a parenthesis.

    A bracket goes if the next letters spell a tag's name, whatever case, width, spacing or
    punctuation lies between; every other `<` stays.
    """
    if not _BRACKETS.search(text):
        return text
    out = list(text)
    upcoming, condemned = "", False
    for position in range(len(text) - 1, -1, -1):
        character = text[position]
        if _BRACKETS.match(character):
            # Directly before another bracket, both share its fate: `<<search>`.
            condemned = upcoming.startswith(_NAMES) if upcoming else condemned
            if condemned:
                out[position] = "("
            upcoming = ""
        elif letters := _letters(character):
            upcoming = (letters + upcoming)[:_LONGEST]
    return "".join(out)


def _letters(character: str) -> str:
    """The letters that a reader may take a character for, in lower case."""
    if character.isascii():
        return character.lower() if character.isalpha() else ""
    folded = unicodedata.normalize("NFKC", character).casefold()
    return "".join(filter(str.isalpha, folded))


class PartEncoder:
    """Token ids of pieces of text under one tokenizer, without beginning or end tokens.

    Text from outside yields no special token (the unknown token aside) and none of the
    tokenizer's added tokens. Pieces are remembered: the frame around passages recurs in every
    search, and a passage in many.

    Attributes:
        piece: token ids of one piece: (text, whether it is ours).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = _added_tokens(tokenizer)
        self._special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.piece = lru_cache(REMEMBERED)(self._piece)

    def __call__(self, parts: Iterable[Part]) -> list[int]:
        """Token ids of `parts`, each encoded by itself."""
        return [token for text, trusted in parts for token in self.piece(text, trusted)]

    def _piece(self, text: str, trusted: bool) -> tuple[int, ...]:
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        if trusted:
            return tuple(encode(text))
        found = (
            token
            for piece in _cut(text, self._added)
            for token in encode(piece, split_special_tokens=True)
        )
        # A word-level vocabulary can still hold a special token's text as a word.
        return tuple(token for token in found if token not in self._special)


def encode_parts(tokenizer: Tokenizer, parts: Iterable[Part]) -> list[int]:
    """Token ids of `parts`, see `PartEncoder`."""
    return PartEncoder(tokenizer)(parts)


def _added_tokens(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Matches the text of any added token that a passage could forge."""
    tokens = [token for token in tokenizer.get_added_vocab() if len(token.strip()) > 1]
    tokens.sort(key=len, reverse=True)
    return re.compile("|".join(map(re.escape, tokens))) if tokens else None


def _cut(text: str, added: re.Pattern[str] | None) -> list[str]:
    """`text` in pieces, cut after the first character of every added token in it."""
    pieces, start = [], 0
    while added and (match := added.search(text, start)):
        cut = match.start() + len(match[0]) - len(match[0].lstrip()) + 1
        pieces.append(text[start:cut])
        start = cut
    return [piece for piece in (*pieces, text[start:]) if piece]
