"""What a process does with the cache: it writes and reads the files, the directory decides.

`call(operation, *args)` reaches the driver's `Directory`: directly in the driver, by message in
an executor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

from forage.app.cache import serial
from forage.app.cache.refs import Blob, Parcel, Ref, Snapshot, Tier, Update
from forage.app.cache.storage import Storage
from forage.app.cache.store import NO_ROOM
from forage.app.errors import AppError, ObjectLost

Call = Callable[..., Any]


class Client:
    """The cache as one process sees it. All methods may be called from any thread.

    `bytes_written` and `bytes_read` count what this process moved so far.
    """

    def __init__(self, store: Storage, call: Call) -> None:
        self.bytes_written = 0
        self.bytes_read = 0
        self._store = store
        self._call = call
        self._app = store.app
        self._counting = threading.Lock()

    def put(self, value: Any, key: str | None = None) -> Ref:
        """Add a value to the cache, where it stays until it is deleted or the app ends.

        Raises `VersionConflict` where `key` is live, `CacheFull` where the value fits nowhere,
        `TypeError` where it can't be pickled.
        """
        if key is not None:
            _check_key(key)
        payload = serial.dumps(value)
        key, version = self._commit(payload, lambda blob: self._call("put", key, blob))
        return Ref(key, version, self._app)

    def append(self, ref: Ref, part: Any, expect: int | None = None) -> Ref:
        """Add a part to an object: version + 1.

        `expect` is the version that the part must follow; raises `VersionConflict` where the
        object is at another.
        """
        key = self._key(ref)
        payload = serial.dumps(part, "part")
        version = self._commit(payload, lambda blob: self._call("append", key, blob, expect))
        return Ref(key, version, self._app)

    def replace(self, ref: Ref, value: Any) -> Ref:
        """Start an object anew from another base: version + 1, no parts."""
        key = self._key(ref)
        payload = serial.dumps(value)
        version = self._commit(payload, lambda blob: self._call("replace", key, blob))
        return Ref(key, version, self._app)

    def rebase(self, ref: Ref, value: Any) -> Ref:
        """Store the value of `ref.version`, which must be the newest, whole; the version stays.

        Readers without an earlier version read `value` and later parts only; the others go on
        with the parts, of which those since the previous base stay readable. Raises
        `VersionConflict` where the object has moved on.
        """
        key = self._key(ref)
        payload = serial.dumps(value)
        version = self._commit(payload, lambda blob: self._call("rebase", key, blob, ref.version))
        return Ref(key, version, self._app)

    @overload
    def get(self, ref: Ref) -> Any: ...
    @overload
    def get(self, ref: Sequence[Ref]) -> list[Any]: ...
    def get(self, ref: Ref | Sequence[Ref]) -> Any:
        """Return the value of a ref, or a list of the values of several.

        Raises `ValueError` where parts were appended: their meaning is the application's, see
        `fetch`.
        """
        if isinstance(ref, list | tuple):
            return [self.get(one) for one in ref]
        return self._read(self._key(ref), 0, whole=True).base

    def fetch(self, ref: Ref, since: int | None = None) -> Update:
        """Return what a reader who has version `since` (None: nothing) has not seen."""
        if since is not None and since < 0:
            raise ValueError(f"since must be a version or None, not {since}")
        return self._read(self._key(ref), since or 0)

    def delete(self, target: Ref | str) -> int:
        """Delete an object, or the key `target` and all keys under `target/`.

        Returns how many objects were deleted. A deleted key may be put again; its versions go
        on from where they were.
        """
        if isinstance(target, Ref):
            return int(self._call("delete", self._key(target), False))
        prefix = target.removesuffix("/")
        _check_key(prefix)
        return int(self._call("delete", prefix, True))

    def pack(self, value: Any, name: str = "value") -> bytes | Parcel:
        """Make an argument or result ready for a message.

        Returns its bytes, or for a large value a parcel which this process holds until it
        calls `release`. `name` is what error messages call the value.
        """
        payload = serial.dumps(value, name)
        if payload.nbytes <= serial.INLINE_LIMIT:
            return payload.to_bytes()
        holder = self._store.writer
        blobs: list[Blob] = []

        def hold(blob: Blob) -> Any:
            blobs[:] = [blob]
            return self._call("hold", blob, holder, name)

        key = self._commit(payload, hold)
        return Parcel(key, blobs[0])

    def unpack(self, packed: bytes | bytearray | memoryview | Parcel) -> Any:
        """Return the value that was packed; whoever holds a parcel must hold it until then."""
        if not isinstance(packed, Parcel):
            return serial.loads(packed)
        try:
            content = self._store.read(packed.blob)
        except FileNotFoundError:  # spilled meanwhile
            return self._read(packed.key, 0).base
        self._count_read(packed.blob.nbytes)
        return serial.loads(content)

    def release(self, packed: bytes | bytearray | memoryview | Parcel) -> None:
        """Let go of what `pack` returned."""
        if isinstance(packed, Parcel):
            self._call("release", packed.key, self._store.writer)

    def _commit(self, payload: serial.Payload, tell: Callable[[Blob], Any]) -> Any:
        """Write a file and tell the directory of it, until there is room."""
        blob = self._write(payload)
        try:
            while (answer := tell(blob)) is None:
                self._call("make_room", blob.nbytes)
        except (AppError, ValueError, TypeError):  # refused: the file is known to nobody
            self._store.remove(blob)
            raise
        with self._counting:
            self.bytes_written += blob.nbytes
        return answer

    def _write(self, payload: serial.Payload) -> Blob:
        if payload.nbytes <= self._store.budget:
            for attempt in ("before making room", "after"):
                try:
                    return self._store.write(payload, Tier.SHARED)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                if attempt == "before making room":
                    self._call("free_memory", payload.nbytes)
        try:
            return self._store.write(payload, Tier.DISK)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            vanished = self._store.vanished()
            if not vanished:
                self._call("refuse", payload.nbytes)
            raise AppError(
                "the object cache can't write",
                why=f"its {vanished} has vanished",
                remedy="find out what removes files there, and start the app again",
            ) from error

    def _read(self, key: str, since: int, whole: bool = False) -> Update:
        """Read one snapshot; `whole` refuses one with parts."""
        missing: Blob | None = None
        while True:
            snapshot: Snapshot = self._call("fetch", key, since)
            if whole and snapshot.parts:
                raise ValueError(
                    f"{key!r} has {len(snapshot.parts)} parts after its base; use fetch to get both"
                )
            base = () if snapshot.base is None else (snapshot.base,)
            blobs = (*base, *snapshot.parts)
            contents, gone = self._open(blobs)
            if gone is None:
                break
            if gone == missing:
                raise ObjectLost(
                    f"object {key!r} is lost",
                    why=f"something removed its {self._store.where(gone)}",
                    remedy="put it again under another key",
                    key=key,
                )
            missing = gone  # moved, or not needed any more: the directory knows
        self._count_read(sum(blob.nbytes for blob in blobs))
        values = [serial.loads(content) for content in contents]
        return Update(
            snapshot.version,
            values[0] if base else None,
            tuple(values[len(base) :]),
            whole=bool(base),
        )

    def _open(self, blobs: Sequence[Blob]) -> tuple[list[serial.Frame], Blob | None]:
        """Return the contents of all files, or the first file that is gone."""
        contents: list[serial.Frame] = []
        for blob in blobs:
            try:
                contents.append(self._store.read(blob))
            except FileNotFoundError:
                return [], blob
        return contents, None

    def _count_read(self, nbytes: int) -> None:
        with self._counting:
            self.bytes_read += nbytes

    def _key(self, ref: object) -> str:
        if not isinstance(ref, Ref):
            raise TypeError(f"expected a Ref, not {type(ref).__name__}: {ref!r}")
        if ref.app != self._app:
            raise ValueError(f"{ref} belongs to app {ref.app!r}, this is app {self._app!r}")
        return ref.key


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string, not {type(key).__name__}: {key!r}")
    if key.startswith("#") or not all(key.split("/")):
        raise ValueError(
            f"{key!r} is no key: use names joined by single slashes, the first without a leading #"
        )
