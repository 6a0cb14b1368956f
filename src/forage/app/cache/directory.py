"""The one authority on what the cache holds: keys, versions, and the files that make them up.

It lives in the driver. Processes write files themselves and then tell the directory; only what
it has accepted exists, and every answer is one consistent snapshot. It never touches a value.

A reader may be told of a file that is spilled, replaced or deleted before it gets to open it.
It then asks again: a file that the directory names twice and that isn't there is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forage.app.cache.refs import Blob, Snapshot, Tier
from forage.app.cache.space import Space
from forage.app.cache.storage import Places
from forage.app.cache.versions import File, History
from forage.app.errors import ObjectLost, SessionClosed, VersionConflict

OPERATIONS = frozenset(
    {"put", "append", "replace", "rebase", "fetch", "delete", "hold", "release", "refuse"}
)
"""What `call` does at once."""

SLOW_OPERATIONS = frozenset({"make_room", "free_memory"})
"""What `call` may copy files for: not for a thread that others wait on."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the cache holds now (`objects`, bytes per tier), and what it has spilled so far."""

    objects: int
    shared_bytes: int
    disk_bytes: int
    spilled_bytes: int
    budget: int


class Directory:
    """Keys, versions and files of one app. All methods may be called from any thread.

    Writes take the `Blob` of a file that the caller has written. They return None where it
    doesn't fit the budget: then `make_room`, and write again. A refused file stays the caller's.
    """

    def __init__(self, places: Places, disk_budget: int) -> None:
        self.places = places
        self._lock = threading.Lock()
        self._store = places.open("directory")
        self._space = Space(self._store, disk_budget, self._lock)
        self._objects: dict[str, History] = {}
        self._last_versions: dict[str, int] = {}  # of deleted keys: versions never go back
        self._holds: dict[str, Counter[str]] = {}  # of parcels: how often each process holds them
        self._numbers = itertools.count(1)
        self._closed = False

    def call(self, operation: str, *args: Any) -> Any:
        """Do what a process asked for by message."""
        if operation not in OPERATIONS and operation not in SLOW_OPERATIONS:
            raise ValueError(f"the object cache has no operation {operation!r}")
        return getattr(self, operation)(*args)

    # Writes

    def put(self, key: str | None, blob: Blob) -> tuple[str, int] | None:
        """Add an object and return its key (a new one for None) and version.

        Raises `VersionConflict` where the key is live.
        """
        with self._locked():
            live = self._objects.get(key) if key is not None else None
            if live is not None:
                raise VersionConflict(
                    f"key {key!r} is live at version {live.version}",
                    remedy="replace it, or delete it first",
                    key=str(key),
                    expected=None,
                    found=live.version,
                )
            if not self._space.fits(blob):
                return None
            return self._add(key if key is not None else f"#{next(self._numbers)}", blob)

    def append(self, key: str, blob: Blob, expect: int | None) -> int | None:
        """Add a part and return the new version; `expect` is the version it must follow."""
        with self._locked():
            history = self._live(key)
            if expect is not None and expect != history.version:
                raise _conflict("append to", key, expect, history.version)
            if not self._space.fits(blob):
                return None
            part = File(key, blob)
            self._space.add(part)
            history.append(part)
            return history.version

    def replace(self, key: str, blob: Blob) -> int | None:
        """Start an object anew from another base and return the new version."""
        with self._locked() as doomed:
            history = self._live(key)
            if not self._space.fits(blob):
                return None
            base = File(key, blob)
            self._space.add(base)
            doomed += self._space.discard(history.replace(base))
            return history.version

    def rebase(self, key: str, blob: Blob, version: int) -> int | None:
        """Take a base that holds `version`, which must be the newest, whole."""
        with self._locked() as doomed:
            history = self._live(key)
            if version != history.version:
                raise _conflict("rebase", key, version, history.version)
            if not self._space.fits(blob):
                return None
            base = File(key, blob)
            self._space.add(base)
            doomed += self._space.discard(history.rebase(base))
            return history.version

    def delete(self, key: str, nested: bool) -> int:
        """Delete a key and, with `nested`, all keys under `key/`; returns how many were live."""
        with self._locked() as doomed:
            keys = [key] if key in self._objects else []
            if nested:
                keys += [other for other in self._objects if other.startswith(f"{key}/")]
            for doomed_key in keys:
                doomed += self._remove(doomed_key)
            return len(keys)

    # Reads

    def fetch(self, key: str, since: int) -> Snapshot:
        """Return the files that a reader at version `since` (0: none) lacks.

        Raises `ObjectLost` where the key isn't live, `ValueError` where `since` is ahead.
        """
        with self._locked():
            history = self._live(key)
            if since > history.version:
                raise ValueError(
                    f"since={since} is ahead of {key!r}, whose newest version is "
                    f"{history.version}; pass the version of an earlier fetch of this app"
                )
            base, parts = history.unseen(since)
            self._space.touch(parts if base is None else [base, *parts])
            return Snapshot(
                history.version,
                base.blob if base is not None else None,
                tuple(part.blob for part in parts),
            )

    # Arguments and results under way

    def hold(self, blob: Blob, holder: str, label: str) -> str | None:
        """Add an argument or result that lives while a process holds it; returns its key."""
        with self._locked():
            if not self._space.fits(blob):
                return None
            key, _ = self._add(f"#{next(self._numbers)} {label}", blob)
            self._holds[key] = Counter({holder: 1})
            return key

    def retain(self, key: str, holder: str) -> None:
        """Let `holder` hold it too (or once more)."""
        with self._locked():
            self._live(key)
            self._holds[key][holder] += 1

    def release(self, key: str, holder: str) -> None:
        """Let go of it once; nobody holding it, it is freed. Does nothing where it is gone."""
        with self._locked() as doomed:
            holds = self._holds.get(key)
            if holds is None or not holds[holder]:
                return
            holds[holder] -= 1
            if not +holds:
                doomed += self._remove(key)

    def forget(self, writer: str) -> None:
        """Clean up after a process that has ended and whose messages have all been handled.

        Frees what only that process held and removes files that it told nobody of; values that
        it put stay.
        """
        with self._locked() as doomed:
            for key, holds in list(self._holds.items()):
                del holds[writer]
                if not +holds:
                    doomed += self._remove(key)
        self._store.sweep(writer, self._space)

    # Room

    def make_room(self, nbytes: int) -> None:
        """Spill until `nbytes` fit; raises `CacheFull` where that can't be. May copy files."""
        self._space.make_room(nbytes)

    def free_memory(self, nbytes: int) -> None:
        """Spill about `nbytes`, where memory is full before the budget is. May copy files."""
        self._space.free_memory(nbytes)

    def refuse(self, nbytes: int) -> None:
        """Raise the `CacheFull` for a value of `nbytes` that could be written nowhere."""
        with self._lock:
            raise self._space.full(nbytes)

    def usage(self) -> Usage:
        """Return what the cache holds."""
        with self._lock:
            used = self._space.used
            return Usage(
                len(self._objects),
                used[Tier.SHARED],
                used[Tier.DISK],
                self._space.spilled_bytes,
                self.places.budget,
            )

    def close(self) -> None:
        """Remove everything; later calls raise `SessionClosed`. Values that are mapped stay."""
        with self._lock:
            self._closed = True
        self._store.clear()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[list[Blob]]:
        """Hold the lock; files added to the yielded list are removed after its release."""
        doomed: list[Blob] = []
        with self._lock:
            if self._closed:
                raise SessionClosed(f"the object cache of app {self.places.app!r} has ended")
            yield doomed
        for blob in doomed:
            self._store.remove(blob)

    def _live(self, key: str) -> History:
        history = self._objects.get(key)
        if history is None:
            deleted = self._last_versions.get(key)
            raise ObjectLost(
                f"no object {key!r} in the cache of app {self.places.app!r}",
                why=f"it was deleted at version {deleted}" if deleted else "",
                key=key,
            )
        return history

    def _add(self, key: str, blob: Blob) -> tuple[str, int]:
        base = File(key, blob)
        self._space.add(base)
        history = History(self._last_versions.pop(key, 0) + 1, base)
        self._objects[key] = history
        return key, history.version

    def _remove(self, key: str) -> list[Blob]:
        history = self._objects.pop(key)
        self._holds.pop(key, None)
        if not key.startswith("#"):  # such a key is never used again
            self._last_versions[key] = history.version
        return self._space.discard(history.files())


def _conflict(action: str, key: str, expected: int, found: int) -> VersionConflict:
    return VersionConflict(
        f"can't {action} {key!r} at version {expected}",
        why=f"it is at version {found} now",
        remedy="fetch it and decide anew",
        key=key,
        expected=expected,
        found=found,
    )
