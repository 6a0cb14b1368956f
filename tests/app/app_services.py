"""Services that the runtime's tests run. Imports little: every executor imports it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forage import app


class UserError(Exception):
    """An exception with a constructor of its own."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}: {hint}")
        self.code = code
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _user_error, (self.code, self.hint)


def _user_error(code: int, hint: str) -> UserError:
    return UserError(code, hint=hint)


class Unpicklable(Exception):
    """An exception that can't travel."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


@app.service
class Worker:
    """Does one of everything."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def add(self, amount: int = 1) -> int:
        self.total += amount
        return self.total

    def size(self) -> int:
        """How much it was started with."""
        return int(self.total.size)  # type: ignore[attr-defined]

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs) if kwargs or len(args) != 1 else args[0]

    def double(self, value: Any) -> Any:
        return value * 2

    def kind(self, value: Any) -> tuple[str, bool]:
        """The type of an argument, and whether it can be written to."""
        flags = getattr(value, "flags", None)
        return type(value).__name__, bool(flags is not None and flags.writeable)

    def pid(self) -> int:
        return os.getpid()

    def place(self) -> app.Context:
        return app.context()

    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def main_file(self) -> str | None:
        return getattr(sys.modules["__main__"], "__file__", None)

    def fail(self, code: int) -> None:
        raise UserError(code, hint="as asked")

    def fail_unpicklable(self) -> None:
        raise Unpicklable

    def leave(self) -> None:
        sys.exit(7)

    def die(self, code: int = 3) -> None:
        sys.stdout.write("last words\n")
        os._exit(code)

    def die_once(self, marker: str) -> int:
        """Die the first time; say how often it was begun."""
        with open(marker, "a") as file:
            file.write("x")
        if Path(marker).stat().st_size == 1:
            os._exit(3)
        return Path(marker).stat().st_size

    def sleep(self, seconds: float, marker: str | None = None) -> int:
        if marker is not None:
            with open(marker, "a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        return os.getpid()

    def wait_for(self, path: str) -> int:
        """Block until a file appears."""
        while not Path(path).exists():
            time.sleep(0.01)
        return os.getpid()

    def meet(self, folder: str, parties: int) -> bool:
        """True once `parties` calls are here at the same time."""
        Path(folder, f"{os.getpid()}-{threading.get_ident()}").touch()
        deadline = time.monotonic() + 20
        while len(os.listdir(folder)) < parties:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    async def meet_async(self, folder: str, number: int, parties: int) -> bool:
        Path(folder, str(number)).touch()
        deadline = time.monotonic() + 20
        while len(os.listdir(folder)) < parties:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def allocate(self, megabytes: int) -> int:
        self.hoard = bytearray(os.urandom(1 << 20) * megabytes)
        time.sleep(10)
        return len(self.hoard)

    def unpicklable(self) -> Any:
        return {"lock": threading.Lock()}

    def spawn_child(self) -> int:
        """A grandchild that leaves the executor's session."""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return child.pid

    @app.method(timeout=0.5)
    def slow(self) -> None:
        time.sleep(30)


@app.service
class Caller:
    """Calls other sessions from inside an executor."""

    def call(self, session: app.Session, method: str, *args: Any) -> Any:
        return getattr(session, method).remote(*args).result()

    def call_many(self, session: app.Session, count: int) -> list[int]:
        futures = [session.double.remote(n) for n in range(count)]
        return sorted(future.result() for future in app.as_completed(futures))

    def call_in_threads(self, session: app.Session, count: int) -> list[int]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda n: session.double.remote(n).result(), range(count)))

    async def call_async(self, session: app.Session, value: int) -> int:
        return await asyncio.wrap_future(session.double.remote(value))

    def chain(self, session: app.Session, value: int) -> int:
        return session.double.remote(session.double.remote(value)).result()

    def pass_array(self, session: app.Session, array: Any) -> float:
        return float(session.double.remote(array).result().sum())

    def broadcast(self, session: app.Session, value: int) -> list[int]:
        return session.add.broadcast(value).result()

    def put(self, value: Any, key: str | None = None) -> app.Ref:
        return app.put(value, key)

    def append(self, ref: app.Ref, part: Any) -> app.Ref:
        return app.append(ref, part)

    def get(self, ref: app.Ref) -> Any:
        return app.get(ref)

    def open(self) -> None:
        Worker.remote()

    def start_app(self) -> None:
        app.init("inner")

    def square(self, value: int) -> int:
        return square.remote(value).result()

    def begin_counting(self, session: app.Session, seconds: float) -> None:
        """Leave a thread behind that calls another session, one call after the other."""
        self.counted = 0
        end = time.monotonic() + seconds

        def count() -> None:
            while time.monotonic() < end:
                self.counted += session.double.remote(1).result() // 2
                time.sleep(0.001)

        self.counting = threading.Thread(target=count)
        self.counting.start()

    def counted_while_asleep(self, seconds: float) -> int:
        before = self.counted
        time.sleep(seconds)
        return self.counted - before

    def count_to_the_end(self) -> int:
        self.counting.join()
        return self.counted

    def cancel(self, session: app.Session, marker: str) -> tuple[bool, bool]:
        """Whether a queued and a running call can be cancelled."""
        running = session.sleep.remote(1.0, marker)
        while not Path(marker).exists():
            time.sleep(0.01)
        queued = session.add.remote()
        return queued.cancel(), running.cancel()

    def count_down(self, own: app.Session, depth: int) -> int:
        return 0 if depth == 0 else 1 + own.count_down.remote(own, depth - 1).result()


@app.service
class Broken:
    """Can't be constructed, or only after a number of attempts."""

    def __init__(self, marker: str, failures: int, how: str = "raise") -> None:
        with open(marker, "a") as file:
            file.write("x")
        if Path(marker).stat().st_size <= failures:
            if how == "die":
                os._exit(9)
            raise UserError(5, hint="constructor")

    def ping(self) -> str:
        return "pong"


@app.service
class Rank:
    """A gang's member."""

    def __init__(self, fail_rank: int | None = None) -> None:
        self.total = 0
        if fail_rank == app.context().rank:
            raise UserError(6, hint=f"rank {fail_rank}")

    def add(self, amount: int) -> tuple[int, int]:
        self.total += amount
        return app.context().rank, self.total

    def place(self) -> app.Context:
        return app.context()

    def pid(self) -> int:
        return os.getpid()

    def visible(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def fail_on(self, rank: int, hang: float = 0.0) -> int:
        if app.context().rank == rank:
            raise UserError(rank, hint="on this rank")
        time.sleep(hang)
        return rank

    def die_on(self, rank: int) -> int:
        if app.context().rank == rank:
            sys.stdout.write(f"rank {rank} says goodbye\n")
            os._exit(4)
        time.sleep(30)
        return rank

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def listen(self) -> str:
        """Rank 0 opens the rendezvous as a process group's store would; all meet there."""
        import socket

        here = app.context()
        host, port = here.rendezvous.split(":")
        if here.rank == 0:
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((host, int(port)))
                server.listen()
                for _ in range(here.size - 1):
                    server.accept()[0].close()
        else:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
                    break
                time.sleep(0.02)
        return here.rendezvous


@app.service
def square(value: int) -> int:
    """A function service."""
    return value * value


@app.service
async def square_later(value: int) -> int:
    """An async function service."""
    await asyncio.sleep(0.01)
    return value * value


@app.service
def echo(value: Any) -> Any:
    """Gives back what it gets."""
    return value
