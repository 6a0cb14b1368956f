"""The table of facts, and each fact as a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from forage.agent.types import Passage

ATTRIBUTES = ("capital", "currency", "continent", "calling code", "internet domain")


@dataclass(frozen=True, slots=True)
class Country:
    """A country, the value of each of `ATTRIBUTES` (same order), and some of its cities."""

    name: str
    values: tuple[str, ...]
    cities: tuple[str, ...]


def load_countries() -> list[Country]:
    """All countries of the table, by name."""
    table = files("forage.agent.data.atlas").joinpath("facts.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in table.splitlines())
    split = 1 + len(ATTRIBUTES)
    return [Country(row[0], tuple(row[1:split]), tuple(row[split:])) for row in rows]


def city_sentence(city: str, country: str) -> str:
    """`Brno is a city in Czechia.`"""
    return f"{city} is a city in {country}."


def attribute_sentence(attribute: str, country: str, value: str) -> str:
    """`The currency of Czechia is Koruna.`"""
    return f"The {attribute} of {country} is {value}."


def passages(countries: Iterable[Country]) -> list[Passage]:
    """One passage a fact, titled by what it is about."""
    found = []
    for country in countries:
        for attribute, value in zip(ATTRIBUTES, country.values, strict=True):
            found.append(Passage(country.name, attribute_sentence(attribute, country.name, value)))
        for city in country.cities:
            found.append(Passage(city, city_sentence(city, country.name)))
    return found
