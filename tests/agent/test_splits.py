"""Which questions are held out, trained on, and under which ids."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from agent_files import plain, write
from hypothesis import given, settings
from hypothesis import strategies as st

from forage.agent.data import load_dataset
from forage.agent.types import DataSet


def split_of(dataset: DataSet) -> tuple[set[str], set[str]]:
    return {q.text for q in dataset.train}, {q.text for q in dataset.heldout}


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 29))
def test_the_split_follows_content_not_order(
    tmp_path_factory: pytest.TempPathFactory, shuffler: random.Random, heldout: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    records = plain(30)
    first = load_dataset(write(folder / "a.jsonl", records), heldout=heldout, need_corpus=False)
    shuffler.shuffle(records)
    second = load_dataset(write(folder / "b.jsonl", records), heldout=heldout, need_corpus=False)
    assert split_of(first) == split_of(second)
    assert first.heldout == second.heldout
    train, held = split_of(first)
    assert not train & held
    assert len(held) == heldout


def test_larger_splits_and_limits_contain_smaller_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", plain(60))

    def load(heldout: int, limit: int | None = None) -> tuple[set[str], set[str]]:
        return split_of(load_dataset(path, heldout=heldout, limit=limit, need_corpus=False))

    assert load(5)[1] < load(20)[1]
    assert load(5, limit=10)[0] < load(5, limit=30)[0] < load(5)[0]
    assert load(5, limit=10)[1] == load(5)[1]
    assert load(20, limit=10)[0] == load(5, limit=10)[0]


def test_a_question_asked_twice_is_never_on_both_sides(tmp_path: Path) -> None:
    records = plain(20)
    twins = [{"question": f"what is  THE {n}", "answer": "other"} for n in range(20)]
    path = write(tmp_path / "a.jsonl", records + twins)
    dataset = load_dataset(path, heldout=8, need_corpus=False)
    assert (len(dataset.heldout), len(dataset.train)) == (8, 24)
    numbers = [{"".join(filter(str.isdigit, text)) for text in side} for side in split_of(dataset)]
    assert not numbers[0] & numbers[1]
    assert dataset.notes == (f"{path}: 8 questions not trained on, as held-out ones ask the same",)


def test_held_out_questions_of_another_file(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", plain(10))
    dev = write(tmp_path / "dev.jsonl", plain(12)[7:])
    dataset = load_dataset(path, heldout=5, heldout_data=dev, need_corpus=False)
    assert split_of(dataset)[1] == {record["question"] for record in plain(12)[7:]}
    assert split_of(dataset)[0] == {record["question"] for record in plain(7)}
    assert dataset.notes == (f"{path}: 3 questions not trained on, as held-out ones ask the same",)
    fewer = load_dataset(path, heldout=2, heldout_data=dev, need_corpus=False)
    assert split_of(fewer)[1] < split_of(dataset)[1]


def test_ids_are_made_distinct_and_repeated_records_left_out(tmp_path: Path) -> None:
    records = [record | {"id": "x"} for record in plain(3)]
    path = write(tmp_path / "a.jsonl", [*records, records[1], plain(4)[3] | {"id": "x-2"}])
    dataset = load_dataset(path, heldout=0, need_corpus=False)
    assert [q.id for q in dataset.train] == ["x", "x-2", "x-3", "x-2-2"]
    assert dataset.notes == (f"{path}: 1 repeated records left out",)
