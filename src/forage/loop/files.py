"""Files that a death in mid-write leaves whole: JSON lines, texts replaced in one move; paths."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forage.errors import UserError


def absolute(name: str) -> str:
    """A path for processes that stand elsewhere; what isn't one (a hub name, a URL) stays."""
    return os.path.abspath(name) if os.path.exists(name) else name


def check_writable(path: Path, flag: str) -> None:
    """Raise `UserError` unless `path` can be made, or written in."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{flag} {path}: {there} is no folder that can be written in")


def append_json(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line and wait until it is on disk. Numbers that JSON has not (NaN) become null."""
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def to_json(record: Mapping[str, Any]) -> str:
    """One line of strict JSON."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)


def read_json(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line without its end is a torn write and left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of later steps, and a torn one, as if they had never been written."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    kept = [line for line in kept if json.loads(line)["step"] <= step]
    write_whole(path, "".join(line + "\n" for line in kept))


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one move: a reader sees the old text or the new, never a part."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
