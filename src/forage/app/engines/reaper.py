"""Cleans up after a driver that died without doing so: ends its processes, removes its files.

A process of its own. It holds one end of a pipe; when the driver is gone, whatever ended it, the
pipe closes. Run as a file with no site packages, so that it is up within milliseconds.

Usage: reaper.py MARKER FOLDER...
"""

import os
import select
import shutil
import sys
import time

_PATIENCE_S = 10.0


def main() -> None:
    """Wait for the driver's end, or for its word that there is nothing to do."""
    marker, folders = sys.argv[1], sys.argv[2:]
    driver = os.getppid()
    # A child that the driver forked may hold the pipe open: then the change of parent tells.
    while os.getppid() == driver:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable:
            if os.read(0, 1):  # a clean shutdown
                return
            break
    deadline = time.monotonic() + _PATIENCE_S
    while kill_marked(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def kill_marked(marker: str) -> int:
    """SIGKILL every process whose environment holds `marker`; return how many there were.

    Descendants inherit it, also those that left the executor's session and process group.
    """
    wanted, found = marker.encode(), 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted not in file.read().split(b"\0"):
                    continue
            os.kill(int(entry), 9)
        except OSError:  # gone already, or another user's
            continue
        found += 1
    return found


if __name__ == "__main__":
    main()
