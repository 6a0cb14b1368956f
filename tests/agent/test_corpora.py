"""Passages from files and folders."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared_file

from forage.agent.data.corpora import PASSAGE_WORDS, cut, load_corpus
from forage.agent.types import Passage
from forage.errors import UserError


def test_title_and_text_or_contents(tmp_path: Path) -> None:
    records = [
        {"title": "Brno", "text": "A city."},
        {"id": "1", "contents": '"Oslo"\nAnother\ncity.'},
        {"text": "No title."},
        {"title": "Brno", "text": "A city. "},
        {"title": "empty", "text": " "},
        {"title": "T", "contents": "ignored\nkept"},
    ]
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    assert load_corpus(path) == (
        Passage("Brno", "A city."),
        Passage("Oslo", "Another\ncity."),
        Passage("", "No title."),
        Passage("T", "kept"),
    )


def test_a_real_corpus() -> None:
    corpus = load_corpus(shared_file("2wikimultihopqa_corpus6119.jsonl.gz"))
    assert len(corpus) == 6119
    assert corpus[0].title == "Teutberga"


def test_a_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "guide.md").write_text("# Install\n\nRun it.\n\n" + "word " * 150)
    (tmp_path / "deep" / "notes.txt").write_text("Short.\n\nAlso short.", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    corpus = load_corpus(tmp_path)
    assert corpus[0] == Passage("notes", "Short. Also short.")
    assert [passage.title for passage in corpus[1:]] == ["guide"] * 3
    assert corpus[1].text == "# Install Run it."
    assert [len(passage.text.split()) for passage in corpus[2:]] == [100, 50]


@given(st.lists(st.sampled_from(["word", "end.", "no!", "\n\n", "\n", "\t", "é"]), max_size=400))
def test_cutting_keeps_every_word_in_order_within_the_limit(pieces: list[str]) -> None:
    text = " ".join(pieces)
    passages = list(cut(text))
    assert " ".join(passages).split() == text.split()
    assert all(1 <= len(passage.split()) <= PASSAGE_WORDS for passage in passages)


def test_paragraphs_and_sentences_are_kept_whole_where_they_fit() -> None:
    paragraph = "One two three. " * 30
    passages = list(cut(f"{paragraph}\n\n{'x ' * 60}\n\n{'y ' * 60}"))
    assert passages[0] == ("One two three. " * 30).strip()
    assert passages[1:] == [" ".join("x" * 60), " ".join("y" * 60)]
    sentences = list(cut("One two three. " * 50))
    assert all(passage.endswith(".") for passage in sentences)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}', r"a.jsonl:2: expected a passage.*are body"),
        ("a.jsonl", b'{"text": 3}', r"a.jsonl:1: text must be text, is 3"),
        ("a.jsonl", b'{"contents": null}', r"a.jsonl:1: contents must be text, is None"),
        ("a.jsonl", b'{"text": "x", "title": 3}', r"a.jsonl:1: title must be text, is 3"),
        ("a.jsonl", b'{"text": ""}', r"the corpus .* is empty: no passage with text"),
        ("a.jsonl", b"", r"holds no records"),
        ("folder/a.pdf", b"x", r"is empty.*looked for .txt and .md"),
        ("folder/a.txt", b"\xff\xfe", r"a.txt'?: not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_corpus(path.parent if name.startswith("folder") else path)


def test_a_corpus_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file: .*gone.jsonl"):
        load_corpus(tmp_path / "gone.jsonl")
