"""Versions, against a twin that keeps everything and looks up nothing cleverly."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forage.app.cache import Client, Ref, Store, Update, open_directory
from forage.app.errors import ObjectLost, VersionConflict

KEYS = ["a", "a/b", "ab"]


@dataclass
class Twin:
    """All that ever happened to a key: the whole value at each version, and where bases were.

    A value is a list; a part is a number that belongs at its end.
    """

    whole: dict[int, list[int]] = field(default_factory=dict)
    version: int = 0
    live: bool = False
    base_version: int = 0
    oldest_part: int = 0

    def start(self, value: list[int]) -> None:
        self.version += 1
        self.live = True
        self.base_version = self.version
        self.oldest_part = self.version + 1
        self.whole[self.version] = value

    def append(self, part: int) -> None:
        self.whole[self.version + 1] = [*self.whole[self.version], part]
        self.version += 1

    def rebase(self) -> None:
        if self.base_version < self.version:
            self.oldest_part = self.base_version + 1
            self.base_version = self.version

    def expected(self, since: int) -> Update:
        whole = self.whole[self.version]
        if since + 1 >= self.oldest_part:
            parts = whole[len(whole) - (self.version - since) :]
            return Update(self.version, None, tuple(parts), whole=False)
        later = self.version - self.base_version
        base = self.whole[self.base_version]
        parts = whole[len(whole) - later :] if later else []
        return Update(self.version, base, tuple(parts), whole=True)


class CacheMachine(RuleBasedStateMachine):
    """Writes at random, with readers who are at any version they once saw."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = tempfile.TemporaryDirectory()
        self.directory = open_directory("test", budget=800, disk_root=Path(self.disk.name))
        self.client = Client(Store(self.directory.places, "driver"), self.directory.call)
        self.twins = {key: Twin() for key in KEYS}
        self.numbers = iter(range(10**9))

    def teardown(self) -> None:
        self.directory.close()
        self.disk.cleanup()

    def ref(self, key: str) -> Ref:
        return Ref(key, self.twins[key].version, "test")

    @rule(key=st.sampled_from(KEYS), value=st.lists(st.integers(), max_size=40))
    def put(self, key: str, value: list[int]) -> None:
        twin = self.twins[key]
        if twin.live:
            with pytest.raises(VersionConflict, match="is live"):
                self.client.put(value, key)
        else:
            ref = self.client.put(value, key)
            twin.start(value)
            assert ref == self.ref(key)

    @precondition(lambda self: any(twin.live for twin in self.twins.values()))
    @rule(data=st.data(), times=st.integers(1, 5))
    def append_several(self, data: Any, times: int) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.twins[key].live]))
        for _ in range(times):
            self.append(key, None)

    @rule(key=st.sampled_from(KEYS), expect=st.sampled_from([None, -1, 0, 1]))
    def append(self, key: str, expect: int | None) -> None:
        twin, part = self.twins[key], next(self.numbers)
        expected = None if expect is None else twin.version + expect
        if not twin.live:
            with pytest.raises(ObjectLost):
                self.client.append(self.ref(key), part, expected)
        elif expect in (None, 0):
            ref = self.client.append(self.ref(key), part, expected)
            twin.append(part)
            assert ref == self.ref(key)
        else:
            with pytest.raises(VersionConflict) as caught:
                self.client.append(self.ref(key), part, expected)
            assert (caught.value.expected, caught.value.found) == (expected, twin.version)

    @rule(key=st.sampled_from(KEYS), value=st.lists(st.integers(), max_size=40))
    def replace(self, key: str, value: list[int]) -> None:
        twin = self.twins[key]
        if twin.live:
            ref = self.client.replace(self.ref(key), value)
            twin.start(value)
            assert ref == self.ref(key)
        else:
            with pytest.raises(ObjectLost):
                self.client.replace(self.ref(key), value)

    @rule(key=st.sampled_from(KEYS))
    def rebase(self, key: str) -> None:
        twin = self.twins[key]
        if twin.live:
            assert self.client.rebase(self.ref(key), twin.whole[twin.version]) == self.ref(key)
            twin.rebase()
            with pytest.raises(VersionConflict):
                self.client.rebase(Ref(key, twin.version - 1, "test"), [])

    @rule(key=st.sampled_from(KEYS), by_prefix=st.booleans())
    def delete(self, key: str, by_prefix: bool) -> None:
        doomed = [key]
        if by_prefix:
            doomed += [other for other in KEYS if other.startswith(key + "/")]
        doomed = [one for one in doomed if self.twins[one].live]
        assert self.client.delete(key if by_prefix else self.ref(key)) == len(doomed)
        for one in doomed:
            self.twins[one].live = False

    @precondition(lambda self: any(twin.live for twin in self.twins.values()))
    @rule(data=st.data())
    def fetch(self, data: Any) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.twins[key].live]))
        twin = self.twins[key]
        for since in range(max(0, twin.version - 12), twin.version + 1):
            assert self.client.fetch(self.ref(key), since or None) == twin.expected(since)
        with pytest.raises(ValueError, match="is ahead of"):
            self.client.fetch(self.ref(key), twin.version + 1)

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: str) -> None:
        twin = self.twins[key]
        if not twin.live:
            with pytest.raises(ObjectLost, match="no object"):
                self.client.get(self.ref(key))
        elif twin.base_version < twin.version:
            with pytest.raises(ValueError, match="parts after its base"):
                self.client.get(self.ref(key))
        else:
            assert self.client.get(self.ref(key)) == twin.whole[twin.version]

    @invariant()
    def the_files_are_those_of_live_objects(self) -> None:
        usage = self.directory.usage()
        places = self.directory.places
        for root, counted in ((places.shared, usage.shared_bytes), (places.disk, usage.disk_bytes)):
            assert sum(file.stat().st_size for file in root.glob("*/*")) == counted
        assert usage.shared_bytes <= 800
        assert usage.objects == sum(twin.live for twin in self.twins.values())


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestVersions = CacheMachine.TestCase


def test_a_reader_moves_bytes_only_for_what_it_has_not_seen(client: Client) -> None:
    ref = client.put(bytes(1_000_000), "model")
    client.fetch(ref)
    for step in range(3):
        ref = client.append(ref, bytes(10_000))
        before = client.bytes_read
        assert len(client.fetch(ref, since=step + 1).parts) == 1
        assert 10_000 <= client.bytes_read - before < 11_000
    before = client.bytes_read
    client.rebase(ref, bytes(1_000_000))
    assert client.fetch(ref, since=4) == Update(4, None, ())
    assert client.bytes_read == before


def test_a_rebase_keeps_the_parts_since_the_previous_base(client: Client) -> None:
    ref = client.put([], "model")
    for part in (2, 3):
        ref = client.append(ref, part)
    client.rebase(ref, [2, 3])
    assert client.fetch(ref) == Update(3, [2, 3], (), whole=True)
    assert client.fetch(ref, since=1) == Update(3, None, (2, 3))
    client.rebase(ref, [2, 3])
    assert client.fetch(ref, since=1) == Update(3, None, (2, 3))
    ref = client.append(ref, 4)
    assert client.fetch(ref, since=1) == Update(4, None, (2, 3, 4))
    assert client.fetch(ref) == Update(4, [2, 3], (4,), whole=True)
    client.rebase(ref, [2, 3, 4])
    assert client.fetch(ref, since=3) == Update(4, None, (4,))
    assert client.fetch(ref, since=2) == Update(4, [2, 3, 4], (), whole=True)


def test_a_base_that_is_none_is_told_from_no_base(client: Client) -> None:
    ref = client.put(None)
    assert client.fetch(ref).whole
    assert not client.fetch(ref, since=1).whole
    assert client.fetch(client.replace(ref, None), since=1).whole
