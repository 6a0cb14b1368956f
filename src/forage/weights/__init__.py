"""Bit-exact weight deltas: encoded, published through the object cache, fetched and applied.

`publish.Publisher` runs in the trainer, `subscribe.Subscriber` in each rollout executor. The
package itself imports no torch, so that a driver without it can read reports.
"""

from forage.weights.report import PublishReport

__all__ = ["PublishReport"]
