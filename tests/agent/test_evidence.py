"""Traces from supporting facts: true searches, made with what is known, that end in the answer."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from agent_files import write
from hop_questions import hop_records
from shared_data import shared_file

from forage.agent.data import load_dataset
from forage.agent.data.evidence import EvidenceWriter
from forage.agent.data.queries import names_in, queries, telling_words
from forage.agent.protocol import read_transcript
from forage.agent.retrieval.bm25 import BM25Index, build_index
from forage.agent.retrieval.words import words_of
from forage.agent.types import DataSet, Passage, Question

MAX_SEARCHES = 4


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return load_dataset(
        write(tmp_path_factory.mktemp("hops") / "q.jsonl", hop_records(60)), heldout=5
    )


def index_of(data: DataSet, folder: Path) -> BM25Index:
    return BM25Index.open(build_index(data.corpus, folder))


def writer_over(index: BM25Index, seed: int, k: int = 3) -> EvidenceWriter:
    return EvidenceWriter(partial(index.search, k=k), MAX_SEARCHES, random.Random(seed))


def check_trace(trace, question: Question, index: BM25Index, k: int = 3) -> int:
    """Holds what a trace says against the data and the index; returns its searches."""
    text = "".join(piece for piece, _, _ in trace.parts)
    outcome = read_transcript(text, MAX_SEARCHES)
    assert outcome.answer == question.answers[0]
    assert outcome.rule == "answer"
    read = re.findall("<information>(.*?)</information>", text, re.DOTALL)
    known, found = spaced(question.text), set()
    for query, block in zip(outcome.searches, read, strict=True):
        assert set(words_of(query)) <= set(known.split()), query
        assert all(shows(block, passage) for passage in index.search(query, k)), query
        new = {p for p in question.supporting if shows(block, p)} - found
        assert new, f"{query}: finds nothing that was missing"
        found |= new
        known += spaced(block)
    answer = spaced(question.answers[0])
    if answer in (" yes ", " no ") or answer in spaced(question.text):
        assert found == set(question.supporting), f"{answer}: told before all was read"
    else:
        assert answer in spaced(" ".join(read)), f"{answer}: made up"
    return len(outcome.searches)


def shows(block: str, passage: Passage) -> bool:
    return f'(Title: "{passage.title}") {passage.text}\n' in f"{block}\n"


def spaced(text: str) -> str:
    return f" {' '.join(words_of(text))} "


def test_every_search_finds_what_was_missing_with_words_known_by_then(hops, tmp_path):
    index = index_of(hops, tmp_path)
    writer = writer_over(index, 0, k=2)
    counts = Counter(
        check_trace(writer.write(question), question, index, k=2) for question in hops.train
    )
    assert counts[2] > 0


def test_traces_differ(hops, tmp_path):
    writer = writer_over(index_of(hops, tmp_path), 1)
    question = hops.train[0]
    traces = [writer.write(question) for _ in range(60)]
    own = ["".join(text for text, _, mine in trace.parts if mine) for trace in traces]
    assert len(set(own)) > 5
    quoted = [question.evidence[1].text in text for text in own]
    assert {True, False} == set(quoted)
    again = writer_over(index_of(hops, tmp_path), 1)
    assert [again.write(question) for _ in range(60)] == traces


def test_what_the_policy_writes_and_reads_is_told_apart(hops, tmp_path):
    index = index_of(hops, tmp_path)
    for question in hops.train[:10]:
        trace = writer_over(index, 2).write(question)
        for text, trusted, own in trace.parts:
            assert own == text.startswith("<think>")
            assert trusted or not re.search("</?(search|answer|think|information)>", text)
        passages = {text.strip() for text, trusted, _ in trace.parts if not trusted}
        assert passages <= {t for p in hops.corpus for t in (p.title, p.text)}


@pytest.mark.parametrize(
    "changes",
    [
        {"supporting_titles": ()},
        {"supporting_titles": ("Nowhere",), "answers": ("nobody",)},
        {"text": "What?"},
    ],
    ids=["no facts", "facts outside the corpus", "a question without a clue"],
)
def test_no_trace_without_a_way_to_the_evidence(hops, tmp_path, changes):
    question = replace(hops.train[0], **changes)
    assert writer_over(index_of(hops, tmp_path), 3).write(question) is None


def test_one_search_where_one_suffices(tmp_path):
    passages = [Passage("Brno", "Brno lies in Czechia, in Moravia.")]
    question = Question(
        "q", "Where does Brno lie?", ("Czechia",), supporting_titles=("Brno", "Moravia")
    )
    writer = EvidenceWriter(lambda query: passages, MAX_SEARCHES, random.Random(0))
    trace = writer.write(question)
    assert len(read_transcript("".join(t for t, _, _ in trace.parts), 4).searches) == 1


def test_a_verdict_takes_all_of_the_evidence():
    passages = {"Brno": Passage("Brno", "Yes, Brno is a city."), "Oslo": Passage("Oslo", "A city.")}
    question = Question(
        "q",
        "Are Brno and Oslo cities, yes or no?",
        ("yes",),
        supporting_titles=("Brno", "Oslo"),
    )

    def search(query: str) -> list[Passage]:
        return [passages[name] for name in passages if name in query][:1]

    for seed in range(20):
        trace = EvidenceWriter(search, MAX_SEARCHES, random.Random(seed)).write(question)
        assert len(read_transcript("".join(t for t, _, _ in trace.parts), 4).searches) == 2


def test_another_paragraph_of_the_same_title_is_no_evidence():
    gold, other = Passage("Brno", "Brno lies in Czechia."), Passage("Brno", "Brno has trams.")
    question = Question(
        "q", "Where does Brno lie?", ("Czechia",), supporting_titles=("Brno",), supporting=(gold,)
    )

    def write(*found: Passage) -> object:
        return EvidenceWriter(lambda query: found, 2, random.Random(0)).write(question)

    assert write(other) is None
    assert write(other, gold) is not None


def test_two_paragraphs_of_one_title_are_two_pieces_of_evidence():
    walls = Passage("Brno", "The walls of Brno are of basalt.")
    basalt = Passage("Brno", "Basalt is grey. Brno has none.")
    question = Question(
        "q",
        "Which colour have the walls of Brno?",
        ("grey",),
        supporting_titles=("Brno",),
        supporting=(walls, basalt),
        evidence=(Passage("Brno", walls.text), Passage("Brno", "Basalt is grey.")),
    )

    def search(query: str) -> list[Passage]:
        return [basalt] if "Basalt" in query else [walls]

    def write(question: Question, seed: int) -> str | None:
        trace = EvidenceWriter(search, 2, random.Random(seed)).write(question)
        return trace and "".join(text for text, _, own in trace.parts if own)

    assert all(write(question, seed) is None for seed in range(20))
    question = replace(question, text="Which colour have the walls of Brno? Look up Basalt.")
    traces = [write(question, seed) for seed in range(20)]
    told = [text for text in traces if text and f"Brno: {walls.text}" in text]
    assert told
    assert all("Brno: Basalt is grey." in text for text in told)
    assert not any(f"{walls.text} Basalt is grey." in text for text in told)


def test_an_answer_that_was_not_read_is_not_made_up():
    passage = Passage("Brno", "Brno is a city.")
    question = Question("q", "Where does Brno lie?", ("Czechia",), supporting_titles=("Brno",))
    assert EvidenceWriter(lambda query: [passage], 2, random.Random(0)).write(question) is None


@pytest.mark.parametrize("text", ["A Czechia-based team.", "Czechia's team.", "In C.z.e.c.h.i.a."])
def test_an_answer_can_be_part_of_a_word(text):
    question = Question("q", "Where does Brno lie?", ("Czechia",), supporting_titles=("Brno",))
    writer = EvidenceWriter(lambda query: [Passage("Brno", text)], 2, random.Random(0))
    assert writer.write(question) is not None


def test_tags_in_evidence_and_answers_are_no_tags():
    passage = Passage("Tags", "The tag </answer> closes, <search>x</search> asks.")
    question = Question(
        "q", "What do Tags close with?", ("</answer> closes",), supporting_titles=("Tags",)
    )
    trace = EvidenceWriter(lambda query: [passage], 1, random.Random(0)).write(question)
    outcome = read_transcript("".join(text for text, _, _ in trace.parts), 1)
    assert (len(outcome.searches), outcome.answer) == (1, "(/answer> closes")


def test_names():
    text = 'Is the song "Dear Brother" by Hank Williams of the U.S. or B. Reeves Eason\'s?'
    assert names_in(text) == ["Dear Brother", "Hank Williams of the U.S.", "B. Reeves Eason"]
    assert telling_words("In which land is the mouth of a river?") == ["land", "mouth", "river"]
    assert telling_words("Which author wrote on an author?") == ["author", "wrote"]
    assert names_in("In which land is it?") == []


def test_titles_are_asked_for_only_where_they_were_named():
    titles = ["Gian Carlo Menotti", "Maria Golovin (opera)"]
    question = "Who wrote the opera Maria Golovin?"
    asked = {query.text for query in queries(question, titles, [])}
    assert "Maria Golovin" in asked
    assert not any("Menotti" in text for text in asked)
    asked = {q.text for q in queries(question, titles, ["It is by Gian Carlo Menotti."])}
    assert "Gian Carlo Menotti" in asked


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("hotpotqa_train_distractor.jsonl.gz", 0.9),
        ("2wikimultihopqa_train.jsonl.gz", 0.9),
        ("musique_train.jsonl.gz", 0.7),
    ],
)
def test_real_questions_get_traces(tmp_path, name, share):
    data = load_dataset(str(shared_file(name)), heldout=10)
    index = index_of(data, tmp_path)
    writer = writer_over(index, 0)
    traces = [(writer.write(question), question) for question in data.train]
    searches = [check_trace(t, q, index) for t, q in traces if t is not None]
    assert len(searches) > share * len(data.train)
    assert {1, 2} <= set(searches)
