"""Questions from the files people have: official layouts, their errors, the held-out split."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agent_files import plain, write
from shared_data import shared_file

from forage.agent.data import describe, load_dataset
from forage.agent.types import Passage, Question
from forage.errors import UserError

HOTPOT = {
    "_id": "5a",
    "question": "Where is Brno?",
    "answer": "Czechia",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Brno", 0], ["Brno", 1]],
    "context": [["Brno", ["Brno is a city.", " It lies in Czechia."]], ["Oslo", ["Oslo."]]],
}
HUB_HOTPOT = HOTPOT | {
    "id": "5a",
    "supporting_facts": {"title": ["Brno", "Brno"], "sent_id": [0, 1]},
    "context": {"title": ["Brno", "Oslo"], "sentences": [HOTPOT["context"][0][1], ["Oslo."]]},
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where is Brno?",
    "answer": "Czechia",
    "answer_aliases": ["Czech Republic", "Czechia"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Brno", "paragraph_text": "Brno.", "is_supporting": True},
        {"idx": 1, "title": "Oslo", "paragraph_text": "Oslo.", "is_supporting": False},
    ],
}
OPEN = {"question": "where is brno", "answers": ["Czechia", "Czech Republic"]}


def load_one(tmp_path: Path, record: dict[str, Any]) -> Question:
    path = write(tmp_path / "one.jsonl", [record])
    (question,) = load_dataset(path, heldout=0, need_corpus=False).train
    return question


@pytest.mark.parametrize("record", [HOTPOT, HUB_HOTPOT], ids=["official", "hub"])
def test_hotpotqa(tmp_path: Path, record: dict[str, Any]) -> None:
    assert load_one(tmp_path, record) == Question(
        id="5a",
        text="Where is Brno?",
        answers=("Czechia",),
        paragraphs=(
            Passage("Brno", "Brno is a city. It lies in Czechia."),
            Passage("Oslo", "Oslo."),
        ),
        supporting_titles=("Brno",),
        supporting=(Passage("Brno", "Brno is a city. It lies in Czechia."),),
        kind="bridge",
        evidence=(Passage("Brno", "Brno is a city."), Passage("Brno", "It lies in Czechia.")),
    )


@pytest.mark.parametrize("number", [2, -1, "0", None])
def test_facts_that_name_no_sentence_are_no_evidence(tmp_path: Path, number: Any) -> None:
    facts = [["Brno", 1], ["Brno", number], ["Bern", 0]]
    question = load_one(tmp_path, HOTPOT | {"supporting_facts": facts})
    assert question.evidence == (Passage("Brno", "It lies in Czechia."),)
    assert question.supporting_titles == ("Brno", "Bern")


def test_musique(tmp_path: Path) -> None:
    question = load_one(tmp_path, MUSIQUE)
    assert (question.id, question.kind) == ("2hop__1_2", "2hop")
    assert question.answers == ("Czechia", "Czech Republic")
    assert question.supporting_titles == ("Brno",)
    assert question.paragraphs == (Passage("Brno", "Brno."), Passage("Oslo", "Oslo."))
    assert question.supporting == (Passage("Brno", "Brno."),)


def test_a_paragraph_beside_the_supporting_ones_may_have_their_title(tmp_path: Path) -> None:
    other = {"idx": 2, "title": "Brno", "paragraph_text": "Trams.", "is_supporting": False}
    question = load_one(tmp_path, MUSIQUE | {"paragraphs": [*MUSIQUE["paragraphs"], other]})
    assert Passage("Brno", "Trams.") in question.paragraphs
    assert question.supporting == (Passage("Brno", "Brno."),)


@pytest.mark.parametrize("name", ["answer", "answers", "golden_answers"])
@pytest.mark.parametrize("value", ["Czechia", ["Czechia", " Czechia "]])
def test_plain_questions(tmp_path: Path, name: str, value: Any) -> None:
    question = load_one(tmp_path, {"question": " where is brno ", name: value, "id": 7})
    assert question == Question("7", "where is brno", ("Czechia",))


def test_nq_open_brings_its_passages_and_an_id_made_of_its_text(tmp_path: Path) -> None:
    contexts = [{"title": "Brno", "text": "In Czechia.", "isgold": True, "hasanswer": True}]
    question = load_one(tmp_path, OPEN | {"ctxs": contexts})
    assert question.answers == ("Czechia", "Czech Republic")
    assert question.paragraphs == (Passage("Brno", "In Czechia."),)
    assert question.supporting_titles == ("Brno",)
    assert question.supporting == question.paragraphs
    assert question.id == load_one(tmp_path, OPEN).id != ""


REAL = [
    ("hotpotqa_train_distractor.jsonl.gz", 303, {"bridge", "comparison"}),
    ("2wikimultihopqa_train.jsonl.gz", 500, {"compositional", "inference"}),
    ("musique_train.jsonl.gz", 111, {"2hop", "4hop1"}),
    ("nq_open_oracle.jsonl.gz", 2655, {""}),
]


@pytest.mark.parametrize(("name", "count", "kinds"), REAL)
def test_real_files_load_whole_with_their_evidence_in_the_corpus(
    name: str, count: int, kinds: set[str]
) -> None:
    dataset = load_dataset(str(shared_file(name)), heldout=20)
    facts = describe(dataset)
    assert (facts.train + facts.heldout, facts.heldout) == (count, 20)
    assert kinds <= facts.kinds.keys()
    assert sum(map(sum, facts.kinds.values())) == count
    assert facts.evidence == 1.0
    assert facts.passages == len(set(dataset.corpus)) > count / 2
    assert all(q.text and all(q.answers) for q in (*dataset.train, *dataset.heldout))


def test_unanswerable_questions_are_left_out_and_counted() -> None:
    path = shared_file("musique_train.jsonl.gz")
    (note,) = load_dataset(str(path), heldout=20).notes
    assert note == f"{path}: 9 unanswerable questions left out"


def test_json_jsonl_gz_and_parquet_hold_the_same(tmp_path: Path) -> None:
    records = [HOTPOT, HOTPOT | {"_id": "5b", "question": "Where is Oslo?"}]
    hub = [
        HUB_HOTPOT | {"_id": record["_id"], "question": record["question"]} for record in records
    ]
    (tmp_path / "a.json").write_text(json.dumps(records))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(records).encode()))
    (tmp_path / "bom.json").write_text("\ufeff" + json.dumps(records), encoding="utf-8")
    write(tmp_path / "a.jsonl", records)
    write(tmp_path / "a.jsonl.gz", records)
    pq.write_table(pa.Table.from_pylist(hub), tmp_path / "a.parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    loaded = [load_dataset(str(path), heldout=1) for path in sorted(tmp_path.iterdir())]
    assert len({(data.train, data.heldout, data.corpus) for data in loaded}) == 1


def broken(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


GOOD = json.dumps(OPEN).encode() + b"\n"
ERRORS = [
    ("a.jsonl", GOOD + b'{"question": "x", ', r"a.jsonl:2: malformed JSON: .*column 19"),
    ("a.jsonl", GOOD + b"\n[1]", r"a.jsonl:3: expected an object, found a list"),
    ("a.jsonl", GOOD + b'{"question": "x\xff"}', r"a.jsonl:2: not UTF-8"),
    ("a.jsonl", GOOD + b'{"question": "x"}', r"a.jsonl:2: the question has no answer; fill one of"),
    ("a.jsonl", GOOD + b'{"question": "x", "answers": []}', r"a.jsonl:2: the question has no"),
    ("a.jsonl", GOOD + b'{"question": "x", "answers": [" "]}', r"a.jsonl:2: the question has no"),
    (
        "a.jsonl",
        GOOD + b'{"question": "x", "answer": 19}',
        r"a.jsonl:2: answer must be text, is 19",
    ),
    ("a.jsonl", GOOD + b'{"answer": "x"}', r"a.jsonl:2: question must be text, is None"),
    ("a.jsonl", GOOD + b'{"question": " ", "answer": "x"}', r"a.jsonl:2: the question is empty"),
    ("a.jsonl", GOOD + b'{"question": "\\ud800", "answer": "x"}', r"a.jsonl:2: .*surrogate"),
    ("a.jsonl", b'{"query": "x", "label": 1}', r"unknown layout: the fields are query, label; exp"),
    ("a.jsonl", b"\n \n", r"holds no records"),
    ("a.json", b"", r"holds no records"),
    ("a.json", b"[]", r"holds no records"),
    ("a.json", b'[{"question":\n "x"', r"a.json: malformed JSON: .*line 2 column"),
    ("a.json", GOOD, r"must hold a list of objects, holds one object; name .*\.jsonl"),
    ("a.json", GOOD + GOOD, r"malformed JSON: Extra data.*one object per line \.jsonl"),
    ("a.json", b'[{"question": "x", "answer": "y"}, 3]', r"a.json record 2: expected an object"),
    ("a.json", b"[" * 100_000, r"nested too deeply"),
    ("a.jsonl.gz", b"no gzip", r"no complete gzip file"),
    ("a.jsonl.gz", gzip.compress(GOOD * 99)[:-12], r"no complete gzip file"),
    ("a.parquet", b"no parquet", r"no readable Parquet file"),
    ("a.csv", b"question,answer", r"must end in one of .json, .jsonl, .parquet"),
]


@pytest.mark.parametrize(("name", "content", "message"), ERRORS)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(broken(tmp_path / name, content), heldout=0, need_corpus=False)
    assert "\n" not in str(caught.value)


BAD_FIELDS = [
    (HOTPOT, "context", "text", "context must be a list of pairs, or an object of the lists"),
    (HOTPOT, "context", [["Brno", "not a list"]], "context must list sentences"),
    (HOTPOT, "context", [["Brno", [3]]], "a sentence of context must be text, is 3"),
    (HOTPOT, "supporting_facts", None, "supporting_facts must be a list of pairs"),
    (HUB_HOTPOT, "context", {"title": ["a"], "sentences": []}, "context must be a list of pairs"),
    (MUSIQUE, "paragraphs", "text", "paragraphs must be a list of objects, is 'text'"),
    (MUSIQUE, "paragraphs", [{"title": "a"}], "paragraph_text must be text, is None"),
    (OPEN, "ctxs", ["text"], "ctxs must be a list of objects"),
    (OPEN, "id", ["x"], "id must be text"),
]


@pytest.mark.parametrize(("record", "name", "value", "message"), BAD_FIELDS)
def test_a_field_of_another_shape_is_named_with_its_line(
    tmp_path: Path, record: dict[str, Any], name: str, value: Any, message: str
) -> None:
    other = record | {"question": "another", name: value}
    path = write(tmp_path / "a.jsonl", [record, other])
    with pytest.raises(UserError, match=rf"a.jsonl:2: .*({message})"):
        load_dataset(path, heldout=0, need_corpus=False)


def test_a_field_that_later_records_lack_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [HOTPOT, OPEN])
    with pytest.raises(UserError, match=r"a.jsonl:2: context must be a list of pairs.*is None"):
        load_dataset(path, heldout=0)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*gone.jsonl"):
        load_dataset(str(tmp_path / "gone.jsonl"), heldout=0)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UserError, match=r"can't read .*folder.jsonl.*directory"):
        load_dataset(str(tmp_path / "folder.jsonl"), heldout=0)


def test_a_hub_data_set_needs_its_library_and_a_name() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(
            UserError, match=r"'hf:x' needs datasets: pip install 'forage-rl\[hub\]'"
        ):
            load_dataset("hf:x", heldout=0)
    else:
        with pytest.raises(UserError, match="must look like hf:NAME"):
            load_dataset("hf:", heldout=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heldout": 11}, "can't hold out 11 questions: .* has 10 different ones"),
        ({"heldout": 10}, "holding out 10 questions leaves none of .* to train on"),
        ({"heldout": -1}, "-1 held-out"),
        ({"heldout": 1, "limit": 0}, "0 training questions can't be had"),
        ({"heldout": 1}, "the corpus is empty: the questions of 'a.jsonl' bring no paragraphs"),
    ],
)
def test_what_can_not_be_satisfied_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "a.jsonl", plain(10))
    with pytest.raises(UserError, match=message):
        load_dataset(path, **options)


def test_a_file_of_unanswerable_questions_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [MUSIQUE | {"answerable": False}])
    with pytest.raises(UserError, match="holds no question that can be answered"):
        load_dataset(path, heldout=0)


def test_the_corpus_is_that_of_the_selected_questions(tmp_path: Path) -> None:
    records = [
        HOTPOT
        | {"_id": str(n), "question": f"Where is {n}?", "context": [[f"t{n}", ["a"]], ["b", ["b"]]]}
        for n in range(10)
    ]
    path = write(tmp_path / "a.jsonl", records)
    dataset = load_dataset(path, heldout=2, limit=3)
    asked = {q.text[len("Where is ") : -1] for q in (*dataset.train, *dataset.heldout)}
    assert {p.title for p in dataset.corpus} == {f"t{n}" for n in asked} | {"b"}
    assert len(dataset.corpus) == 6


def test_atlas_has_its_own_split_and_corpus(tmp_path: Path) -> None:
    dataset = load_dataset("atlas", heldout=100, limit=50)
    facts = describe(dataset)
    assert (facts.name, facts.train, facts.heldout) == ("atlas", 50, 100)
    assert set(facts.kinds) == {"1hop", "2hop"}
    assert facts.passages > 1000
    assert facts.examples == dataset.train[:3]
    with pytest.raises(UserError, match="brings its own held-out questions"):
        load_dataset("atlas", heldout=10, heldout_data="dev.jsonl")
    with pytest.raises(UserError, match="1000000"):
        load_dataset("atlas", heldout=1_000_000)
