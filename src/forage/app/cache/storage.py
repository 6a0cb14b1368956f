"""What the cache needs of the medium that values lie in: files here, Ray's store on a cluster."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from forage.app.cache.refs import Blob, Tier
from forage.app.cache.serial import Frame, Payload


class Storage(Protocol):
    """One process's access. `app` names the app, `writer` this process among the app's."""

    @property
    def app(self) -> str: ...

    @property
    def writer(self) -> str: ...

    @property
    def budget(self) -> int:
        """Bytes that shared memory may hold; what is larger goes to disk at once."""

    def write(self, payload: Payload, tier: Tier) -> Blob:
        """Write a payload under a new name; raises `OSError` and leaves nothing if it can't."""

    def read(self, blob: Blob) -> Frame:
        """A value's content, without a copy; raises `FileNotFoundError` if it isn't there."""

    def remove(self, blob: Blob) -> None:
        """Remove a value if it is there."""

    def sweep(self, writer: str, known: Collection[str]) -> None:
        """Remove what a dead writer left: what is unfinished, and names that aren't `known`."""

    def copy_to_disk(self, blob: Blob) -> Blob:
        """Copy a value from shared memory to disk under the same name; raises `OSError`."""

    def exists(self, blob: Blob) -> bool:
        """Whether a value is there."""

    def where(self, blob: Blob) -> str:
        """Where a value lies, for messages."""

    def vanished(self) -> str:
        """The place that something else has removed, empty where none has; for messages."""

    def fill(self, tier: Tier, used: int, budget: int) -> str:
        """How full a tier is, for messages."""

    def clear(self) -> None:
        """Remove everything, of all writers."""


class Places(Protocol):
    """Where an app's values lie; all of its processes get the same, by pickle."""

    @property
    def app(self) -> str: ...

    @property
    def budget(self) -> int: ...

    @property
    def folders(self) -> tuple[Path, ...]:
        """What has to be removed if nobody is left to call `Storage.clear`."""

    def open(self, writer: str) -> Storage:
        """The access of a process with a name that is unique among the app's, ever."""
