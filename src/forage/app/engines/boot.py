"""First code of an executor's process: takes over the driver's import path, then serves.

Run as a file, so that nothing of the user's program (its `__main__` above all) runs again.
"""

import json
import os
import socket
import sys


def boot() -> None:
    """Read the import path (a length-prefixed JSON list) from the inherited socket and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    stream = sock.makefile("rb")
    sys.path[:] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    sys.argv = ["forage-executor"]
    # Output goes to a file: whole lines at once, so that the last ones are there after a crash.
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    from forage.app.executor import serve

    serve(sock, stream, int(os.environ["FORAGE_SERIAL"]))


if __name__ == "__main__":
    boot()
