"""What a process may ask of the cache, and what it is told when it asks wrongly."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forage.app.cache import INLINE_LIMIT, Client, Directory, Parcel, Ref, mapping
from forage.app.errors import ObjectLost, SessionClosed, VersionConflict


def mapped_files(root: Path) -> int:
    """Return how many files under `root` this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    return sum(str(root) in line for line in maps.splitlines())


def test_large_arrays_and_tensors_are_mapped_and_hold_no_descriptor(
    client: Client, directory: Directory
) -> None:
    ref = client.put({"array": np.arange(100_000), "tensor": torch.ones(100_000)})
    before = len(os.listdir("/proc/self/fd"))
    value = client.get(ref)
    assert len(os.listdir("/proc/self/fd")) == before
    assert mapped_files(directory.places.shared) == 1
    assert not value["array"].flags.writeable
    tail = value["array"][-5:]
    del value
    gc.collect()
    client.delete(ref)
    assert tail.tolist() == [99_995, 99_996, 99_997, 99_998, 99_999]
    assert mapped_files(directory.places.shared) == 1
    del tail
    gc.collect()
    assert mapped_files(directory.places.shared) == 0


def test_past_the_limit_of_mappings_values_are_read(
    client: Client, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "MAX_MAPPINGS", 1)
    ref = client.put(np.ones(100_000))
    values = [client.get(ref) for _ in range(3)]
    assert mapped_files(directory.places.shared) == 1
    assert all(value.sum() == 100_000 and not value.flags.writeable for value in values)


def test_a_write_to_a_tensor_reaches_nobody_else(client: Client) -> None:
    ref = client.put(torch.zeros(100_000))
    mine, other = client.get(ref), client.get(ref)
    mine += 1
    assert other.sum() == 0
    assert client.get(ref).sum() == 0


def test_a_list_of_refs_gives_a_list_of_values(client: Client) -> None:
    refs = [client.put(number) for number in range(3)]
    assert client.get(refs) == [0, 1, 2]
    assert client.get(tuple(refs)) == [0, 1, 2]


def test_unnamed_objects_get_keys_of_their_own(client: Client) -> None:
    assert client.put(1).key != client.put(1).key


def test_a_live_key_raises_and_leaves_the_object(client: Client, directory: Directory) -> None:
    client.put(1, "model")
    held = directory.usage()
    with pytest.raises(VersionConflict, match="'model' is live at version 1; replace it, or"):
        client.put(2, "model")
    assert directory.usage() == held


def test_versions_go_on_after_delete(client: Client) -> None:
    ref = client.append(client.put([0], "model"), 1)
    client.delete(ref)
    with pytest.raises(ObjectLost, match="deleted at version 2"):
        client.fetch(ref)
    again = client.put([5], "model")
    assert again.version == 3
    assert client.fetch(again, since=2).base == [5]


def test_a_prefix_ends_at_a_slash(client: Client) -> None:
    for key in ("run", "run/1", "run/1/x", "run2", "run-1"):
        client.put(0, key)
    assert client.delete("run/") == 3
    assert client.delete("run") == 0
    assert client.delete("run2") == 1
    assert client.get(Ref("run-1", 1, "test")) == 0


@pytest.mark.parametrize("key", ["", "/", "a//b", "/a", "a/", "#1"])
def test_a_key_that_is_none_is_refused(client: Client, key: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        client.put(0, key)


def test_wrong_arguments_are_named(client: Client) -> None:
    with pytest.raises(TypeError, match="expected a Ref, not str: 'model'"):
        client.get("model")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a key must be a string, not int"):
        client.put(0, 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="belongs to app 'other'"):
        client.get(Ref("model", 1, "other"))
    with pytest.raises(ValueError, match="since must be a version"):
        client.fetch(client.put(0), since=-1)


def test_an_unknown_operation_is_refused(directory: Directory) -> None:
    with pytest.raises(ValueError, match="no operation 'close'"):
        directory.call("close")


def test_a_closed_cache_refuses_and_leaves_no_files(client: Client, directory: Directory) -> None:
    array = client.get(client.put(np.ones(100_000)))
    directory.close()
    assert not directory.places.shared.exists()
    assert not directory.places.disk.exists()
    assert array.sum() == 100_000
    with pytest.raises(SessionClosed, match="'test' has ended"):
        client.fetch(Ref("model", 1, "test"))


def test_small_values_travel_inline_and_large_ones_in_parcels(
    client: Client, directory: Directory
) -> None:
    assert isinstance(client.pack(bytes(INLINE_LIMIT - 1000)), bytes)
    parcel = client.pack(np.ones(INLINE_LIMIT // 8), "argument")
    assert isinstance(parcel, Parcel)
    array = client.unpack(parcel)
    client.release(parcel)
    assert directory.usage().objects == 0
    assert array.sum() == INLINE_LIMIT // 8
    with pytest.raises(ObjectLost):
        client.unpack(parcel)


def test_a_parcel_lives_while_anybody_holds_it(client: Client, directory: Directory) -> None:
    parcel = client.pack(bytes(INLINE_LIMIT))
    assert isinstance(parcel, Parcel)
    directory.retain(parcel.key, "call-1")
    directory.retain(parcel.key, "call-1")
    client.release(parcel)
    client.release(parcel)
    directory.release(parcel.key, "call-1")
    assert client.unpack(parcel) == bytes(INLINE_LIMIT)
    directory.release(parcel.key, "call-1")
    assert directory.usage().objects == 0


def test_places_are_private(directory: Directory) -> None:
    for root in (directory.places.shared, directory.places.disk):
        assert root.stat().st_mode & 0o077 == 0


def test_a_directory_that_cannot_be_written_is_named(open_cache: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="writable directory, which /nowhere is not"):
        open_cache(shared_root=Path("/nowhere"))
