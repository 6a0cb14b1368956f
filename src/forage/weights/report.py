"""What a publication reports. It crosses to the driver, so this module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """One publication.

    Attributes:
        version: the weight version that exists now.
        published_bytes: size of the tensors or deltas that consumers of the version before read.
        changed_fraction: share of the policy's elements whose bits changed; 1 for a whole one.
        whole: every tensor was published whole.
        seconds: wall time.
    """

    version: int
    published_bytes: int
    changed_fraction: float
    whole: bool
    seconds: float
