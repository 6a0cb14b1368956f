"""The runtime beside plain Ray actors: calls, round trips, start-up, large arrays, appends.

Each system runs in a process of its own, one after the other, several rounds over; the table
holds medians. Run `python bench/app.py --help` for other sizes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import numpy as np

from forage import app
from forage.app import runtime

EXECUTORS = 4
PAYLOAD = b"x" * 100
PATIENCE_S = 180
STRIDE = 4096  # one read per page: an array counts as passed once all of it was touched

Numbers = dict[str, float]


class Target:
    """What every executor and actor holds."""

    def __init__(self) -> None:
        self.held: Any = None
        self.version = 0

    def echo(self, payload: bytes) -> bytes:
        """The smallest call."""
        return payload

    def touch(self, array: Any) -> int:
        """Read one byte of every page of an array, or of the one that a ref names."""
        value = app.get(array) if isinstance(array, app.Ref) else array
        return int(value[::STRIDE].sum())

    def follow(self, ref: Any) -> int:
        """Read what is new of an object; returns the bytes that this took."""
        before = runtime.current().cache.bytes_read
        update = app.fetch(ref, since=self.version)
        self.version = update.version
        self.held = [int(part[::STRIDE].sum()) for part in update.parts]
        return int(runtime.current().cache.bytes_read - before)

    def hold(self, array: Any) -> int:
        """Read an array that was put whole; returns its bytes."""
        self.held = int(array[::STRIDE].sum())
        return int(array.nbytes)


class Forage:
    """`Target` in four processes of one of the runtime's engines."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def start(self) -> None:
        """Start one executor and call it."""
        self.app = app.init("bench", engine=self.engine, resources=f"cpu={EXECUTORS + 1}")
        self.first = app.service(Target).options(max_executors=1).remote()
        self.first.echo.remote(PAYLOAD).result()

    def grow(self) -> None:
        """Have all executors there."""
        self.first.close()
        # A gang's broadcast reaches every executor; the elastic session shares calls out.
        target = app.service(Target)
        small = target.options(resreq="cpu=0.01", autoscale=False, warmup=EXECUTORS)
        self.gang = small.remote()
        self.gang.echo.broadcast(PAYLOAD).result()
        self.pool = target.options(warmup=EXECUTORS, max_executors=EXECUTORS).remote()
        self.burst(20 * EXECUTORS)
        while len(self._executors()) < EXECUTORS:
            time.sleep(0.05)

    def burst(self, calls: int) -> None:
        """Submit all calls at once and collect their results."""
        for future in [self.pool.echo.remote(PAYLOAD) for _ in range(calls)]:
            future.result()

    def paced(self, calls: int) -> None:
        """The same with one call in flight per executor."""
        self.burst(calls)  # the runtime itself does so

    def round_trip(self) -> None:
        """One call and its result."""
        self.pool.echo.remote(PAYLOAD).result()

    def share(self, array: Any) -> None:
        """Every executor touches one array that is put once."""
        self.shared = app.put(array)
        self.gang.touch.broadcast(self.shared).result()

    def unshare(self) -> None:
        """Free that array."""
        app.delete(self.shared)

    def append(self, base: Any, part: Any, timed: Callable[[Callable[[], Any]], float]) -> Numbers:
        """Add `part` to an object that all executors have; time and bytes until they have it."""
        ref = app.put(base)
        self.gang.follow.broadcast(ref).result()
        moved: list[int] = []

        def step() -> None:
            app.append(ref, part)
            moved[:] = self.gang.follow.broadcast(ref).result()

        return {"append_ms": 1e3 * timed(step), "append_mb": max(moved) / 1e6}

    def stop(self) -> None:
        """End everything."""
        self.app.close()

    def _executors(self) -> list[Any]:
        sessions = {one["session"]: one for one in app.status()["sessions"]}
        alive = sessions[self.pool.id]["executors"]
        return [executor for executor in alive if executor["phase"] in ("idle", "busy")]


class PlainRay:
    """`Target` in four actors, called as Ray's own documentation does; see `Forage`."""

    def start(self) -> None:
        import ray

        self.ray = ray
        ray.init(
            "local",
            num_cpus=EXECUTORS + 1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=2_000_000_000,
        )
        self.actor = ray.remote(num_cpus=1)(Target)
        self.actors = [self.actor.remote()]
        ray.get(self.actors[0].echo.remote(PAYLOAD))

    def grow(self) -> None:
        self.actors += [self.actor.remote() for _ in range(EXECUTORS - 1)]
        self.burst(20 * EXECUTORS)

    def burst(self, calls: int) -> None:
        actors = self.actors
        self.ray.get([actors[i % EXECUTORS].echo.remote(PAYLOAD) for i in range(calls)])

    def paced(self, calls: int) -> None:
        flying = {actor.echo.remote(PAYLOAD): actor for actor in self.actors}
        for _ in range(calls - EXECUTORS):
            (done,), _rest = self.ray.wait(list(flying))
            actor = flying.pop(done)
            self.ray.get(done)
            flying[actor.echo.remote(PAYLOAD)] = actor
        self.ray.get(list(flying))

    def round_trip(self) -> None:
        self.ray.get(self.actors[0].echo.remote(PAYLOAD))

    def share(self, array: Any) -> None:
        self.shared = self.ray.put(array)
        self.ray.get([actor.touch.remote(self.shared) for actor in self.actors])

    def unshare(self) -> None:
        del self.shared  # Ray frees it by itself

    def append(self, base: Any, part: Any, timed: Callable[[Callable[[], Any]], float]) -> Numbers:
        # Its objects have no versions: a value that has grown is put whole.
        moved: list[int] = []

        def step() -> None:
            ref = self.ray.put(np.concatenate([base, part]))
            moved[:] = self.ray.get([actor.hold.remote(ref) for actor in self.actors])

        return {"append_ms": 1e3 * timed(step), "append_mb": max(moved) / 1e6}

    def stop(self) -> None:
        self.ray.shutdown()


SYSTEMS: dict[str, Callable[[], Forage | PlainRay]] = {
    "Forage embedded": lambda: Forage("local"),
    "Forage on Ray": lambda: Forage("ray"),
    "plain Ray": PlainRay,
}

ROWS = (
    ("start to first result, ms", "start_ms", False),
    ("calls per second, queued at once", "burst_hz", True),
    ("calls per second, one in flight each", "paced_hz", True),
    ("round trip p50, ms", "p50_ms", False),
    ("round trip p99, ms", "p99_ms", False),
    ("array to 4 executors, ms", "share_ms", False),
    ("1 % appended, until all 4 have it, ms", "append_ms", False),
    ("1 % appended, MB read by each", "append_mb", False),
)
"""Title, name, and whether more is better."""


def seconds(
    action: Callable[[], Any], repeats: int = 1, *, after: Callable[[], None] | None = None
) -> float:
    """The median time of an action, without that of `after`."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
        if after is not None:
            after()
    return median(times)


def measure(system: Forage | PlainRay, options: argparse.Namespace) -> Numbers:
    """All numbers of one system, in this process."""
    numbers = {"start_ms": 1e3 * seconds(system.start)}
    system.grow()
    numbers["burst_hz"] = options.calls / seconds(lambda: system.burst(options.calls), 3)
    numbers["paced_hz"] = options.calls / seconds(lambda: system.paced(options.calls), 3)
    trips = [1e3 * seconds(system.round_trip) for _ in range(options.trips)]
    cuts = quantiles(trips, n=100)
    numbers |= {"p50_ms": cuts[49], "p99_ms": cuts[98]}
    array = np.ones(options.megabytes * 1_000_000, dtype=np.uint8)
    numbers["share_ms"] = 1e3 * seconds(lambda: system.share(array), 5, after=system.unshare)
    numbers |= system.append(array, array[: len(array) // 100], lambda step: seconds(step, 5))
    system.stop()
    return numbers


def run_apart(name: str, arguments: list[str]) -> Numbers | str:
    """Measure in a new process; the last line it printed to stderr where that failed."""
    command = [sys.executable, __file__, "--system", name, *arguments]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryFile("w+") as complaints:  # Ray's daemons would hold a pipe open
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env=environment,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {PATIENCE_S} s"
        if done.returncode:
            complaints.seek(0)
            said = complaints.read().strip().splitlines()
            return said[-1] if said else f"exit code {done.returncode}"
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers


def print_table(results: dict[str, list[Numbers]], options: argparse.Namespace) -> None:
    """Medians of all rounds, and how they compare with plain Ray's."""
    names = [name for name in SYSTEMS if results[name]]
    middle = {
        name: {key: median(round[key] for round in results[name]) for _, key, _ in ROWS}
        for name in names
    }
    others = [name for name in names if name != "plain Ray"] if "plain Ray" in names else []
    print(
        f"{os.cpu_count()} cores; {options.calls} calls, {options.trips} round trips, "
        f"an array of {options.megabytes} MB; medians of {options.rounds} rounds\n"
    )
    titles = [*names, *(f"{name} : plain Ray" for name in others)]
    print(f"|  | {' | '.join(titles)} |")
    print(f"| --- {'| ---: ' * len(titles)}|")
    for title, key, _ in ROWS:
        cells = [f"{middle[name][key]:,.{0 if middle[name][key] >= 100 else 2}f}" for name in names]
        cells += [f"{middle[name][key] / middle['plain Ray'][key]:.2f}" for name in others]
        print(f"| {title} | {' | '.join(cells)} |")


def main() -> None:
    """Run all systems and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--trips", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=200, help="of the array")
    parser.add_argument("--system", choices=list(SYSTEMS), help="measure one, print JSON")
    options = parser.parse_args()
    if options.system:
        print(json.dumps(measure(SYSTEMS[options.system](), options)))
        return
    sizes = [f"--{name}={getattr(options, name)}" for name in ("calls", "trips", "megabytes")]
    results: dict[str, list[Numbers]] = {name: [] for name in SYSTEMS}
    missing: dict[str, str] = {}
    for _ in range(options.rounds):
        for name in SYSTEMS:
            if name in missing:
                continue
            if "Ray" in name and importlib.util.find_spec("ray") is None:
                missing[name] = "needs `pip install 'forage-rl[ray]'`"
                continue
            numbers = run_apart(name, sizes)
            if isinstance(numbers, str):
                missing[name] = numbers
            else:
                results[name].append(numbers)
    print_table(results, options)
    for name, reason in missing.items():
        print(f"\n{name}: not measured ({reason})")


if __name__ == "__main__":
    main()
