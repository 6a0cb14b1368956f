"""Drive samples through an engine: draw, search on the side, read, go on.

A sample that searches leaves the batch until its passages are there; the others go on drawing.
With an in-process retriever passages join at fixed steps: which rows share a pass changes the
last bits of their logits, so that only then a run is reproducible. With a remote one they join as
they come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from forage.agent.retrieval import RetrievalError, Retriever
from forage.agent.types import Passage
from forage.rollout.engine import Engine
from forage.rollout.sample import Sample, State

JOIN_EVERY = 4
"""Engine steps between joins of in-process searches."""


@dataclass(slots=True)
class Search:
    """A search under way for the sample in `row`."""

    row: int
    sample: Sample
    found: Future[tuple[list[Passage], float]]


class Collector:
    """Runs samples to their ends, at most `max_batch` at a time."""

    def __init__(
        self,
        engine: Engine,
        retriever: Retriever,
        pool: ThreadPoolExecutor,
        *,
        top_k: int,
        max_batch: int,
        version: int,
    ) -> None:
        """`version` is the weight version that every drawn token is marked with."""
        self._engine = engine
        self._retriever = retriever
        self._pool = pool
        self._top_k = top_k
        self._version = version
        self._free = list(range(max_batch - 1, -1, -1))
        self._running: dict[int, Sample] = {}
        self._searches: list[Search] = []

    def run(self, work: Iterable[tuple[Sample, list[int], np.uint64 | None]]) -> None:
        """Take every (sample, prompt, stream) to its end."""
        waiting = deque(work)
        steps = 0
        while waiting or self._running or self._searches:
            while waiting and self._free:
                self._admit(*waiting.popleft())
            for draw in self._engine.step():
                sample = self._running[draw.row]
                self._follow(draw.row, sample, sample.take(draw.token, draw.logprob, self._version))
            steps += 1
            self._join(steps)

    def _admit(self, sample: Sample, prompt: list[int], stream: np.uint64 | None) -> None:
        if sample.state is State.ENDED:
            return
        row = self._free.pop()
        self._running[row] = sample
        self._engine.start(row, prompt, stream)

    def _follow(self, row: int, sample: Sample, state: State) -> None:
        if state is State.SEARCHING:
            self._engine.pause(row)
            del self._running[row]
            self._searches.append(
                Search(row, sample, self._pool.submit(self._search, sample.query))
            )
        elif state is State.ENDED:
            self._running.pop(row, None)
            self._engine.finish(row)
            self._free.append(row)

    def _search(self, query: str) -> tuple[list[Passage], float]:
        started = time.perf_counter()
        found = self._retriever.search(query, self._top_k) if query else []
        return found, (time.perf_counter() - started) * 1e3

    def _join(self, steps: int) -> None:
        """Let samples whose search has ended read what it found, in the order of asking."""
        if not self._searches:
            return
        if self._retriever.in_process:
            if steps % JOIN_EVERY and self._running:
                return
            wait([search.found for search in self._searches])
        elif not self._running:
            wait([search.found for search in self._searches], return_when=FIRST_COMPLETED)
        done = [search for search in self._searches if search.found.done()]
        self._searches = [search for search in self._searches if search not in done]
        for search in done:
            self._resume(search)

    def _resume(self, search: Search) -> None:
        row, sample = search.row, search.sample
        try:
            passages, milliseconds = search.found.result()
        except RetrievalError as error:
            sample.fail(str(error))
        else:
            ids = sample.read(passages, milliseconds)
            if sample.state is State.SAMPLING:
                self._running[row] = sample
                self._engine.extend(row, ids)
                return
        self._follow(row, sample, sample.state)
