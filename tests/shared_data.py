"""Where the data of outside projects lies that tests read and the repository doesn't hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_file(name: str) -> Path:
    """The path of a shared data file; skips the test where it is absent."""
    path = _FOLDER / name
    if not path.exists():
        pytest.skip(f"needs {name} in ../shared/data beside the repository")
    return path


def vectors(name: str) -> Any:
    """The content of a JSON file of test vectors; skips the test where it is absent."""
    return json.loads(shared_file(f"vectors/{name}").read_text(encoding="utf-8"))
