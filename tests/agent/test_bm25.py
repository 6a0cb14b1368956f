"""The index: its scores, its order, its life on disk."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_file, vectors

from forage.agent.retrieval import open_retriever
from forage.agent.retrieval.bm25 import BM25Index, build_index
from forage.agent.retrieval.words import query_words, words_of
from forage.agent.types import Passage
from forage.errors import UserError

CITIES = [
    Passage("Brno", "Brno is a city in Czechia."),
    Passage("Oslo", "Oslo is a city in Norway."),
    Passage("Czechia", "The currency of Czechia is the koruna."),
    Passage("Röntgen", "Wilhelm Röntgen found X-rays in 1895."),
    Passage("Oslo", "Oslo is a city in Norway."),
]


@pytest.fixture
def index(tmp_path: Path) -> BM25Index:
    return BM25Index.open(build_index(CITIES, tmp_path))


def test_scores_agree_with_other_engines(tmp_path: Path) -> None:
    """Where the variant is Lucene's; some engines multiply by k1 + 1, which changes no ranking."""
    compared = 0
    for data in vectors("bm25_small.json"):
        if not str(data.get("variant")).startswith("lucene") or "doc_tokens" not in data:
            continue
        corpus = [Passage("", " ".join(tokens)) for tokens in data["doc_tokens"]]
        for case in data["cases"]:
            k1 = case.get("k1", data["params"].get("k1"))
            b = case.get("b", data["params"].get("b"))
            found = BM25Index.open(build_index(corpus, tmp_path, k1=k1, b=b))
            scores = found.scores(" ".join(case["query_tokens"]))
            scores *= k1 + 1 if "[k1+1]" in data["variant"] else 1
            expected = [score or 0.0 for score in case["scores"]]
            np.testing.assert_allclose(scores, expected, rtol=0, atol=data["tolerance"])
            compared += 1
    assert compared >= 15


WORDS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel"]), max_size=6).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6), WORDS, st.integers(0, 7))
def test_search_is_the_formula_in_double_precision(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], query: str, k: int
) -> None:
    documents = [words_of(f"{title} {text}") for title, text in texts]
    corpus = [Passage(title, f"{text} p{number}") for number, (title, text) in enumerate(texts)]
    for number, document in enumerate(documents):
        document.append(f"p{number}")
    index = BM25Index.open(build_index(corpus, tmp_path_factory.mktemp("index")))
    mean = sum(map(len, documents)) / len(documents)
    expected = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query.split():
            frequency = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
            norm = 0.9 * (1 - 0.4 + 0.4 * len(document) / mean)
            score += idf * counts[word] / (counts[word] + norm)
        expected.append(score)
    scores = index.scores(query)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    order = sorted(range(len(corpus)), key=lambda at: (-scores[at], at))
    assert index.search(query, k) == [corpus[at] for at in order if scores[at] > 0][:k]


def test_equal_scores_keep_the_order_of_the_corpus(index: BM25Index) -> None:
    assert index.search("oslo", 1) == [CITIES[1]]
    assert index.search("oslo norway", 5)[:2] == [CITIES[1], CITIES[4]]


def test_case_accents_and_punctuation_do_not_matter(index: BM25Index) -> None:
    assert index.search("RONTGEN's x-ray?", 1) == [CITIES[3]]
    assert words_of("Röntgen's X-rays_(1895) 東京") == ["rontgen", "s", "x", "rays", "1895", "東京"]


def test_function_words_count_only_alone(index: BM25Index) -> None:
    assert query_words("What is the currency of it?") == ["what", "currency"]
    assert query_words("The Is") == ["the", "is"]
    assert index.search("the", 3) == [CITIES[2]]


@pytest.mark.parametrize("query", ["", "  ", "?!", "zebra", "\x00", "\udc80"])
def test_a_query_that_shares_no_word_finds_nothing(index: BM25Index, query: str) -> None:
    assert index.search(query, 3) == []


def test_real_questions_find_their_evidence(tmp_path: Path) -> None:
    with gzip.open(shared_file("2wikimultihopqa_corpus6119.jsonl.gz")) as file:
        corpus = [Passage(d["title"], d["text"]) for d in map(json.loads, file)]
    with gzip.open(shared_file("2wikimultihopqa_corpus6119_questions.jsonl.gz")) as file:
        questions = [json.loads(line) for line in file]
    index = BM25Index.open(build_index(corpus, tmp_path))
    assert len(index) == len(corpus) == 6119
    hits = [
        any(passage.title in q["gold_titles"] for passage in index.search(q["question"], 3))
        for q in questions
    ]
    assert sum(hits) / len(hits) > 0.9


def test_the_folder_is_named_by_content_and_built_once(tmp_path: Path) -> None:
    first = build_index(CITIES, tmp_path)
    built = (first / "index.json").stat().st_mtime_ns
    assert build_index(list(CITIES), tmp_path) == first
    assert (first / "index.json").stat().st_mtime_ns == built
    others = [
        build_index(CITIES[:-1], tmp_path),
        build_index(CITIES, tmp_path, k1=1.2),
        build_index([Passage("Brn", "o" + CITIES[0].text[3:]), *CITIES[1:]], tmp_path),
    ]
    assert len({first, *others}) == 4
    assert sorted(tmp_path.iterdir()) == sorted([first, *others])


BUILD = (
    "import sys; from forage.agent.retrieval.bm25 import build_index; "
    "from forage.agent.types import Passage; "
    "print(build_index([Passage(f't{i}', f'word{i} and') for i in range(3000)], sys.argv[1]))"
)


def test_processes_that_build_at_once_end_with_one_whole_index(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert [str(path) for path in tmp_path.iterdir()] == list(folders)
    assert [p.title for p in open_retriever(folders.pop()).search("word2999", 2)] == ["t2999"]


def test_threads_search_one_index(index: BM25Index) -> None:
    queries = ["oslo", "currency of czechia", "x rays", "city"] * 50
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: index.search(query, 2), queries))
    assert found == [index.search(query, 2) for query in queries]


def test_an_open_index_maps_its_files(index: BM25Index, tmp_path: Path) -> None:
    (folder,) = tmp_path.iterdir()
    mapped = Path("/proc/self/maps")
    if not mapped.exists():
        pytest.skip("needs /proc")
    index.search("oslo", 1)
    maps = mapped.read_text()
    names = ("data.csc.index.npy", "indices.csc.index.npy", "keys.npy", "passages.bin")
    assert all(str(folder / name) in maps for name in names)


def test_texts_survive_whole(tmp_path: Path) -> None:
    passages = [Passage("", "word"), Passage("東京 \u2028", "naïve\n\n\x00 word"), Passage("t", "")]
    index = BM25Index.open(build_index(passages, tmp_path))
    assert index.search("word", 3) == passages[:2]
    assert index.search("t", 1) == [passages[2]]


@pytest.mark.parametrize(
    ("corpus", "message"),
    [([], "the corpus is empty"), ([Passage("", "?!")], "none of the 1 passages.*holds a word")],
)
def test_a_corpus_without_words_is_refused(
    tmp_path: Path, corpus: list[Passage], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build_index(corpus, tmp_path / "indexes")
    assert not list(tmp_path.glob("indexes/*"))


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no BM25 index in .*index.json is missing"):
        open_retriever(str(tmp_path))
    folder = build_index(CITIES, tmp_path)
    with (folder / "passages.bin").open("ab") as blob:
        blob.write(b"x")
    with pytest.raises(UserError, match="is damaged; delete the folder"):
        BM25Index.open(folder)
    facts = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(UserError, match="has format 99, this version reads 1"):
        BM25Index.open(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(UserError, match="can't read the BM25 index"):
        BM25Index.open(folder)
    (folder / "index.json").write_text("[]")
    with pytest.raises(UserError, match="can't read the BM25 index"):
        BM25Index.open(folder)
