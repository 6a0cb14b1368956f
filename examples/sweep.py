"""An evaluation sweep: one data set in the cache, many settings, results as they come.

Run `python examples/sweep.py`, on Ray with `--engine ray`.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from forage import app


@app.service(resreq="cpu=0.5", timeout=60)
class Evaluator:
    """Fits polynomials to the data, which every executor maps and none copies."""

    def __init__(self, data: app.Ref) -> None:
        self.x, self.y = app.get(data)

    def evaluate(self, degree: int, ridge: float) -> float:
        """Mean squared error on the held-out half."""
        if ridge < 0:
            raise ValueError(f"ridge must not be negative, and is {ridge}")
        features = np.vander(self.x, degree + 1)
        train, test = features[::2], features[1::2]
        normal = train.T @ train + ridge * np.eye(degree + 1)
        weights = np.linalg.solve(normal, train.T @ self.y[::2])
        return float(np.mean((test @ weights - self.y[1::2]) ** 2))


def main() -> None:
    """Sweep degrees and ridges, one impossible ridge among them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 20_000)
    y = np.sin(4 * x) + rng.normal(0, 0.1, len(x))
    scores: dict[tuple[int, float], float] = {}
    with app.init("sweep", engine=options.engine):
        evaluator = Evaluator.remote(app.put((x, y)))
        grid = itertools.product([1, 3, 5, 7, 9], [-1.0, 0.01, 10.0])
        settings = {evaluator.evaluate.remote(*setting): setting for setting in grid}
        for future in app.as_completed(settings):
            degree, ridge = settings[future]
            try:
                scores[degree, ridge] = future.result()
                print(f"degree {degree}, ridge {ridge:5}: error {scores[degree, ridge]:.4f}")
            except ValueError as error:  # the evaluator's own exception, with its own type
                print(f"degree {degree}, ridge {ridge:5}: {error}")
    degree, ridge = min(scores, key=lambda setting: scores[setting])
    print(f"best: degree {degree}, ridge {ridge}, error {scores[degree, ridge]:.4f}")


if __name__ == "__main__":
    main()
