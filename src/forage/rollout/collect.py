"""Drive samples through an engine: draw, search on the side, read, go on.

A sample that searches leaves the batch until its passages are there; the others go on drawing.
With a reproducible engine and an in-process retriever passages join at fixed steps: which rows
share a pass changes the last bits of their logits, so that only then a run is reproducible.
Otherwise they join as they come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from forage.agent.retrieval import RetrievalError, Retriever
from forage.rollout.engine import Engine
from forage.rollout.sample import Sample, State

JOIN_EVERY = 4
"""Engine steps between joins, where they are at fixed steps."""

LONGEST_WAIT = 0.002
"""Seconds that `advance` waits for searches while nothing draws."""


@dataclass(frozen=True, slots=True)
class Work:
    """A sample to take to its end.

    Attributes:
        prompt: token ids that it starts with.
        stream: names its random draws; None draws the likeliest token.
        version: weight version that its tokens are marked with.
        ended: called once it has ended, in the thread that advances.
    """

    sample: Sample
    prompt: list[int]
    stream: np.uint64 | None
    version: int
    ended: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Search:
    """A search under way for the work in `row`; `found` are the ids that it reads next."""

    row: int
    work: Work
    found: Future[list[int]]


class Collector:
    """Runs samples to their ends, at most `max_batch` at a time; for one thread."""

    def __init__(
        self,
        engine: Engine,
        retriever: Retriever,
        pool: ThreadPoolExecutor,
        *,
        top_k: int,
        max_batch: int,
    ) -> None:
        """Searches ask `retriever` for `top_k` passages each, in the threads of `pool`."""
        self.engine = engine
        self._retriever = retriever
        self._pool = pool
        self._top_k = top_k
        self._fixed = engine.reproducible and retriever.in_process
        self._free = list(range(max_batch - 1, -1, -1))
        self._waiting: deque[Work] = deque()
        self._running: dict[int, Work] = {}
        self._searches: dict[int, Search] = {}
        self._found: SimpleQueue[int] = SimpleQueue()
        self._steps = 0

    @property
    def busy(self) -> bool:
        """Whether any sample has not ended."""
        return bool(self._waiting or self._running or self._searches)

    def run(self, work: Iterable[Work]) -> None:
        """Take all of it to its end."""
        self.add(work)
        while self.busy:
            self.advance()

    def add(self, work: Iterable[Work]) -> None:
        """Let more samples join, as soon as there are free rows."""
        self._waiting += work

    def advance(self) -> None:
        """One step of the engine, and whatever follows from it."""
        while self._waiting and self._free:
            self._admit(self._waiting.popleft())
        for row, token, logprob in self.engine.step():
            work = self._running[row]
            state = work.sample.take(token, logprob, work.version)
            if state is not State.SAMPLING:
                self._follow(row, work, state)
        self._steps += 1
        if self._searches:
            self._join()

    def _admit(self, work: Work) -> None:
        if work.sample.state is State.ENDED:
            work.ended()
            return
        row = self._free.pop()
        self._running[row] = work
        self.engine.start(row, work.prompt, work.stream)

    def _follow(self, row: int, work: Work, state: State) -> None:
        self._running.pop(row, None)
        if state is State.SEARCHING:
            self.engine.pause(row)
            found = self._pool.submit(self._search, work.sample)
            self._searches[row] = Search(row, work, found)
            found.add_done_callback(lambda _: self._found.put(row))
        else:
            self.engine.finish(row)
            self._free.append(row)
            work.ended()

    def _search(self, sample: Sample) -> list[int]:
        started = time.perf_counter()
        passages = self._retriever.search(sample.query, self._top_k) if sample.query else []
        return sample.read(passages, (time.perf_counter() - started) * 1e3)

    def _join(self) -> None:
        """Let samples whose search has ended read what it found."""
        if not self._fixed:
            for row in self._arrived():
                self._resume(self._searches.pop(row))
        elif self._steps % JOIN_EVERY == 0 or not self._running:
            searches, self._searches = self._searches, {}
            for search in searches.values():
                self._resume(search)

    def _arrived(self) -> list[int]:
        """Rows whose search has ended since; waits a moment for one if nothing else goes on."""
        rows = []
        try:
            if not self._running:
                rows.append(self._found.get(timeout=LONGEST_WAIT))
            while True:
                rows.append(self._found.get_nowait())
        except Empty:
            return rows

    def _resume(self, search: Search) -> None:
        row, work = search.row, search.work
        try:
            ids = search.found.result()
        except RetrievalError as error:
            work.sample.fail(str(error))
        if work.sample.state is State.SAMPLING:
            self._running[row] = work
            self.engine.extend(row, ids)
        else:
            self._follow(row, work, work.sample.state)
