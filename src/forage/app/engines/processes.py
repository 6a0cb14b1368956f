"""Processes of one executor: how it ended, what it wrote last, what memory it holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_TAIL_BYTES = 8192
_TAIL_LINES = 20
_REAPER = Path(__file__).with_name("reaper.py")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """What tells numerical libraries how many threads they may start, and how these wait.

    Threads that wait for the next piece of work spin only so long as the gaps between
    operations last (about 0.1 ms); beyond that they would take the cores of other executors.
    """
    spins = os.environ.get("GOMP_SPINCOUNT", "3000")
    return {**dict.fromkeys(_THREAD_VARIABLES, str(threads)), "GOMP_SPINCOUNT": spins}


def start_reaper(token: str, folders: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start what cleans up on this machine if this process dies; any input dismisses it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_REAPER), f"FORAGE_APP={token}", *map(str, folders)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
    )


def dismiss_reaper(reaper: subprocess.Popen[bytes]) -> None:
    """Tell a reaper that there is nothing to do, and wait until it is gone."""
    with suppress(BrokenPipeError):
        reaper.communicate(b"x")


def describe_exit(status: int) -> str:
    """A `Popen.returncode` in words: `exit code 3`, `signal SIGKILL`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def log_tail(path: Path) -> str:
    """The last lines of a log file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def anonymous_memory(leaders: set[int]) -> dict[int, int]:
    """Bytes of anonymous memory of each leader's process session and descendants.

    Mapped files, shared memory among them, don't count: they belong to nobody alone.
    """
    parents: dict[int, tuple[int, int]] = {}  # pid: (parent, session)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _read(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if fields:
                parents[int(entry)] = (int(fields[1]), int(fields[3]))
    used = dict.fromkeys(leaders, 0)
    for pid in parents:
        leader = _leader_of(pid, parents, leaders)
        if leader is not None:
            used[leader] += _anonymous(pid)
    return used


def _leader_of(pid: int, parents: dict[int, tuple[int, int]], leaders: set[int]) -> int | None:
    while pid in parents:
        if pid in leaders:
            return pid
        parent, session = parents[pid]
        if session in leaders:
            return session
        pid = parent
    return None


def _anonymous(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
