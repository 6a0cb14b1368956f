"""A parameter server and gradient workers: futures as arguments chain calls without waiting.

Run `python examples/parameter_server.py`, on Ray with `--engine ray`.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from forage import app

TRUTH = np.array([3.0, -1.0, 0.5, 2.0])


# State that changes must not change twice: a gang's calls run in order and are never retried.
@app.service(resreq="cpu=0.2", autoscale=False)
class Server:
    """Holds the weights of a linear model."""

    def __init__(self, size: int) -> None:
        self.weights = np.zeros(size)

    def read(self) -> NDArray[np.float64]:
        """Weights as they are now."""
        return self.weights

    def apply(self, gradient: NDArray[np.float64]) -> float:
        """Take a step; returns how far the weights still are from the truth."""
        self.weights = self.weights - 0.1 * gradient
        return float(np.linalg.norm(self.weights - TRUTH))


@app.service(resreq="cpu=0.2", max_executors=4)
def gradient(weights: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Gradient of the mean squared error on a fresh batch of noisy measurements."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(64, len(weights))), rng.normal(0, 0.1, 64)
    return np.asarray(x.T @ (x @ (weights - TRUTH) - noise) / 64)


def main() -> None:
    """Keep four gradients under way; each step uses weights that may be a little old."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    with app.init("parameter-server", engine=parser.parse_args().engine):
        server, steps = Server.remote(len(TRUTH)), list[Future[float]]()
        for step in range(81):
            steps.append(server.apply.remote(gradient.remote(server.read.remote(), step)))
            distance = steps[max(0, step - 3)].result()
            if step % 20 == 0:
                print(f"step {step:2}: about {distance:.4f} from the truth")


if __name__ == "__main__":
    main()
