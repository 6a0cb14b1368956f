"""What runs now, for other processes to read: a file that the driver renews every second.

Its age tells whether the driver lives: one that was killed leaves the file behind, but stops
renewing it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"
"""Its name in the run directory."""

RENEWED_S = 1.0
"""Seconds between two renewals."""

_log = logging.getLogger("forage.app")


class StatusFile:
    """Keeps `status.json` of a run directory; readers never see half of one."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / STATUS_FILE
        self._writing = run_dir / f".{STATUS_FILE}"
        self._failing = False

    def renew(self, status: dict[str, Any]) -> None:
        """Write `status` with the time, host and process; a failure to is logged, once."""
        line = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid(), **status}
        try:
            self._writing.write_text(json.dumps(line) + "\n", encoding="utf-8")
            os.replace(self._writing, self._path)
        except OSError as error:  # a full disk must not end the app
            if not self._failing:
                _log.warning("can't write %s: %s", self._path, error)
            self._failing = True
        else:
            self._failing = False

    def remove(self) -> None:
        """Remove it: the app has ended in order."""
        for path in (self._path, self._writing):
            path.unlink(missing_ok=True)
