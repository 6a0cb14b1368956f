"""Atlas: one- and two-hop questions on countries and cities that need no download.

Every fact is one sentence, so that a two-hop question ("the currency of the country of the city
X") takes two searches. The facts come from GeoNames (CC BY 4.0, see NOTICE); the table is
written by `scripts/make_atlas.py`. A country is either trained on or held out, with all its
cities.
"""

from __future__ import annotations

from forage.agent.data.atlas.facts import ATTRIBUTES, Country, load_countries, passages
from forage.agent.data.atlas.questions import load_atlas

__all__ = ["ATTRIBUTES", "Country", "load_atlas", "load_countries", "passages"]
