"""The built-in data set: its split, its answers, its made-up twins."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from forage.agent.data.atlas import ATTRIBUTES, load_atlas, load_countries, passages
from forage.agent.data.atlas.traces import TraceWriter, imagine
from forage.agent.protocol import read_transcript
from forage.agent.retrieval.bm25 import BM25Index, build_index


@pytest.fixture(scope="module")
def countries():
    return load_countries()


def named_in(question, countries):
    """The countries that a question is about."""
    return {
        country.name
        for country in countries
        for name in (country.name, *country.cities)
        if question.text.removesuffix("?").endswith((f"city {name}", f"of {name}"))
    }


def test_every_answer_follows_from_the_passages(countries):
    sentences = {passage.text for passage in passages(countries)}
    country_of = {city: country for country in countries for city in country.cities}
    for question in load_atlas().train + load_atlas().heldout:
        (answer,) = question.answers
        if question.text.startswith("In which country"):
            city = question.text.removeprefix("In which country is the city ").removesuffix("?")
            assert f"{city} is a city in {answer}." in sentences
            continue
        attribute = next(a for a in ATTRIBUTES if question.text.startswith(f"What is the {a} of"))
        about = question.text.removesuffix("?").split(f"What is the {attribute} of ")[1]
        if question.kind == "2hop":
            city = about.removeprefix("the country of the city ")
            about = country_of[city].name
            assert f"{city} is a city in {about}." in sentences
        assert f"The {attribute} of {about} is {answer}." in sentences


def test_training_never_asks_about_a_held_out_country(countries):
    data = load_atlas()
    held = set().union(*(named_in(question, countries) for question in data.heldout))
    trained = set().union(*(named_in(question, countries) for question in data.train))
    assert held
    assert not held & trained


def test_the_split_is_fixed_by_content(countries):
    assert load_atlas() == load_atlas()
    assert load_atlas(100).heldout != load_atlas(salt="another").heldout[:100]
    assert {q.id for q in load_atlas(100).heldout} <= {q.id for q in load_atlas(200).heldout}


def test_one_held_out_question_in_five_takes_one_search():
    assert Counter(question.kind for question in load_atlas().heldout) == {"1hop": 40, "2hop": 160}


def test_more_held_out_questions_than_there_are():
    with pytest.raises(ValueError, match="heldout is 100000, but atlas can hold out"):
        load_atlas(100_000)


def test_made_up_facts_keep_every_name_and_move_the_facts(countries):
    world = imagine(countries, random.Random(0))
    assert [country.name for country in world] == [country.name for country in countries]
    for column in range(len(ATTRIBUTES)):
        ours = Counter(country.values[column] for country in world)
        assert ours == Counter(country.values[column] for country in countries)
    cities = [sorted(city for c in w for city in c.cities) for w in (world, countries)]
    assert cities[0] == cities[1]
    kept = sum(a.values[0] == b.values[0] for a, b in zip(world, countries, strict=True))
    assert kept < len(countries) / 10


def test_traces_read_what_they_answer(countries, tmp_path):
    world = imagine(countries, random.Random(1))
    index = BM25Index.open(build_index(passages(world), tmp_path))
    writer = TraceWriter(world, lambda query: index.search(query, 2), random.Random(2))
    searches = Counter()
    for _ in range(400):
        trace = writer.write()
        text = "".join(part for part, _, _ in trace.parts)
        outcome = read_transcript(text, max_searches=2)
        assert outcome.rule == "answer"
        searches[len(outcome.searches)] += 1
        if outcome.searches:
            read = "".join(part for part, _, own in trace.parts if not own)
            assert outcome.answer in read
    assert searches[0] < 120
    assert searches[1] > 200
    assert 10 < searches[2] < 100
