"""Passages on disk, memory-mapped: every process of a node reads the same pages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from forage.agent.types import Passage

_TEXT, _ENDS = "passages.bin", "passages.npy"


def write_passages(folder: Path, passages: Iterable[Passage]) -> None:
    """Write titles and texts as UTF-8 end to end, and where each ends (int64)."""
    ends, end = [0], 0
    with (folder / _TEXT).open("wb") as blob:
        for passage in passages:
            for text in (passage.title, passage.text):
                end += blob.write(text.encode())
                ends.append(end)
    np.save(folder / _ENDS, np.array(ends, np.int64))


class PassageStore:
    """Random access to the passages of a folder."""

    def __init__(self, folder: Path) -> None:
        """Map the files that `write_passages` left in `folder`."""
        self._ends = np.load(folder / _ENDS, mmap_mode="r")
        empty = self._ends[-1] == 0
        self._blob = b"" if empty else np.memmap(folder / _TEXT, np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __getitem__(self, position: int) -> Passage:
        start, middle, end = (int(at) for at in self._ends[2 * position : 2 * position + 3])
        title, text = self._blob[start:middle], self._blob[middle:end]
        return Passage(bytes(title).decode(), bytes(text).decode())
