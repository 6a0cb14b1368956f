"""Estimates pi by throwing darts: an elastic function that grows with the calls that wait.

Run `python examples/pi.py`, on Ray with `--engine ray`.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

import numpy as np

from forage import app


@app.service(resreq="cpu=0.5")
def throw(darts: int, seed: int) -> tuple[int, str]:
    """How many of `darts` in the unit square hit the quarter circle, and who threw them."""
    x, y = np.random.default_rng(seed).random((2, darts))
    return int(np.count_nonzero(x * x + y * y <= 1)), app.context().executor


def main() -> None:
    """Throw, and watch the hits come in from whichever executor is free."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--darts", type=int, default=500_000, help="in each call")
    options = parser.parse_args()

    with app.init("pi", engine=options.engine):
        # No executor is there yet. Calls that wait make the session grow to what fits; each
        # executor that is up takes whichever call is next.
        futures = [throw.remote(options.darts, seed) for seed in range(options.calls)]
        hits, throwers = 0, Counter[str]()
        for done, future in enumerate(app.as_completed(futures), start=1):
            count, thrower = future.result()
            hits += count
            throwers[thrower] += 1
            if done % 10 == 0 or done == options.calls:
                print(f"{done:4} calls: pi is about {4 * hits / (done * options.darts):.5f}")

    estimate = 4 * hits / (options.calls * options.darts)
    shares = ", ".join(f"{name} {calls}" for name, calls in sorted(throwers.items()))
    print(f"pi = {estimate:.5f}, off by {abs(estimate - math.pi):.5f}; calls by executor: {shares}")


if __name__ == "__main__":
    main()
