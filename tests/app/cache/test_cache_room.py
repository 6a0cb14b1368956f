"""Budgets: what goes to disk, in which order, and what happens when nothing fits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from forage.app.cache import Client, Directory, Ref, Store
from forage.app.errors import AppError, CacheFull, ObjectLost

OpenCache = Callable[..., Directory]
KIB = 1024


def client_of(directory: Directory) -> Client:
    return Client(Store(directory.places, "driver"), directory.call)


def block(number: int) -> np.ndarray:
    """Return 100 KiB that can be told from others."""
    return np.full(100 * KIB, number, np.uint8)


def files(root: Path) -> int:
    return len(list(root.glob("*/*")))


def test_the_least_recently_used_goes_to_disk_first(open_cache: OpenCache) -> None:
    directory = open_cache(budget=250 * KIB)
    client, places = client_of(directory), directory.places
    first, second = client.put(block(1)), client.put(block(2))
    client.get(first)
    third = client.put(block(3))
    assert (files(places.shared), files(places.disk)) == (2, 1)
    shutil.rmtree(places.disk)  # only the second was there
    assert client.get([first, third])[1][0] == 3
    with pytest.raises(ObjectLost):
        client.get(second)


def test_spilled_values_read_as_before(open_cache: OpenCache) -> None:
    directory = open_cache(budget=250 * KIB)
    client = client_of(directory)
    refs = [client.put(block(number)) for number in range(10)]
    assert directory.usage().shared_bytes <= 250 * KIB
    assert directory.usage().spilled_bytes >= 800 * KIB
    for number, array in enumerate(client.get(refs)):
        np.testing.assert_array_equal(array, block(number))
        assert not array.flags.writeable


def test_parts_spill_one_by_one_and_read_in_order(open_cache: OpenCache) -> None:
    client = client_of(open_cache(budget=250 * KIB))
    ref = client.put(block(0))
    for number in range(1, 8):
        ref = client.append(ref, block(number))
    update = client.fetch(ref)
    assert [part[0] for part in (update.base, *update.parts)] == list(range(8))


def test_a_value_larger_than_the_budget_goes_to_disk_alone(open_cache: OpenCache) -> None:
    directory = open_cache(budget=150 * KIB)
    client = client_of(directory)
    small, large = client.put(block(1)), client.put(np.ones(100_000))
    assert directory.usage().spilled_bytes == 0
    assert client.get(large).sum() == 100_000
    assert client.get(small)[0] == 1


def test_full_names_budgets_and_the_largest_holders(open_cache: OpenCache) -> None:
    directory = open_cache(budget=250 * KIB, disk_budget=150 * KIB)
    client = client_of(directory)
    model = client.append(client.put(block(1), "model"), block(2))
    client.put(block(3), "batch")
    with pytest.raises(CacheFull, match=r"can't take 100\.\d KiB more: .* 250\.0 KiB") as caught:
        client.put(block(4), "last straw")
    error = caught.value
    assert "largest holders: model 200." in str(error)
    assert [key for key, _ in error.holders] == ["model", "batch"]
    assert (error.budget, error.disk_budget) == (250 * KIB, 150 * KIB)
    with pytest.raises(CacheFull):
        client.append(model, block(4))
    with pytest.raises(CacheFull):
        client.put(np.zeros(1_000_000))
    client.delete(model)
    assert client.get(client.put(block(5), "last straw"))[0] == 5


def test_full_names_arguments_under_way(open_cache: OpenCache) -> None:
    client = client_of(open_cache(budget=250 * KIB, disk_budget=0))
    client.pack(np.zeros(20_000), "argument 'batch'")
    with pytest.raises(CacheFull, match=r"largest holders: #1 argument 'batch' 156\.\d KiB"):
        client.put(block(0))


def test_a_refused_value_leaves_no_file(open_cache: OpenCache) -> None:
    directory = open_cache(budget=100, disk_budget=100)
    with pytest.raises(CacheFull):
        client_of(directory).put(block(1))
    assert files(directory.places.shared) + files(directory.places.disk) == 0
    assert directory.usage().objects == 0


def test_many_writers_and_deleters_never_pass_the_budget(open_cache: OpenCache) -> None:
    directory = open_cache(budget=350 * KIB)
    client = client_of(directory)

    def use(number: int) -> int:
        refs = [client.put(block(number)) for _ in range(3)]
        assert directory.usage().shared_bytes <= 350 * KIB
        values = client.get(refs)
        assert sum(client.delete(ref) for ref in refs) == 3
        return int(values[1][-1])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(200))) == list(range(200))
    assert directory.usage().spilled_bytes > 0
    assert (directory.usage().shared_bytes, directory.usage().disk_bytes) == (0, 0)
    assert files(directory.places.shared) + files(directory.places.disk) == 0


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A shared memory of 1 MiB, smaller than any budget says."""
    root = tmp_path / "shm"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small shared memory needs privileges")
    yield root
    subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_full_shared_memory_spills_whatever_the_budget(
    open_cache: OpenCache, small_memory: Path
) -> None:
    directory = open_cache(budget=1 << 30, shared_root=small_memory)
    client = client_of(directory)
    refs = [client.put(block(number)) for number in range(30)]
    assert directory.usage().spilled_bytes > 0
    assert [array[0] for array in client.get(refs)] == list(range(30))


def test_shared_memory_that_others_fill_is_done_without(
    open_cache: OpenCache, small_memory: Path
) -> None:
    directory = open_cache(budget=1 << 30, shared_root=small_memory)
    client = client_of(directory)
    (small_memory / "others").write_bytes(bytes((1 << 20) - 64 * KIB))
    ref = client.put(block(7))
    assert client.get(ref)[0] == 7
    assert directory.usage().disk_bytes > 100 * KIB


def test_full_disk_is_full_whatever_the_budget(open_cache: OpenCache, small_memory: Path) -> None:
    directory = open_cache(budget=150 * KIB, disk_budget=1 << 30, disk_root=small_memory)
    client = client_of(directory)

    def fill() -> None:
        for number in range(30):
            client.put(block(number), f"block/{number}")

    with pytest.raises(CacheFull, match="largest holders"):
        fill()
    with pytest.raises(CacheFull, match="largest holders"):
        client.put(np.zeros(1 << 20))
    assert client.get(Ref("block/0", 1, "test"))[0] == 0
    assert client.delete("block") > 5
    assert client.get(client.put(block(9)))[0] == 9


def test_vanished_shared_memory_loses_its_objects_and_nothing_else(open_cache: OpenCache) -> None:
    directory = open_cache(budget=250 * KIB)
    client = client_of(directory)
    refs = [client.put(block(number), f"block/{number}") for number in range(3)]
    shutil.rmtree(directory.places.shared)
    assert client.get(refs[0])[0] == 0  # on disk
    with pytest.raises(ObjectLost, match="object 'block/2' is lost: something removed its file /"):
        client.get(refs[2])
    assert client.get(client.put(block(4)))[0] == 4
    shutil.rmtree(directory.places.disk)
    with pytest.raises(AppError, match="can't write: its directory .* has vanished"):
        client.put(block(5))
