"""The plain values that data sets, retrieval and rewards exchange."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """One searchable paragraph."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its accepted answers.

    `paragraphs` are those that came with it (a corpus can be built from them);
    `supporting_titles` name the ones that hold the evidence, `supporting` are those that came with
    it, and `evidence` are the very sentences where the data set tells them, each under the title of
    its paragraph; `kind` is the data set's own label (`bridge`, `comparison`, `1hop`, ...), empty
    if it has none.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    paragraphs: tuple[Passage, ...] = ()
    supporting_titles: tuple[str, ...] = ()
    kind: str = ""
    supporting: tuple[Passage, ...] = ()
    evidence: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions to train on, questions held out, and the passages to search.

    `notes` say what loading left out, one line each.
    """

    name: str
    train: tuple[Question, ...]
    heldout: tuple[Question, ...]
    corpus: tuple[Passage, ...]
    notes: tuple[str, ...] = ()
