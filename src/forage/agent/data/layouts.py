"""The layouts in which question sets are published, each recognised by the fields of its records.

| layout | told by | answers | paragraphs |
| --- | --- | --- | --- |
| HotpotQA, 2WikiMultihopQA | `context`, `supporting_facts` | `answer` | all of `context` |
| MuSiQue | `paragraphs` | `answer`, `answer_aliases` | all of `paragraphs` |
| NQ-open, plain | none of these | `answer`, `answers` or `golden_answers` | `ctxs`, if there |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from forage.agent.data.records import Record
from forage.agent.types import Passage, Question
from forage.errors import UserError

ANSWER_FIELDS = ("answer", "answers", "golden_answers")
Convert = Callable[[Record], Question | None]


def read_questions(records: Iterable[Record]) -> Iterator[Question | None]:
    """A question per record, in the layout of the first; None for one that can't be answered.

    Raises:
        UserError: naming the record and what it lacks.
    """
    convert: Convert | None = None
    for record in records:
        convert = convert or _layout_of(record)
        yield convert(record)


def text_of(record: Record, name: str, value: Any) -> str:
    """`value`, which must be text that can be encoded.

    Raises:
        UserError: naming record, field and value.
    """
    if not isinstance(value, str):
        raise UserError(f"{record.where}: {name} must be text, is {_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{record.where}: {name} holds half of a surrogate pair") from None
    return value


def _layout_of(record: Record) -> Convert:
    fields = record.fields
    if "question" not in fields:
        raise UserError(
            f"{record.where}: unknown layout: the fields are {', '.join(map(str, fields))}; "
            f"expected question with {', '.join(ANSWER_FIELDS[:-1])} or {ANSWER_FIELDS[-1]}, "
            "or the official fields of HotpotQA, 2WikiMultihopQA or MuSiQue"
        )
    if "context" in fields and "supporting_facts" in fields:
        return _hotpot
    return _musique if "paragraphs" in fields else _open


def _hotpot(record: Record) -> Question:
    """HotpotQA and 2WikiMultihopQA, official or in the Hub's lists-in-an-object form."""
    context = [
        (text_of(record, "title", title), _sentences(record, sentences))
        for title, sentences in _pairs(record, "context", ("title",), ("sentences", "content"))
    ]
    facts = [
        (text_of(record, "title", title), number)
        for title, number in _pairs(record, "supporting_facts", ("title",), ("sent_id",))
    ]
    titles = tuple(dict.fromkeys(title for title, _ in facts))
    passages = [Passage(title, " ".join(filter(None, sentences))) for title, sentences in context]
    supporting = [passage for passage in passages if passage.title in titles]
    question = _question(record, passages, supporting, _label(record, "type"))
    return replace(question, supporting_titles=titles, evidence=_evidence(dict(context), facts))


def _sentences(record: Record, sentences: Any) -> list[str]:
    """Of a paragraph; HotpotQA's sentences carry their spaces, 2WikiMultihopQA's don't."""
    if not isinstance(sentences, list):
        raise UserError(f"{record.where}: context must list sentences, has {_short(sentences)}")
    return [text_of(record, "a sentence of context", sentence).strip() for sentence in sentences]


def _evidence(
    context: dict[str, list[str]], facts: Iterable[tuple[str, Any]]
) -> tuple[Passage, ...]:
    """The sentences that the facts name; some facts of HotpotQA name one that isn't there."""
    found = [
        Passage(title, context[title][number])
        for title, number in facts
        if isinstance(number, int) and 0 <= number < len(context.get(title, ()))
    ]
    return tuple(dict.fromkeys(sentence for sentence in found if sentence.text))


def _pairs(
    record: Record, name: str, first: tuple[str, ...], second: tuple[str, ...]
) -> list[tuple[Any, Any]]:
    """A list of pairs, or an object of two lists of equal length."""
    value = record.fields.get(name)
    if isinstance(value, dict):
        left = next((value[key] for key in first if key in value), None)
        right = next((value[key] for key in second if key in value), None)
        if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            return list(zip(left, right, strict=True))
    elif isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value):
        return [(left, right) for left, right in value]
    raise UserError(
        f"{record.where}: {name} must be a list of pairs, or an object of the lists "
        f"{first[0]} and {second[0]}; is {_short(value)}"
    )


def _musique(record: Record) -> Question | None:
    """MuSiQue; its unanswerable questions have nothing to reward."""
    if record.fields.get("answerable") is False:
        return None
    passages: list[Passage] = []
    supporting: list[Passage] = []
    for paragraph in _objects(record, "paragraphs"):
        title = text_of(record, "title of a paragraph", paragraph.get("title"))
        text = text_of(record, "paragraph_text", paragraph.get("paragraph_text"))
        passages.append(Passage(title, text.strip()))
        if paragraph.get("is_supporting"):
            supporting.append(passages[-1])
    hops = str(record.fields.get("id", "")).partition("__")
    return _question(record, passages, supporting, hops[0] if hops[1] else "")


def _open(record: Record) -> Question:
    """NQ-open and plain question-answer records; passages where `ctxs` brings some."""
    passages: list[Passage] = []
    gold: list[Passage] = []
    for context in _objects(record, "ctxs") if record.fields.get("ctxs") else ():
        title = text_of(record, "title in ctxs", context.get("title"))
        passages.append(
            Passage(title, text_of(record, "text in ctxs", context.get("text")).strip())
        )
        if context.get("isgold"):
            gold.append(passages[-1])
    return _question(record, passages, gold, _label(record, "type"))


def _objects(record: Record, name: str) -> list[dict[str, Any]]:
    value = record.fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{record.where}: {name} must be a list of objects, is {_short(value)}")
    return value


def _question(
    record: Record, paragraphs: list[Passage], supporting: list[Passage], kind: str
) -> Question:
    text = text_of(record, "question", record.fields.get("question")).strip()
    if not text:
        raise UserError(f"{record.where}: the question is empty")
    return Question(
        id=_id(record, text),
        text=text,
        answers=_answers(record),
        paragraphs=tuple(passage for passage in paragraphs if passage.text),
        supporting_titles=tuple(dict.fromkeys(passage.title for passage in supporting)),
        kind=kind,
        supporting=tuple(passage for passage in supporting if passage.text),
    )


def _answers(record: Record) -> tuple[str, ...]:
    given: list[str] = []
    for name in (*ANSWER_FIELDS, "answer_aliases"):
        value = record.fields.get(name)
        for answer in value if isinstance(value, list) else [] if value is None else [value]:
            given.append(text_of(record, name, answer).strip())
    answers = tuple(dict.fromkeys(filter(None, given)))
    if not answers:
        expected = f"{', '.join(ANSWER_FIELDS[:-1])} or {ANSWER_FIELDS[-1]}"
        raise UserError(f"{record.where}: the question has no answer; fill one of {expected}")
    return answers


def _id(record: Record, text: str) -> str:
    """The record's own id, else one made of the question's text."""
    for name in ("_id", "id"):
        value = record.fields.get(name)
        if isinstance(value, int):
            return str(value)
        if value is not None and value != "":
            return text_of(record, name, value)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _label(record: Record, name: str) -> str:
    value = record.fields.get(name)
    return value if isinstance(value, str) else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
