"""Question files as tests write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def plain(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n}?", "answer": f"number {n}"} for n in range(count)]


def write(path: Path, records: list[dict[str, Any]]) -> str:
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)
