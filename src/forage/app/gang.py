"""Gangs: a fixed number of executors with ranks, all of them or none."""

from __future__ import annotations

from dataclasses import replace

from forage.app import failures
from forage.app.calls import Call, Executor
from forage.app.engines.base import Lost
from forage.app.errors import AppError, GangBroken
from forage.app.placement import Placement
from forage.app.pool import Pool
from forage.app.scheduler import Phase, SessionView
from forage.app.wire import Failure, Packed

PEER_GRACE_S = 30.0
"""How long the other ranks of a broadcast may go on after one has raised."""


class GangPool(Pool):
    """See `forage.app.pool.Pool`. A gang is forming, there, or broken (`failure` says why)."""

    gang = True

    @property
    def members(self) -> list[Executor]:
        """The executors of this generation, in rank order."""
        alive = (e for e in self.executors.values() if e.phase is not Phase.ENDING)
        return sorted(alive, key=lambda executor: executor.rank)

    @property
    def whole(self) -> bool:
        """Whether all ranks are constructed."""
        members = self.members
        return len(members) == self.options.size and all(e.takes_calls for e in members)

    @property
    def proven(self) -> bool:
        """One rank's constructor says nothing about the others'."""
        return self.whole

    def dispatch(self) -> None:
        """Run calls strictly in order; a broadcast waits until every rank has room for it."""
        while self.queue and self.whole:
            call = self.queue[0]
            broadcast = call.submission.broadcast
            runners = self.members if broadcast else self.members[:1]
            if any(len(e.calls) >= self.options.concurrency for e in runners):
                return
            if broadcast and any(c.submission.broadcast for e in runners for c in e.calls.values()):
                return
            self.run(call, runners)

    def start(self, placements: tuple[Placement, ...]) -> None:
        """Start all ranks."""
        for rank, placement in enumerate(placements):
            self.hub.launch(self, rank, placement)

    def said_hello(self, executor: Executor) -> None:
        """Once all processes are up, construct all objects together, with where to meet."""
        members = self.members
        if len(members) == self.options.size and all(member.meeting for member in members):
            for member in members:
                self.construct(member, member.rank, len(members), members[0].meeting or "")

    def ready(self, executor: Executor) -> None:
        """Calls begin when the last rank is constructed."""
        super().ready(executor)
        if self.whole:
            self.hub.event(
                "gang_formed", session=self.id, size=self.options.size, generation=self.generation
            )

    def returned(self, executor: Executor, call: Call, outcome: Packed | Failure) -> None:
        """Collect the ranks' values; the first to raise decides, and the others get some time."""
        if isinstance(outcome, Packed):
            call.results[executor.rank] = outcome
            if not call.runners:
                self.hub.ledger.settle(call, self.collect(call))
            return
        if call.runners:
            generation, rank = self.generation, executor.rank
            self.hub.after(PEER_GRACE_S, lambda: self._check_peers(call, rank, generation))
        self.hub.ledger.settle(call, outcome)

    def lost(self, executor: Executor, lost: Lost) -> None:
        """A gang without one of its members is none."""
        if executor.phase is Phase.STARTING:
            self.count_failure(failures.encode(self._error(executor, lost)))
        elif executor.phase is not Phase.ENDING:
            self.break_up(self._error(executor, lost))
        for call in executor.calls.values():
            del call.runners[executor.serial]
            self.hub.ledger.free(call)
        del self.executors[executor.serial]
        self.check_drained()

    def constructor_failed(self) -> None:
        """One failed member takes the others along; then all are started again."""
        self.dissolve("another rank of its gang failed")
        if self.gave_up and self._last_failure is not None:
            self.failure = self._last_failure
            self.fail_queued(self.failure)

    def break_up(self, error: AppError) -> None:
        """Fail all calls and end what remains."""
        self.failure = failures.encode(error)
        self.hub.event(
            "gang_broken", session=self.id, generation=self.generation, error=error.args[0]
        )
        running = {call for executor in self.executors.values() for call in executor.calls.values()}
        for call in running:
            self.hub.ledger.settle(call, self.failure)
        self.fail_queued(self.failure)
        self.dissolve("its gang broke")

    def reform(self) -> None:
        """Start anew."""
        if self.failure is None:
            self.break_up(
                GangBroken(f"gang {self.id} was reformed", remedy="call again", session=self.id)
            )
        self.failure = None
        self._constructor_failures = 0
        self.generation += 1
        self.hub.event("gang_reformed", session=self.id, generation=self.generation)
        self.hub.replan()

    def view(self, now: float) -> SessionView:
        """A gang wants its members unless it is broken, or closes with nothing left to do."""
        idle = self.closing and self.drained
        forming = self.failure is None and not self.members and not idle
        return replace(super().view(now), forming=forming)

    def make_way(self) -> None:
        """A gang is there as a whole or not at all."""
        self.dissolve("its session is done, and another needs its resources")

    def dissolve(self, reason: str) -> None:
        """End all members now."""
        for executor in self.executors.values():
            if executor.phase is not Phase.ENDING:
                executor.phase = Phase.ENDING
                self.hub.kill(executor.serial, reason)

    def _check_peers(self, call: Call, raised: int, generation: int) -> None:
        if call.runners and generation == self.generation and self.failure is None:
            late = min(call.runners.values())
            self.break_up(
                GangBroken(
                    f"gang {self.id} broke",
                    why=f"rank {late} was still in {call.label} {PEER_GRACE_S:g} s after "
                    f"rank {raised} had raised",
                    session=self.id,
                    rank=late,
                )
            )

    def _error(self, executor: Executor, lost: Lost) -> GangBroken:
        return GangBroken(
            f"gang {self.id} broke",
            why=f"rank {executor.rank} ({executor.name}) was lost: {lost.exit}",
            session=self.id,
            rank=executor.rank,
            exit=lost.exit,
            log=lost.log,
        )
