"""From the words of a command line to questions, held-out questions and a corpus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from forage.agent.data.corpora import corpus_of, load_corpus
from forage.agent.data.hub import PREFIX, read_hub
from forage.agent.data.layouts import read_questions
from forage.agent.data.records import read_records
from forage.agent.data.splits import distinct, hold_out, limit_to, without
from forage.agent.types import DataSet, Passage, Question
from forage.errors import UserError


def load_dataset(
    data: str,
    *,
    heldout: int,
    corpus: str | None = None,
    heldout_data: str | None = None,
    limit: int | None = None,
    need_corpus: bool = True,
) -> DataSet:
    """The data set that `data` names, split, with its corpus.

    Args:
        data: `atlas`, a `.json`, `.jsonl` or `.parquet` file (each may be `.gz`), or `hf:NAME`.
        heldout: questions held out, chosen by content; what asks the same is not trained on.
        corpus: a file or folder of passages; without it, the paragraphs that came with the
            questions selected.
        heldout_data: takes the held-out questions from here instead, named as `data` is.
        limit: train on this many questions only, chosen by content.
        need_corpus: whether having no passages at all is an error.

    Raises:
        UserError: for whatever can't be found, read, understood or satisfied; in one line.
    """
    if heldout < 0 or (limit is not None and limit < 1):
        raise UserError(
            f"{heldout} held-out and {limit} training questions can't be had; "
            "hold out 0 or more, train on 1 or more"
        )
    if data == "atlas":
        dataset = _atlas(heldout, heldout_data)
    else:
        dataset = _split(data, heldout, heldout_data)
    if limit is not None:
        dataset = replace(dataset, train=tuple(limit_to(dataset.train, limit)))
    return replace(dataset, corpus=_corpus(dataset, corpus, need_corpus))


def _atlas(heldout: int, heldout_data: str | None) -> DataSet:
    from forage.agent.data.atlas import load_atlas

    if heldout_data is not None:
        raise UserError(
            f"atlas brings its own held-out questions; leave out {heldout_data!r} (heldout_data)"
        )
    try:
        return load_atlas(heldout)
    except ValueError as error:
        raise UserError(str(error)) from None


def _split(data: str, heldout: int, heldout_data: str | None) -> DataSet:
    """Questions of `data`, some held out; no corpus yet."""
    questions, notes = _questions(data)
    source = heldout_data if heldout_data is not None else data
    pool = questions
    if heldout_data is not None:
        pool, more = _questions(heldout_data)
        notes += more
    held = hold_out(pool, heldout)
    if len(held) < heldout:
        raise UserError(
            f"can't hold out {heldout} questions: {source!r} has {len(held)} different ones"
        )
    train = without(questions, held)
    if not train:
        raise UserError(
            f"holding out {heldout} questions leaves none of {data!r} to train on; hold out fewer"
        )
    alike = len(questions) - len(train) - (0 if heldout_data is not None else len(held))
    if alike:
        notes.append(f"{data}: {alike} questions not trained on, as held-out ones ask the same")
    return DataSet(Path(data).name, tuple(train), tuple(held), (), tuple(notes))


def _questions(source: str) -> tuple[list[Question], list[str]]:
    """The questions of a source, under different ids; and notes on what was left out."""
    records = read_hub(source) if source.startswith(PREFIX) else read_records(source)
    found = list(read_questions(records))
    answerable = [question for question in found if question is not None]
    questions = distinct(answerable)
    notes = []
    if unanswerable := len(found) - len(answerable):
        notes.append(f"{source}: {unanswerable} unanswerable questions left out")
    if repeated := len(answerable) - len(questions):
        notes.append(f"{source}: {repeated} repeated records left out")
    if not questions:
        raise UserError(f"{source!r} holds no question that can be answered")
    return questions, notes


def _corpus(dataset: DataSet, corpus: str | None, needed: bool) -> tuple[Passage, ...]:
    if corpus is not None:
        return load_corpus(corpus)
    passages = dataset.corpus or corpus_of((*dataset.train, *dataset.heldout))
    if needed and not passages:
        raise UserError(
            f"the corpus is empty: the questions of {dataset.name!r} bring no paragraphs; "
            "give a corpus (a file or folder of passages), or the URL of a retriever"
        )
    return passages


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What there is to know about a data set before training on it.

    Attributes:
        kinds: questions of each kind, (training, held-out).
        question_words: mean words in a question.
        passage_words: mean words in a passage, title aside; 0 without passages.
        answers: mean number of accepted answers.
        evidence: share of the questions that name their evidence of which all of it is in the
            corpus; None if none does.
        notes: what loading left out.
        examples: the first training questions.
    """

    name: str
    train: int
    heldout: int
    passages: int
    kinds: dict[str, tuple[int, int]]
    question_words: float
    passage_words: float
    answers: float
    evidence: float | None
    notes: tuple[str, ...]
    examples: tuple[Question, ...]


def describe(dataset: DataSet, examples: int = 3) -> DataFacts:
    """Counts and means of `dataset`, with its first questions."""
    questions = (*dataset.train, *dataset.heldout)
    train, held = (Counter(q.kind for q in side) for side in (dataset.train, dataset.heldout))
    titles = {passage.title for passage in dataset.corpus}
    covered = [titles.issuperset(q.supporting_titles) for q in questions if q.supporting_titles]
    return DataFacts(
        name=dataset.name,
        train=len(dataset.train),
        heldout=len(dataset.heldout),
        passages=len(dataset.corpus),
        kinds={kind: (train[kind], held[kind]) for kind in sorted(train | held)},
        question_words=fmean(len(question.text.split()) for question in questions),
        passage_words=fmean(len(p.text.split()) for p in dataset.corpus) if dataset.corpus else 0.0,
        answers=fmean(len(question.answers) for question in questions),
        evidence=fmean(covered) if covered else None,
        notes=dataset.notes,
        examples=dataset.train[:examples],
    )
