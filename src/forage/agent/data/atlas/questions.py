"""Questions over the facts, and the split by country."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from forage.agent.data.atlas.facts import ATTRIBUTES, Country, load_countries, passages
from forage.agent.types import DataSet, Question

HELDOUT_COUNTRIES = 50
ONE_HOP_SHARE = 0.2
"""Of the held-out questions; the rest need two searches."""


def load_atlas(heldout: int = 200, *, salt: str = "held out") -> DataSet:
    """The data set, its held-out questions about countries that training never asks about.

    Args:
        heldout: number of held-out questions.
        salt: names the split; another salt holds out other countries.

    Raises:
        ValueError: if the held-out countries give fewer than `heldout` questions.
    """
    countries = load_countries()
    by_hash = sorted(countries, key=lambda country: _digest(salt, country.name))
    held = _questions(by_hash[:HELDOUT_COUNTRIES], salt)
    one_hop = round(heldout * ONE_HOP_SHARE)
    chosen = [question for question in held if question.kind == "1hop"][:one_hop]
    chosen += [question for question in held if question.kind == "2hop"][: heldout - one_hop]
    if len(chosen) < heldout:
        raise ValueError(f"heldout is {heldout}, but atlas can hold out {len(chosen)} of that mix")
    trained = _for_training(_questions(by_hash[HELDOUT_COUNTRIES:], salt))
    return DataSet("atlas", tuple(trained), tuple(chosen), tuple(passages(countries)))


def city_question(city: str) -> str:
    """A one-hop question."""
    return f"In which country is the city {city}?"


def attribute_question(attribute: str, country: str) -> str:
    """A one-hop question."""
    return f"What is the {attribute} of {country}?"


def two_hop_question(attribute: str, city: str) -> str:
    """A question that takes the city's country first."""
    return f"What is the {attribute} of the country of the city {city}?"


def _questions(countries: list[Country], salt: str) -> list[Question]:
    """Every question about `countries`, in the order of their hashes."""
    questions = [question for country in countries for question in _about(country)]
    return sorted(questions, key=lambda question: _digest(salt, question.text))


def _for_training(questions: list[Question]) -> list[Question]:
    """As many questions with two hops as with one: a policy must also learn when to stop."""
    one_hop = sum(question.kind == "1hop" for question in questions)
    two_hop = [question for question in questions if question.kind == "2hop"][:one_hop]
    kept = {question.id for question in two_hop}
    return [question for question in questions if question.kind == "1hop" or question.id in kept]


def _about(country: Country) -> Iterator[Question]:
    """Every question about one country; none whose answer is the city that it names."""
    for city in country.cities:
        yield _question(city_question(city), country.name, "1hop")
    for attribute, value in zip(ATTRIBUTES, country.values, strict=True):
        if value != country.name:
            yield _question(attribute_question(attribute, country.name), value, "1hop")
        for city in country.cities:
            if value != city:
                yield _question(two_hop_question(attribute, city), value, "2hop")


def _question(text: str, answer: str, kind: str) -> Question:
    return Question(f"atlas-{_digest('id', text)[:16]}", text, (answer,), kind=kind)


def _digest(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\n{text}".encode()).hexdigest()
