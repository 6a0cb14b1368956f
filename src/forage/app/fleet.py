"""Which executors run: what the scheduler decides is done here, and deadlocks are resolved."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from forage.app import failures
from forage.app.cache.directory import Directory
from forage.app.calls import Executor
from forage.app.deadlock import QueuedCall, RunningCall, stuck_calls
from forage.app.engines.base import Demand, Engine, Launch, Lost
from forage.app.errors import AppError, Deadlock
from forage.app.events import EventLog
from forage.app.ledger import Ledger
from forage.app.loop import Loop
from forage.app.placement import Placement
from forage.app.pool import Pool
from forage.app.scheduler import Blocked, Phase, Plan, SessionView, plan
from forage.app.wire import Exit

_log = logging.getLogger("forage.app")

_LOOK_S = 1.0  # how often idle executors and deadlocks are looked for
_LEAVE_S = 5.0  # how long a dismissed executor may take
_WARN_S = 5.0  # how long a session waits for resources before that is logged


class Fleet(Loop):
    """The executors of an app. All methods run in the loop's thread."""

    def __init__(self, engine: Engine, directory: Directory, events: EventLog) -> None:
        super().__init__(engine)
        self.event = events
        self.ledger = Ledger(directory)
        self.pools: dict[str, Pool] = {}
        self.executors: dict[int, Executor] = {}
        self.draining = False
        self._places = directory.places
        self.blocked: list[Blocked] = []
        self._serials = itertools.count(1)
        self._wants_plan = False
        self._contended = False
        self._next_look = 0.0
        self._suspects: set[int] = set()

    def launch(self, pool: Pool, rank: int, placement: Placement) -> Executor:
        """Start an executor of a session."""
        serial = next(self._serials)
        executor = Executor(serial, f"{pool.id}-{serial}", pool.id, rank, placement)
        self.executors[serial] = executor
        pool.executors[serial] = executor
        threads = pool.options.thread_count
        gang, size = (pool.id, pool.options.size) if pool.gang else ("", 1)
        self.engine.start(
            Launch(serial, executor.name, pool.options.need, placement, threads, gang, size)
        )
        self.engine.send(serial, self._places)
        self.event(
            "executor_started",
            session=pool.id,
            executor=executor.name,
            rank=rank,
            gpus=list(placement.gpus),
        )
        return executor

    def send(self, serial: int, message: Any) -> None:
        """Send a message to an executor."""
        self.engine.send(serial, message)

    def kill(self, serial: int, reason: str) -> None:
        """End an executor now."""
        self.engine.kill(serial, reason)

    def dismiss(self, executor: Executor) -> None:
        """Let an executor leave; it is killed if that takes long."""
        self.engine.send(executor.serial, Exit())
        self.after(_LEAVE_S, partial(self.kill, executor.serial, "didn't leave in time"))

    def lost(self, pool: Pool, executor: Executor, lost: Lost) -> None:
        """An executor is gone."""
        del self.executors[executor.serial]
        name = "executor_released" if executor.phase is Phase.ENDING else "executor_lost"
        self.event(name, session=pool.id, executor=executor.name, exit=lost.exit)
        pool.lost(executor, lost)
        self.replan()

    def fail_all(self, error: AppError) -> None:
        """Fail all calls at once; later ones fail too."""
        failure = failures.encode(error)
        for pool in self.pools.values():
            pool.fail_queued(failure)
            pool.failure = failure
        for call in list(self.ledger.calls.values()):
            self.ledger.settle(call, failure)

    # Decisions

    def replan(self) -> None:
        """Ask the scheduler at the end of this round."""
        self._wants_plan = True

    def executor_idle(self) -> None:
        """An executor has no call: another session may have a use for its resources."""
        self._wants_plan = self._wants_plan or self._contended

    def finish_round(self) -> bool:
        """Do what the scheduler says; True where that changed something."""
        now = time.monotonic()
        look = now >= self._next_look
        if look:
            self._next_look = now + _LOOK_S
            self._resolve_deadlocks(now)
        if self.draining:
            self._finish_draining()
        if look or self._wants_plan:
            self._wants_plan = False
            self._schedule(now)
        return self._wants_plan

    def _schedule(self, now: float) -> None:
        sessions = [pool.view(now) for pool in self.pools.values()]
        decided = plan(self.engine.nodes, sessions)
        self.engine.want(unmet(sessions, decided))
        self._contended = decided.contended
        ending = {end.executor for end in decided.ends}
        for executor in [e for e in self.executors.values() if e.name in ending]:
            self.event("executor_ending", session=executor.session, executor=executor.name)
            self.pools[executor.session].end(executor)
        for start in decided.starts:
            self.pools[start.session].start(start.placements)
        if decided.blocked != self.blocked:
            for blocked in set(decided.blocked) - set(self.blocked):
                self._report_blocked(blocked)
            self.blocked = decided.blocked

    def _report_blocked(self, blocked: Blocked) -> None:
        holders = list(blocked.holders)
        self.event("waiting", session=blocked.session, lacks=blocked.lacks, holders=holders)

        def warn() -> None:
            if blocked in self.blocked:
                _log.warning(
                    "session %s waits for %d executors of %s; resources are held by %s",
                    blocked.session,
                    blocked.lacks,
                    self.pools[blocked.session].options.need,
                    ", ".join(holders) or "nobody",
                )

        self.after(_WARN_S, warn)

    def _finish_draining(self) -> None:
        """Free executors for good once no session has a call left."""
        if all(pool.drained for pool in self.pools.values()):
            for pool in list(self.pools.values()):
                pool.release_all()
            return
        if self.blocked:  # what is done makes way for what isn't
            for pool in self.pools.values():
                if pool.drained:
                    pool.make_way()

    def _resolve_deadlocks(self, now: float) -> None:
        """Fail calls that can never start; both of two looks must find them so."""
        found = self._find_stuck(now) if any(e.waits for e in self.executors.values()) else set()
        for call_id in found & self._suspects:
            self._fail_stuck(call_id)
        self._suspects = found

    def _find_stuck(self, now: float) -> set[int]:
        running = [
            RunningCall(call_id, executor.name, executor.waits.get(call_id, ()))
            for executor in self.executors.values()
            for call_id in executor.calls
        ]
        queued = [
            QueuedCall(call.id, pool.id, call.submission.broadcast)
            for pool in self.pools.values()
            for call in pool.queue
        ]
        sessions = [pool.view(now) for pool in self.pools.values()]
        return stuck_calls(self.engine.nodes, sessions, running, queued)

    def _fail_stuck(self, call_id: int) -> None:
        call = self.ledger.calls[call_id]
        pool = self.pools[call.submission.session]
        waiters = [
            executor
            for executor in self.executors.values()
            if any(call_id in waits for waits in executor.waits.values())
        ]
        sessions = sorted({executor.session for executor in waiters} | {pool.id})
        error = Deadlock(
            f"{call.label} can never start",
            why=f"session {pool.id} gets no executor before those of "
            f"{', '.join(sorted({e.session for e in waiters}))} finish, and they wait for this "
            f"call (in {', '.join(e.name for e in waiters)})",
            remedy=f"give {pool.id} a warmup, or hold fewer executors elsewhere",
            sessions=sessions,
        )
        self.event("deadlock", session=pool.id, call=call.label, sessions=sessions)
        pool.take_back(call)
        self.ledger.settle(call, failures.encode(error))
        pool.check_drained()


def unmet(sessions: Sequence[SessionView], decided: Plan) -> list[Demand]:
    """The executors that sessions want and that fit nowhere, once a plan is carried out."""
    views = {session.id: session for session in sessions}
    demands = [
        Demand(views[blocked.session].need, blocked.lacks, views[blocked.session].gang)
        for blocked in decided.blocked
    ]
    starting = Counter({start.session: len(start.placements) for start in decided.starts})
    waiting = {blocked.session for blocked in decided.blocked}
    for session in sessions:
        lacks = session.target - session.alive - starting[session.id]
        if not session.gang and session.id not in waiting and lacks > 0:
            demands.append(Demand(session.need, lacks, together=False))
    return demands
