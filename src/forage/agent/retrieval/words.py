"""How text becomes the words that BM25 counts, in passages and queries alike."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[^\W_]+")
# What Lucene's English analyser leaves out.
_FUNCTION_WORD = re.compile(
    "a|an|and|are|as|at|be|but|by|for|if|in|into|is|it|no|not|of|on|or|such|that|the|their|then|"
    "there|these|they|this|to|was|will|with"
)


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, in lower case, without accents; no stemming.

    `Röntgen's X-rays (1895)` gives `rontgen s x rays 1895`.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(filter(lambda c: not unicodedata.combining(c), decomposed))
    return _WORD.findall(text.lower())


def query_words(query: str) -> list[str]:
    """The words of a query, English function words left out unless there are no others."""
    words = words_of(query)
    return [word for word in words if not _FUNCTION_WORD.fullmatch(word)] or words


def word_keys(words: list[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each word, uint64 [words]: a vocabulary that can be memory-mapped."""
    digests = b"".join(blake2b(word.encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype="<u8")
