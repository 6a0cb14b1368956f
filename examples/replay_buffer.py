"""A replay buffer on the object cache: players append, a learner fetches what it has not seen.

Run `python examples/replay_buffer.py`, on Ray with `--engine ray`.
"""

from __future__ import annotations

import argparse

import numpy as np

from forage import app

PAYOUT = np.array([0.2, 0.5, 0.8, 0.4])  # of each arm of a slot machine


@app.service(resreq="cpu=0.2", max_executors=3)
def play(buffer: app.Ref, estimates: list[float], seed: int) -> None:
    """Append an episode of 2000 pulls, mostly of what looks best, as (arm, reward) rows."""
    rng = np.random.default_rng(seed)
    explores = rng.random(2000) < 0.3
    arms = np.where(explores, rng.integers(0, len(PAYOUT), 2000), np.argmax(estimates))
    app.append(buffer, np.stack([arms, rng.random(2000) < PAYOUT[arms]], axis=1))


@app.service(resreq="cpu=0.2", autoscale=False)
class Learner:
    """Estimates every arm's payout from all that was ever played."""

    def __init__(self, arms: int) -> None:
        self.seen, self.pulls, self.wins = 0, np.zeros(arms), np.zeros(arms)

    def learn(self, buffer: app.Ref) -> tuple[list[float], int, int]:
        """Read only what is new; returns estimates, version and how many episodes were new."""
        update = app.fetch(buffer, since=self.seen)
        self.seen = update.version
        for part in update.parts:
            np.add.at(self.pulls, part[:, 0], 1)
            np.add.at(self.wins, part[:, 0], part[:, 1])
        return (self.wins / np.maximum(self.pulls, 1)).tolist(), update.version, len(update.parts)


def main() -> None:
    """Play five rounds of six episodes, learning after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    options = parser.parse_args()
    with app.init("replay-buffer", engine=options.engine):
        learner, estimates = Learner.remote(len(PAYOUT)), [0.0] * len(PAYOUT)
        buffer = app.put("episodes follow as parts")
        for seeds in np.arange(30).reshape(5, 6).tolist():
            app.get([play.remote(buffer, estimates, seed) for seed in seeds])
            estimates, version, new = learner.learn.remote(buffer).result()
            print(f"version {version:2}: {new} new episodes, estimates {np.round(estimates, 2)}")
        print(f"best arm: {np.argmax(estimates)}")


if __name__ == "__main__":
    main()
