"""How much room the cache has, who holds it, and what goes to disk first."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from forage.app.cache.refs import Blob, Tier
from forage.app.cache.storage import Storage
from forage.app.cache.store import NO_ROOM, size_text
from forage.app.cache.versions import File
from forage.app.errors import CacheFull

_NAMED_HOLDERS = 5


class Space:
    """Counts the bytes of live files per tier, and moves the least recently used ones to disk.

    `lock` is the directory's: the methods that take it say so, the others want it held.
    """

    def __init__(self, store: Storage, disk_budget: int, lock: threading.Lock) -> None:
        self.used = {Tier.SHARED: 0, Tier.DISK: 0}
        self.spilled_bytes = 0
        self._store = store
        self._budget = store.budget
        self._disk_budget = disk_budget
        self._lock = lock
        self._spilling = threading.Lock()
        self._files: dict[str, File] = {}
        self._resident: OrderedDict[str, File] = OrderedDict()  # in shared memory, oldest use first

    def __contains__(self, name: object) -> bool:
        """Whether a file of that name is counted; needs no lock."""
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        """The names of all files that are counted; needs no lock."""
        return iter(list(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def fits(self, blob: Blob) -> bool:
        """Whether a new file fits now; raises `CacheFull` where making room can't help."""
        if blob.tier is Tier.SHARED:
            return self.used[Tier.SHARED] + blob.nbytes <= self._budget
        if self.used[Tier.DISK] + blob.nbytes > self._disk_budget:
            raise self.full(blob.nbytes)
        return True

    def add(self, file: File) -> None:
        """Count a new file."""
        self.used[file.blob.tier] += file.blob.nbytes
        self._files[file.blob.name] = file
        if file.blob.tier is Tier.SHARED:
            self._resident[file.blob.name] = file

    def discard(self, files: Iterable[File]) -> list[Blob]:
        """Stop counting files; returns the blobs to remove, once the lock is released."""
        blobs = []
        for file in files:
            if self._files.pop(file.blob.name, None) is not None:
                self.used[file.blob.tier] -= file.blob.nbytes
                self._resident.pop(file.blob.name, None)
                blobs.append(file.blob)
        return blobs

    def touch(self, files: Iterable[File]) -> None:
        """Note that files are being read."""
        for file in files:
            if file.blob.name in self._resident:
                self._resident.move_to_end(file.blob.name)

    def make_room(self, nbytes: int) -> None:
        """Spill until `nbytes` fit the budget. Takes the lock.

        Raises `CacheFull` where disk can't take what would have to leave.
        """
        with self._spilling:
            while True:
                with self._lock:
                    if self.used[Tier.SHARED] + nbytes <= self._budget:
                        return
                if not self._spill_oldest():
                    with self._lock:
                        raise self.full(nbytes)

    def free_memory(self, nbytes: int) -> None:
        """Spill about `nbytes`, as far as disk can take them: memory is full. Takes the lock."""
        with self._spilling:
            with self._lock:
                goal = self.used[Tier.SHARED] - nbytes
            while self.used[Tier.SHARED] > goal and self._spill_oldest():
                pass

    def full(self, nbytes: int) -> CacheFull:
        """Return the error for a value of `nbytes` that fits nowhere."""
        held: Counter[str] = Counter()
        for file in self._files.values():
            held[file.key] += file.blob.nbytes
        holders = held.most_common(_NAMED_HOLDERS)
        largest = ", ".join(f"{key} {size_text(size)}" for key, size in holders) or "none"
        shared = self._store.fill(Tier.SHARED, self.used[Tier.SHARED], self._budget)
        disk = self._store.fill(Tier.DISK, self.used[Tier.DISK], self._disk_budget)
        return CacheFull(
            f"the object cache can't take {size_text(nbytes)} more",
            why=f"{shared}, {disk}, largest holders: {largest}",
            remedy="delete what is no longer needed, or raise app.init(cache=...)",
            needed=nbytes,
            budget=self._budget,
            disk_budget=self._disk_budget,
            holders=holders,
        )

    def _spill_oldest(self) -> bool:
        """Move the least recently used file to disk; False if there is none or disk is full."""
        with self._lock:
            file = next(iter(self._resident.values()), None)
            if file is None or self.used[Tier.DISK] + file.blob.nbytes > self._disk_budget:
                return False
            blob = file.blob
        try:
            moved = self._store.copy_to_disk(blob)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if self._store.exists(blob):
                return False
            with self._lock:
                self._forget_vanished(blob)
            return True
        with self._lock:
            stale = self._settle(blob, moved)
        self._store.remove(stale)
        return True

    def _settle(self, blob: Blob, moved: Blob) -> Blob:
        """Let a file lie where it was copied to, and return the copy that is to be removed."""
        file = self._resident.pop(blob.name, None)
        if file is None:  # deleted meanwhile
            return moved
        file.blob = moved
        self.used[Tier.SHARED] -= blob.nbytes
        self.used[Tier.DISK] += blob.nbytes
        self.spilled_bytes += blob.nbytes
        return blob

    def _forget_vanished(self, blob: Blob) -> None:
        """Stop counting a file that something else removed; its readers get `ObjectLost`."""
        file = self._resident.pop(blob.name, None)
        if file is not None:
            file.blob = blob._replace(nbytes=0)
            self.used[Tier.SHARED] -= blob.nbytes
