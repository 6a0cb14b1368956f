"""A cache for each test: a directory and the driver's client, removed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_peers import Peer

from forage.app.cache import Client, Directory, Store, open_directory


@pytest.fixture
def open_cache(tmp_path: Path) -> Iterator[Callable[..., Directory]]:
    """Open caches with other budgets than the default ones."""
    directories: list[Directory] = []

    def open_one(**options: Any) -> Directory:
        directories.append(open_directory("test", **{"disk_root": tmp_path, **options}))
        return directories[-1]

    yield open_one
    for directory in directories:
        directory.close()


@pytest.fixture
def directory(open_cache: Callable[..., Directory]) -> Directory:
    """Return the directory of a cache with the default budgets."""
    return open_cache()


@pytest.fixture
def client(directory: Directory) -> Client:
    """Return the driver's client of `directory`."""
    return Client(Store(directory.places, "driver"), directory.call)


@pytest.fixture
def start_peer() -> Iterator[Callable[[Directory, str], Peer]]:
    """Start processes that use a directory's cache; they are killed afterwards."""
    peers: list[Peer] = []

    def start(directory: Directory, name: str) -> Peer:
        peers.append(Peer(directory, name))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()
