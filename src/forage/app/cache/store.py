"""Immutable files: how values lie in shared memory and on disk.

A writer writes under a temporary name and renames, so that a file which has its name is whole,
and a process killed in mid-write leaves only a temporary file for `sweep`. Every writer has a
directory of its own, and a name is used once: whoever is told of a file finds either that
content or no file, never another content. A mapped file stays readable after it is removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from forage.app.cache.mapping import map_file, room_for_mapping
from forage.app.cache.refs import Blob, Tier
from forage.app.cache.serial import INLINE_LIMIT, Payload

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOENT})
"""What writing fails with when a file system is full, or its directory has vanished."""

_WRITING = ".tmp"
_COPYING = ".copy"  # to disk, by the directory: no business of a sweep
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_COPY_BYTES = 1 << 26


def size_text(nbytes: int) -> str:
    """Write a size for people: binary units, one decimal (`1.5 GiB`)."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" else f"{nbytes} B"


class Places(NamedTuple):
    """Where an app's cache lies; all of its processes get the same."""

    app: str
    shared: Path
    disk: Path
    budget: int
    """Bytes that shared memory may hold; what is larger goes to disk at once."""

    @property
    def folders(self) -> tuple[Path, Path]:
        """Where all files lie."""
        return self.shared, self.disk

    def open(self, writer: str) -> Store:
        """One process's access."""
        return Store(self, writer)


class Store:
    """See `forage.app.cache.storage.Storage`."""

    def __init__(self, places: Places, writer: str) -> None:
        if not writer or writer.startswith(".") or "/" in writer:
            raise ValueError(f"a writer's name must be a plain file name, not {writer!r}")
        self.places = places
        self.app = places.app
        self.budget = places.budget
        self.writer = writer
        self._roots = {Tier.SHARED: str(places.shared), Tier.DISK: str(places.disk)}
        self._numbers = itertools.count()

    def write(self, payload: Payload, tier: Tier) -> Blob:
        """Write a payload as a new file; raises `OSError` and leaves nothing if it doesn't fit."""
        # The pid keeps a forked child of this process from using the same names.
        blob = Blob(tier, f"{self.writer}/{os.getpid()}-{next(self._numbers)}", payload.nbytes)
        with (
            self._new_file(self.path(blob), _WRITING) as descriptor,
            open(descriptor, "wb", closefd=False) as file,
        ):
            for chunk in payload.chunks():
                file.write(chunk)
        return blob

    def read(self, blob: Blob) -> memoryview | bytearray:
        """Return a file's content: mapped, or read where it is small.

        Small files are read since mapping costs more and the kernel limits how many mappings a
        process may have. Raises `FileNotFoundError` if the file was moved or removed.
        """
        descriptor = os.open(self.path(blob), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if blob.nbytes > INLINE_LIMIT and room_for_mapping():
                return map_file(descriptor, blob.nbytes)
            return _read_whole(descriptor, blob.nbytes)
        finally:
            os.close(descriptor)

    def copy_to_disk(self, blob: Blob) -> Blob:
        """Copy a file from shared memory to disk under the same name; the first one stays."""
        moved = blob._replace(tier=Tier.DISK)
        source = os.open(self.path(blob), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._new_file(self.path(moved), _COPYING) as target:
                left = blob.nbytes
                while left:
                    copied = os.sendfile(target, source, None, min(left, _COPY_BYTES))
                    if not copied:
                        raise OSError(f"{self.path(blob)} is shorter than {blob.nbytes} bytes")
                    left -= copied
        finally:
            os.close(source)
        return moved

    def path(self, blob: Blob) -> str:
        """Where a file lies."""
        return f"{self._roots[blob.tier]}/{blob.name}"

    def exists(self, blob: Blob) -> bool:
        """Whether the file is there."""
        return os.path.exists(self.path(blob))

    def remove(self, blob: Blob) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(blob))

    def sweep(self, writer: str, known: Collection[str]) -> None:
        """Remove what a dead writer left: temporary files, and files whose name isn't `known`."""
        for root in (self.places.shared, self.places.disk):
            for path in (root / writer).glob("*"):
                if path.suffix != _COPYING and f"{writer}/{path.name}" not in known:
                    path.unlink(missing_ok=True)

    def where(self, blob: Blob) -> str:
        """Where a file lies, in words."""
        return f"file {self.path(blob)}"

    def vanished(self) -> str:
        """The disk's directory, if something else has removed it."""
        return "" if self.places.disk.is_dir() else f"directory {self.places.disk}"

    def fill(self, tier: Tier, used: int, budget: int) -> str:
        """How full a tier is, in words."""
        root = Path(self._roots[tier])
        free = f"{size_text(shutil.disk_usage(root).free)} free" if root.is_dir() else "vanished"
        return f"{root} holds {size_text(used)} of its budget of {size_text(budget)} ({free})"

    def clear(self) -> None:
        """Remove the directories. Values that are mapped stay."""
        for root in (self.places.shared, self.places.disk):
            shutil.rmtree(root, ignore_errors=True)

    @contextlib.contextmanager
    def _new_file(self, path: str, suffix: str) -> Iterator[int]:
        """Yield a descriptor to write to; the file appears at `path` when the block succeeds."""
        temporary = path + suffix
        try:
            descriptor = os.open(temporary, _NEW_FILE, 0o600)
        except FileNotFoundError:  # the writer's first file here
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
            descriptor = os.open(temporary, _NEW_FILE, 0o600)
        try:
            yield descriptor
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)


def _read_whole(descriptor: int, nbytes: int) -> bytearray:
    content = bytearray(nbytes)
    left = memoryview(content)
    while left and (count := os.readv(descriptor, [left])):
        left = left[count:]
    return content
