"""Passages to search: from a file, from a folder of documents, or from the questions themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from forage.agent.data.layouts import text_of
from forage.agent.data.records import Record, opened, read_records
from forage.agent.types import Passage, Question
from forage.errors import UserError

DOCUMENT_SUFFIXES = (".txt", ".md")
PASSAGE_WORDS = 100
"""Words in a passage made from a document, at most; the size of Search-R1's Wikipedia passages."""

_BLANK_LINES = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def load_corpus(source: str | Path) -> tuple[Passage, ...]:
    """The passages of `source`, without duplicates, in order.

    Args:
        source: a file of records with `text` (and `title`) or FlashRAG `contents`, or a folder
            whose `.txt` and `.md` files are cut into passages, titled by the file's name.

    Raises:
        UserError: if it can't be read or holds no passage.
    """
    path = Path(source)
    found = _documents(path) if path.is_dir() else map(_passage, read_records(path))
    corpus = distinct(found)
    if not corpus:
        wanted = f" (looked for {' and '.join(DOCUMENT_SUFFIXES)})" if path.is_dir() else ""
        raise UserError(f"the corpus {str(path)!r} is empty: no passage with text in it{wanted}")
    return corpus


def corpus_of(questions: Iterable[Question]) -> tuple[Passage, ...]:
    """The paragraphs that came with `questions`, without duplicates, in order."""
    return distinct(passage for question in questions for passage in question.paragraphs)


def distinct(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """Passages that hold text, the first of each that is given twice."""
    return tuple(dict.fromkeys(passage for passage in passages if passage.text))


def _passage(record: Record) -> Passage:
    fields = record.fields
    if "text" in fields:
        title = fields.get("title")
        text = text_of(record, "text", fields["text"])
    elif "contents" in fields:
        title, _, text = text_of(record, "contents", fields["contents"]).partition("\n")
        title = fields.get("title", title.strip().strip('"'))
    else:
        raise UserError(
            f"{record.where}: expected a passage with text (and title) or contents; "
            f"the fields are {', '.join(map(str, fields))}"
        )
    return Passage(text_of(record, "title", title if title is not None else ""), text.strip())


def _documents(folder: Path) -> Iterator[Passage]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in DOCUMENT_SUFFIXES and path.is_file():
            with opened(path) as file:
                content = file.read()
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{str(path)!r}: not UTF-8 ({error.reason} at byte {error.start})"
                ) from None
            for passage in cut(text):
                yield Passage(path.stem, passage)


def cut(text: str, words: int = PASSAGE_WORDS) -> Iterator[str]:
    """`text` in passages of at most `words` words, ending where paragraphs or sentences do.

    Short paragraphs are put together; only a sentence longer than `words` is cut inside.
    """
    pending: list[str] = []
    for piece in _pieces(text, words):
        if pending and len(pending) + len(piece) > words:
            yield " ".join(pending)
            pending = []
        pending += piece
    if pending:
        yield " ".join(pending)


def _pieces(text: str, words: int) -> Iterator[list[str]]:
    """The words of `text` in the longest pieces that need not be cut."""
    for paragraph in _BLANK_LINES.split(text):
        if len(whole := paragraph.split()) <= words:
            yield whole
            continue
        for sentence in map(str.split, _SENTENCE_END.split(paragraph)):
            for start in range(0, len(sentence), words):
                yield sentence[start : start + words]
