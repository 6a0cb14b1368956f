"""Written examples of searching, over made-up facts: what a model is warm-started on.

The facts are invented anew all the time, so that the only way to a right answer is to read it.
The examples are imperfect on purpose, and leave reinforcement learning something to find: some
guess without searching, most two-hop ones stop after the first search.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from forage.agent.data.atlas.facts import ATTRIBUTES, Country, attribute_sentence, city_sentence
from forage.agent.data.atlas.questions import (
    attribute_question,
    city_question,
    two_hop_question,
)
from forage.agent.traces import Draft, Search, Trace

KINDS = {"2hop": 0.6, "city": 0.25, "attribute": 0.15}
"""Shares of the kinds of question: two hops; the country of a city; a country's attribute."""

GUESS_SHARE = 0.2
"""Of the examples: answer without a search."""

SECOND_SEARCH_SHARE = 0.2
"""Of the two-hop examples that search: search a second time."""

WRONG_QUERY_SHARE = 0.05
"""Of the queries: ask about something else."""


def imagine(countries: Sequence[Country], rng: random.Random) -> list[Country]:
    """The same names with other facts: cities dealt anew, values of each attribute permuted."""
    cities = [city for country in countries for city in country.cities]
    rng.shuffle(cities)
    columns = [list(column) for column in zip(*(c.values for c in countries), strict=True)]
    for column in columns:
        rng.shuffle(column)
    dealt = iter(cities)
    return [
        Country(country.name, values, tuple(next(dealt) for _ in country.cities))
        for country, values in zip(countries, zip(*columns, strict=True), strict=True)
    ]


class TraceWriter:
    """Writes examples about the facts of one world, whose passages `search` finds."""

    def __init__(self, countries: Sequence[Country], search: Search, rng: random.Random) -> None:
        """`rng` draws everything that is random about the examples."""
        self._countries = countries
        self._country_of = {city: c.name for c in countries for city in c.cities}
        self._values = {c.name: c.values for c in countries}
        self._search = search
        self._rng = rng

    def write(self) -> Trace:
        """One example about a random fact."""
        city, country = self._rng.choice(list(self._country_of.items()))
        column = self._rng.randrange(len(ATTRIBUTES))
        (kind,) = self._rng.choices(list(KINDS), list(KINDS.values()))
        if kind == "2hop":
            return self._two_hops(Draft(two_hop_question(ATTRIBUTES[column], city)), city, column)
        if kind == "city":
            return self._one_hop_city(Draft(city_question(city)), city)
        draft = Draft(attribute_question(ATTRIBUTES[column], country))
        return self._one_hop_attribute(draft, column, country)

    def _two_hops(self, draft: Draft, city: str, column: int) -> Trace:
        attribute = ATTRIBUTES[column]
        if self._rng.random() < GUESS_SHARE:
            return _guess(draft, self._rng.choice(self._countries).values[column])
        country, evidence = self._find_country(draft, city, f", then its {attribute}")
        if self._rng.random() >= SECOND_SEARCH_SHARE:
            return draft.answer(evidence, country)
        hint = f"{evidence} Find the {attribute} of {country}."
        value, evidence = self._find_value(draft, hint, column, country)
        return draft.answer(evidence, value)

    def _one_hop_city(self, draft: Draft, city: str) -> Trace:
        if self._rng.random() < GUESS_SHARE:
            return _guess(draft, self._rng.choice(self._countries).name)
        country, evidence = self._find_country(draft, city)
        return draft.answer(evidence, country)

    def _one_hop_attribute(self, draft: Draft, column: int, country: str) -> Trace:
        if self._rng.random() < GUESS_SHARE:
            return _guess(draft, self._rng.choice(self._countries).values[column])
        hint = f"Find the {ATTRIBUTES[column]} of {country}."
        value, evidence = self._find_value(draft, hint, column, country)
        return draft.answer(evidence, value)

    def _find_country(self, draft: Draft, city: str, plan: str = "") -> tuple[str, str]:
        """Search for a city, perhaps for another one; returns its country and the evidence."""
        asked = self._rng.choice(list(self._country_of)) if self._slips() else city
        query = f"city {asked}"
        draft.ask(f"Find the country of {city}{plan}.", query, self._search(query))
        return self._country_of[asked], city_sentence(asked, self._country_of[asked])

    def _find_value(self, draft: Draft, hint: str, column: int, country: str) -> tuple[str, str]:
        """Search for a country's attribute, perhaps another country's."""
        attribute = ATTRIBUTES[column]
        asked = self._rng.choice(self._countries).name if self._slips() else country
        query = f"{attribute} of {asked}"
        draft.ask(hint, query, self._search(query))
        value = self._values[asked][column]
        return value, attribute_sentence(attribute, asked, value)

    def _slips(self) -> bool:
        return self._rng.random() < WRONG_QUERY_SHARE


def _guess(draft: Draft, answer: str) -> Trace:
    return draft.answer(f"It may be {answer}.", answer)
