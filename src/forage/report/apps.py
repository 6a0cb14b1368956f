"""What `forage status` shows: the running app of a folder, read from files alone."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forage.app.snapshot import STATUS_FILE
from forage.errors import UserError
from forage.report.numbers import seconds, size

SILENT_S = 10.0
"""Age at which a status that should be renewed every second says that its driver is gone."""

Status = Mapping[str, Any]


def find_app(run: str | None) -> Path:
    """The status file of a run directory; of None, the newest of an app near here.

    Near is this folder, two levels down, and the temporary folders of apps without one.

    Raises:
        UserError: there is none.
    """
    if run is not None:
        path = Path(run) / STATUS_FILE
        if path.exists():
            return path
        if not path.parent.is_dir():
            raise UserError(f"{run} is no folder; give the run directory of an app")
        raise UserError(f"no app runs in {run}: it has no {STATUS_FILE}, which a running app keeps")
    found = sorted(_near(), key=_renewed)
    if not found:
        raise UserError(f"no app runs near here: no {STATUS_FILE} found; name a run directory")
    return found[-1]


def read_status(path: Path) -> Status:
    """The status in a file; raises `UserError` where the app has just ended."""
    try:
        status: Status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"the app of {path.parent} has just ended") from None
    except ValueError as error:
        raise UserError(f"{path} is no status of an app: {error}") from None
    return status


def status_lines(path: Path, status: Status, *, executors: bool = False) -> list[str]:
    """The app, its resources and cache, and a line per session; `executors`: one for each."""
    cache = status["cache"]
    lines = [
        f"{status['app']} in {path.parent}: engine {status['engine']}, "
        f"driver {status['pid']} on {status['host']}",
        f"free {status['free']} of {status['total']}",
        f"cache: {cache['objects']} objects, {size(cache['shared_bytes'])} of "
        f"{size(cache['budget'])} in memory, {size(cache['disk_bytes'])} on disk",
    ]
    age = time.time() - status["time"]
    if age > SILENT_S:
        lines.insert(1, f"silent for {seconds(age)}: its driver was killed, or hangs")
    if status["waiting"]:
        lines.append(f"waiting for resources: {', '.join(status['waiting'])}")
    lines += ["", *_table([_TITLES, *(_row(session) for session in status["sessions"])])]
    for session in status["sessions"] if executors else ():
        lines += ["", *_table([_executor(session, one) for one in session["executors"]])]
    return lines


_TITLES = ("session", "kind", "state", "pending", "running", "executors", "each holds")


def _row(session: Mapping[str, Any]) -> Sequence[str]:
    phases = Counter(executor["phase"] for executor in session["executors"])
    counts = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    kind = session["kind"]
    if session["generation"]:
        kind += f" (generation {session['generation']})"
    return (
        session["session"],
        kind,
        session["state"],
        str(session["pending"]),
        str(session["running"]),
        counts or "none",
        session["resreq"],
    )


def _executor(session: Mapping[str, Any], one: Mapping[str, Any]) -> Sequence[str]:
    rank = f"rank {one['rank']}" if session["kind"] == "gang" else ""
    process = f"pid {one['pid']}"
    gpus = f"gpu {','.join(one['gpus'])}" if one["gpus"] else ""
    return one["executor"], rank, one["phase"], process, gpus, ", ".join(one["calls"])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _near() -> Iterator[Path]:
    for pattern in ("", "*/", "*/*/"):
        yield from Path().glob(pattern + STATUS_FILE)
    yield from Path(tempfile.gettempdir()).glob(f"forage-*/{STATUS_FILE}")


def _renewed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its app has just ended
        return 0.0
