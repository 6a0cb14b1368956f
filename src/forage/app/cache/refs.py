"""What processes tell each other about cached values: names, versions and places, never data.

Imports nothing heavy: every process holds these, whatever it computes with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Ref:
    """Names a value in the object cache of `app`.

    `version` is the newest that the holder knew of when it got the ref. It pins nothing: reads
    give the newest version, so a ref stays good however often its object is written.
    """

    key: str
    version: int
    app: str


@dataclass(frozen=True, slots=True)
class Update:
    """What a reader has not seen of an object, up to `version`.

    With `whole`, the reader starts anew from `base`; otherwise `base` is None and `parts` (oldest
    first) follow what the reader already has. (`whole` tells a base that is None from no base.)
    """

    version: int
    base: Any
    parts: tuple[Any, ...]
    whole: bool = False


class Tier(StrEnum):
    """Where a file lies."""

    SHARED = "shared"  # shared memory
    DISK = "disk"


class Blob(NamedTuple):
    """An immutable file of the cache: the place never names another content.

    `name` is `writer/number`, relative to the tier's directory; `nbytes` is the file's size.
    """

    tier: Tier
    name: str
    nbytes: int

    @property
    def writer(self) -> str:
        """The process that wrote it."""
        return self.name.partition("/")[0]


class Snapshot(NamedTuple):
    """One consistent answer of the directory: the files that make up an `Update`."""

    version: int
    base: Blob | None
    parts: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A large argument or result on its way: its key in the directory and where it was put."""

    key: str
    blob: Blob
