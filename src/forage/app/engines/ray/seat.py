"""An executor on a cluster node: what runs in a Ray actor's process.

The actor's one method takes the process over: it looks after the import path, starts the witness,
calls the driver back and then serves it as an embedded executor does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from forage.app import executor
from forage.app.packaging import missing
from forage.app.wire import frame

if TYPE_CHECKING:
    from forage.app.engines.witness import Orders

_WITNESS = Path(__file__).parents[1] / "witness.py"


class Seat(TypedDict):
    """What an executor needs to know to begin. Plain data: it travels before any import."""

    serial: int
    marker: str  # `NAME=value` for its environment, by which its descendants are found
    host: str
    port: int
    greetings: tuple[bytes, bytes]  # of the executor and of its witness
    mem: int  # bytes of anonymous memory that it may hold; 0 is no limit
    requirements: tuple[str, ...]  # what must be installed


class Unfit(NamedTuple):
    """An executor's last message: why it has to go."""

    reason: str


def take(seat: Seat) -> None:
    """Serve the driver in this process until it says that it is over."""
    import ray

    here = ray.util.get_node_ip_address()
    gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
    name, _, value = seat["marker"].partition("=")
    os.environ |= {"CUDA_VISIBLE_DEVICES": gpus, name: value}
    sys.argv = ["forage-executor"]
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # the group is killed with this process
    _start_witness(seat)
    with socket.create_connection((seat["host"], seat["port"])) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.sendall(seat["greetings"][0])
        lacking = missing(seat["requirements"])
        if lacking:
            reason = f"node {here} lacks {', '.join(lacking)}"
            remedy = "install it there, or let init(install=True) do so"
            sock.sendall(frame(Unfit(f"{reason}; {remedy}")))
            return
        executor.serve(sock, sock.makefile("rb"), seat["serial"], here)


def _start_witness(seat: Seat) -> None:
    """Hand standard output and error, and the news of this process's end, to a witness."""
    output, ours = os.pipe()
    pidfd = os.pidfd_open(os.getpid())
    orders: Orders = {
        "host": seat["host"],
        "port": seat["port"],
        "greeting": seat["greetings"][1].hex(),
        "pidfd": pidfd,
        "output": output,
        "pid": os.getpid(),
        "marker": seat["marker"],
        "mem": seat["mem"],
    }
    unmarked = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-E", "-S", "-s", str(_WITNESS)],
        stdin=subprocess.PIPE,
        pass_fds=[output, pidfd],
        start_new_session=True,
        env=unmarked,
        cwd="/",
    )
    assert process.stdin is not None
    with process.stdin as orders_in:
        orders_in.write(json.dumps(orders).encode())
    process.wait()  # it goes on in a child of its own
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(ours, descriptor)
    for descriptor in (output, ours, pidfd):
        os.close(descriptor)
    # Ray's own streams buffer and mark what is written; the witness wants whole lines at once.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
