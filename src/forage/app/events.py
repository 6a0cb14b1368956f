"""The record of what the runtime did, one JSON object per line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to a file: `time` (seconds since the epoch), `event`, and what it is about."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, event: str, **details: Any) -> None:
        line = {"time": round(time.time(), 3), "event": event, **details}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
