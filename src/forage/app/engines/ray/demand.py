"""Makes what sessions lack visible to the cluster's autoscaler, as placement groups that wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ray.util import placement_group, remove_placement_group

from forage.app.engines.base import Demand
from forage.app.engines.ray.cluster import amounts

_MOST_AT_ONCE = 32  # placement groups; the cluster grows in steps
_CALM_S = 1.0  # between two changes


class DemandBoard:
    """The demand of one app. Ray forgets it with the app's driver."""

    def __init__(self) -> None:
        self._shown: list[Demand] = []
        self._groups: list[Any] = []
        self._since = 0.0

    def show(self, demands: Sequence[Demand]) -> None:
        """Show this instead of what was shown before."""
        changed = list(demands) != self._shown
        if demands and changed and time.monotonic() < self._since + _CALM_S:
            return
        # A group that got its resources must not keep them: they are for the executors.
        if not changed and not any(group.wait(0) for group in self._groups):
            return
        self._withdraw()
        self._since = time.monotonic()
        self._shown = list(demands)
        bundles = [bundle for demand in demands for bundle in _bundles(demand)]
        self._groups = [placement_group(each, "PACK") for each in bundles[:_MOST_AT_ONCE]]

    def _withdraw(self) -> None:
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []


def _bundles(demand: Demand) -> list[list[dict[str, float]]]:
    """The bundles of each group to make."""
    one = amounts(demand.need)
    if demand.together:
        return [[one] * demand.count]
    return [[one]] * min(demand.count, _MOST_AT_ONCE)
