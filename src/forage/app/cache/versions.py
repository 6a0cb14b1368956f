"""One object's history: a base, the parts after it, and which of them a reader lacks."""

from __future__ import annotations

from collections.abc import Iterator

from forage.app.cache.refs import Blob


class File:
    """A file that belongs to an object; spilling changes where it lies, never what it holds."""

    __slots__ = ("blob", "key")

    def __init__(self, key: str, blob: Blob) -> None:
        self.key = key
        self.blob = blob


class History:
    """The versions of one live object.

    Part i (0-based) of n made version `version - n + 1 + i`. Parts up to `base_version` are in
    the base already; they stay for readers who have an older one, until the next rebase.
    Every change returns the files that are no longer needed.
    """

    def __init__(self, version: int, base: File) -> None:
        self.version = version
        self.base_version = version
        self.base = base
        self.parts: list[File] = []

    def append(self, part: File) -> None:
        """Add a part: version + 1."""
        self.parts.append(part)
        self.version += 1

    def replace(self, base: File) -> list[File]:
        """Start anew from a base: version + 1, no parts."""
        unneeded = [self.base, *self.parts]
        self.version += 1
        self.base_version = self.version
        self.base, self.parts = base, []
        return unneeded

    def rebase(self, base: File) -> list[File]:
        """Take a base that holds the newest version whole; the version stays.

        Parts since the previous base are kept, older ones go.
        """
        unneeded = [self.base]
        if self.base_version < self.version:
            recent = self.version - self.base_version
            unneeded += self.parts[:-recent]
            self.parts = self.parts[-recent:]
        self.base, self.base_version = base, self.version
        return unneeded

    def unseen(self, since: int) -> tuple[File | None, list[File]]:
        """Return the base (None if not needed) and the parts that a reader at `since` lacks."""
        lacking = self.version - since
        if lacking <= len(self.parts):
            return None, self.parts[len(self.parts) - lacking :]
        return self.base, self.parts[len(self.parts) - self.version + self.base_version :]

    def files(self) -> Iterator[File]:
        """Yield all files, old parts included."""
        yield self.base
        yield from self.parts
