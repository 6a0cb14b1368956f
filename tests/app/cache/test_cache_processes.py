"""The cache between real processes: races, deaths and descriptors."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_peers import Peer

from forage.app.cache import INLINE_LIMIT, Client, Directory, Parcel, Ref, Store, open_directory
from forage.app.errors import ObjectLost, VersionConflict

StartPeer = Callable[[Directory, str], Peer]


def test_values_go_both_ways(client: Client, directory: Directory, start_peer: StartPeer) -> None:
    import torch  # here, for the other tests' processes to start faster

    peer = start_peer(directory, "executor-1")
    ref = client.put({"weights": torch.arange(100_000, dtype=torch.bfloat16)}, "model")

    def add_one(client: Client, ref: Ref) -> Ref:
        return client.append(ref, client.get(ref)["weights"] + 1)

    ref = peer.run(add_one, ref)
    update = client.fetch(ref, since=1)
    assert torch.equal(update.parts[0], torch.arange(100_000, dtype=torch.bfloat16) + 1)


def test_errors_reach_the_process_that_asked(
    client: Client, directory: Directory, start_peer: StartPeer
) -> None:
    peer = start_peer(directory, "executor-1")
    ref = client.put(1, "model")
    with pytest.raises(VersionConflict) as caught:
        peer.run(lambda client, ref: client.append(ref, 2, expect=7), ref)
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("model", 7, 1)
    assert client.fetch(ref, since=1).parts == ()


def test_of_appends_that_expect_the_same_version_one_wins(
    client: Client, directory: Directory, start_peer: StartPeer
) -> None:
    ref = client.put(0)

    def increment(client: Client, ref: Ref, times: int) -> int:
        lost = 0
        for _ in range(times):
            while True:
                version = client.fetch(ref).version
                try:
                    client.append(ref, version, expect=version)
                    break
                except VersionConflict:
                    lost += 1
        return lost

    peers = [start_peer(directory, f"executor-{number}") for number in range(3)]
    for future in [peer.start(increment, ref, 50) for peer in peers]:
        future.result(timeout=60)
    update = client.fetch(ref)
    assert update.version == 151
    assert update.parts == tuple(range(1, 151))


def write_on_and_on(client: Client, ref: Ref, stop: Path) -> int:
    """Write until the file `stop` exists: every value is its version, in a large array."""
    version = ref.version
    while not stop.exists():
        value = np.full(INLINE_LIMIT // 4, version + 1)
        if version % 5 == 4:
            client.replace(ref, value)
        else:
            client.append(ref, value)
        version += 1
        if version % 7 == 0:
            client.rebase(Ref(ref.key, version, ref.app), np.full(INLINE_LIMIT // 4, version))
    return version


def read_on_and_on(client: Client, ref: Ref, progress: Path, stop: Path) -> None:
    """Check until `stop` exists that each snapshot follows the one before, without a gap."""
    seen, snapshots = 0, 0
    while not stop.exists():
        update = client.fetch(ref, since=seen)
        if update.whole:
            seen = int(update.base[0]) - 1
        for value in [update.base, *update.parts] if update.whole else update.parts:
            assert value[0] == value[-1] == seen + 1
            seen += 1
        assert seen == update.version
        snapshots += 1
        if snapshots == 20:
            progress.touch()


@pytest.mark.parametrize("budget", [1 << 30, 1 << 20], ids=["in memory", "spilling"])
def test_readers_see_whole_snapshots_while_it_is_written(
    budget: int, tmp_path: Path, open_cache: Callable[..., Directory], start_peer: StartPeer
) -> None:
    directory = open_cache(budget=budget)
    client = Client(Store(directory.places, "driver"), directory.call)
    ref = client.put(np.full(INLINE_LIMIT // 4, 1), "model")
    stop, progress = tmp_path / "stop", [tmp_path / "reader-1", tmp_path / "reader-2"]
    peers = [start_peer(directory, f"executor-{number}") for number in range(3)]
    jobs: list[Future[Any]] = [
        peers[0].start(write_on_and_on, ref, stop),
        peers[1].start(read_on_and_on, ref, progress[0], stop),
        peers[2].start(read_on_and_on, ref, progress[1], stop),
    ]
    while not all(path.exists() for path in progress) or directory.fetch("model", 0).version < 100:
        assert not any(job.done() for job in jobs)
        time.sleep(0.01)
    stop.touch()
    version, *_ = [job.result(timeout=60) for job in jobs]
    assert version == client.fetch(ref).version
    assert (directory.usage().spilled_bytes > 0) == (budget == 1 << 20)


def test_a_writer_killed_in_mid_write_leaves_nothing_to_see(
    client: Client, directory: Directory, start_peer: StartPeer
) -> None:
    peer = start_peer(directory, "executor-1")

    def put_large(client: Client) -> None:
        client.put(np.ones(1 << 29, np.uint8), "large")

    job = peer.start(put_large)
    own = directory.places.shared / "executor-1"
    while not any(path.stat().st_size for path in own.glob("*.tmp")):
        assert not job.done()
    peer.kill()
    left = list(own.iterdir())
    assert [path.suffix for path in left] == [".tmp"]
    with pytest.raises(ObjectLost):
        client.get(Ref("large", 1, "test"))
    directory.forget("executor-1")
    assert list(own.iterdir()) == []


def test_a_file_that_nobody_was_told_of_is_swept(
    client: Client, directory: Directory, start_peer: StartPeer
) -> None:
    peer = start_peer(directory, "executor-1")

    def write_silently(client: Client, kept: bytes) -> Ref:
        ref = client.put(kept)
        Client(client._store, lambda *_: ("untold", 1)).put(bytes(1000))
        return ref

    ref = peer.run(write_silently, b"kept")
    peer.kill()
    own = directory.places.shared / "executor-1"
    assert len(list(own.iterdir())) == 2
    directory.forget("executor-1")
    assert len(list(own.iterdir())) == 1
    assert client.get(ref) == b"kept"


def test_a_dead_process_lets_go_of_its_parcels(
    client: Client, directory: Directory, start_peer: StartPeer
) -> None:
    peer = start_peer(directory, "executor-1")

    def pack_two(client: Client) -> list[Any]:
        return [client.pack(np.ones(INLINE_LIMIT)) for _ in range(2)]

    taken, lost = peer.run(pack_two)
    directory.retain(taken.key, "driver")
    peer.kill()
    directory.forget("executor-1")
    assert client.unpack(taken).sum() == INLINE_LIMIT
    with pytest.raises(ObjectLost):
        client.unpack(lost)
    client.release(taken)
    assert directory.usage().objects == 0


def test_a_parcel_is_found_after_it_was_spilled(open_cache: Callable[..., Directory]) -> None:
    directory = open_cache(budget=300 * 1024)
    client = Client(Store(directory.places, "driver"), directory.call)
    parcels = [client.pack(np.full(200 * 1024, number, np.uint8)) for number in range(3)]
    assert all(isinstance(parcel, Parcel) for parcel in parcels)
    assert [client.unpack(parcel)[0] for parcel in parcels] == [0, 1, 2]


def hold_many(client: Client, small: int, large: int) -> tuple[int, int]:
    """Hold values of many objects under a limit of 1,024 descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    directory = open_directory("many")
    try:
        client = Client(Store(directory.places, "driver"), directory.call)
        refs = [client.put(np.array([number])) for number in range(small)]
        refs += [
            client.put(np.full(INLINE_LIMIT, number % 256, np.uint8)) for number in range(large)
        ]
        values = client.get(refs)
        assert [value[0] for value in values[:small]] == list(range(small))
        assert [value[0] for value in values[small:]] == [number % 256 for number in range(large)]
        return len(values), len(os.listdir("/proc/self/fd"))
    finally:
        directory.close()


@pytest.mark.parametrize(
    ("small", "large"),
    [(4000, 2000), pytest.param(100_000, 2000, marks=pytest.mark.slow)],
    ids=["thousands", "hundred thousand"],
)
def test_objects_hold_no_descriptors(
    small: int, large: int, directory: Directory, start_peer: StartPeer
) -> None:
    held, descriptors = start_peer(directory, "executor-1").run(hold_many, small, large)
    assert held == small + large
    assert descriptors < 30
