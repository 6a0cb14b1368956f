"""Bringing an engine to the weight version that a call asks for."""

from __future__ import annotations

import time
from dataclasses import dataclass

from forage import app
from forage.model.memory import clear_when_full
from forage.rollout.batches import Batches
from forage.rollout.memory import STAGING
from forage.weights.subscribe import DigestMismatch, Subscriber


@dataclass(frozen=True, slots=True)
class Synced:
    """What it took to hold a version.

    Attributes:
        seconds: in all: fetching, staging, waiting for samples to end, applying.
        pause_s: of them, those in which nothing could be generated.
        nbytes: bytes fetched.
    """

    seconds: float = 0.0
    pause_s: float = 0.0
    nbytes: int = 0


class WeightSync:
    """Follows the published policy; used by one call at a time."""

    def __init__(self, batches: Batches, manifest: app.Ref) -> None:
        """`manifest` is where the published weights' manifest lies."""
        self._batches = batches
        self._tensors = batches.engine.tensors()
        device = next(iter(self._tensors.values())).device
        self._subscriber = Subscriber(manifest, device=device, room=STAGING)

    def hold(self, version: int) -> Synced:
        """Hold exactly `version`: fetched and staged while others generate, then applied.

        Raises:
            VersionUnavailable: if another version is the published one.
            UserError: if the GPU's memory runs out.
        """
        if self._subscriber.version == version:
            return Synced()
        started, before = time.perf_counter(), self._subscriber.bytes_fetched
        with clear_when_full(f"taking in weight version {version}", "lower --gpu-memory"):
            try:
                pause_s = self._apply(version)
            except DigestMismatch:
                # It holds no version now and fetches whole tensors.
                pause_s = self._apply(version)
        fetched = self._subscriber.bytes_fetched - before
        return Synced(time.perf_counter() - started, pause_s, fetched)

    def _apply(self, version: int) -> float:
        staged = self._subscriber.fetch(version)

        def write() -> None:
            self._subscriber.apply(staged, self._tensors)
            try:
                self._batches.engine.weights_changed()
            except BaseException:
                # Something computed with other weights may be left.
                self._subscriber.forget()
                raise

        return self._batches.change(write)
