"""Who gets an executor, and who gives one up: a pure function from a snapshot to actions.

Gangs and warm-ups are served first come, first served; what one of them still lacks is kept for
it, and elastic executors above their warm-up end at their next call boundary to make room. What is
left goes to elastic sessions, one executor at a time to the one furthest below its target. Both
engines use the same function, and the deadlock check asks it what would happen if.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from forage.app.placement import Node, Placement, Room, times
from forage.app.resources import Resources


class Phase(Enum):
    """What an executor is doing, as far as scheduling goes."""

    STARTING = "starting"  # the process starts, or its object is being constructed
    IDLE = "idle"
    BUSY = "busy"
    ENDING = "ending"  # takes no more calls; its resources come back when it is gone


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """One executor in a snapshot; `idle_s` counts seconds since its last call ended."""

    id: str
    placement: Placement
    phase: Phase
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session in a snapshot. Sessions come in order of arrival."""

    id: str
    need: Resources
    gang: bool
    warmup: int
    limit: int
    concurrency: int
    idle_timeout: float
    pending: int
    running: int
    executors: tuple[ExecutorView, ...]
    forming: bool = False  # a gang that wants its members

    @property
    def alive(self) -> int:
        """Executors that take calls, now or soon."""
        return sum(e.phase is not Phase.ENDING for e in self.executors)

    @property
    def target(self) -> int:
        """How many executors an elastic session should have."""
        wanted = -(-(self.pending + self.running) // self.concurrency)
        return max(self.warmup, min(wanted, self.limit))


@dataclass(frozen=True, slots=True)
class Start:
    """Start these executors of a session, together."""

    session: str
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Let an executor finish its calls and end it."""

    session: str
    executor: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """A gang or warm-up that waits, and the sessions that hold what it lacks."""

    session: str
    lacks: int  # executors
    holders: tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """What to do now."""

    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    contended: bool = False  # somebody would take what another gives up


def plan(nodes: Sequence[Node], sessions: Sequence[SessionView]) -> Plan:
    """Decide what to start and end; never more than the nodes hold."""
    return _Planner(nodes, sessions).run()


class _Planner:
    def __init__(self, nodes: Sequence[Node], sessions: Sequence[SessionView]) -> None:
        self.nodes = nodes
        self.sessions = sessions
        self.room = Room.of(nodes)
        self.leaving: list[tuple[Resources, Placement]] = []  # comes back soon
        self.count = {session.id: session.alive for session in sessions}
        self.plan = Plan()
        for session in sessions:
            for executor in session.executors:
                self.room.take(session.need, executor.placement)
                if executor.phase is Phase.ENDING:
                    self.leaving.append((session.need, executor.placement))

    def run(self) -> Plan:
        for session in self.sessions:
            if session.gang:
                if session.forming:
                    self._seat_gang(session)
            elif self.count[session.id] < session.warmup:
                self._seat_warmup(session)
        self._grow()
        self._release_idle()
        return self.plan

    def _seat_gang(self, session: SessionView) -> None:
        placements = self.room.place_all(session.need, session.warmup)
        if placements is None:
            self._wait(session, session.warmup)
        else:
            self._start(session, placements)

    def _seat_warmup(self, session: SessionView) -> None:
        for _ in range(session.warmup - self.count[session.id]):
            placement = self.room.place(session.need)
            if placement is None:
                self._wait(session, session.warmup - self.count[session.id])
                return
            self.room.take(session.need, placement)
            self._start(session, (placement,))

    def _wait(self, session: SessionView, lacks: int) -> None:
        self.plan.contended = True
        self.plan.blocked.append(Blocked(session.id, lacks, self._holders(session, lacks)))
        # A gang has a use only for room for all; a warm-up for as much as can be had.
        for count in range(lacks, lacks - 1 if session.gang else 0, -1):
            if self._make_room(session, count, self._surplus(session.id)):
                break
        able = [node.name for node in self.nodes if Room.of([node]).place(session.need)]
        self.room.reserve(session.need, lacks, able)

    def _grow(self) -> None:
        """Elastic growth: one executor at a time to the session furthest below its target."""
        hungry = [s for s in self.sessions if not s.gang and self.count[s.id] >= s.warmup]
        while hungry:
            session = max(hungry, key=self._deficit)
            if self._deficit(session) <= 0:
                return
            placement = self.room.place(session.need)
            if placement is None:
                self.plan.contended = True
                idle = [e for e in self._surplus(session.id) if e[1].phase is Phase.IDLE]
                self._make_room(session, 1, idle)
                hungry.remove(session)
                continue
            self.room.take(session.need, placement)
            self._start(session, (placement,))

    def _deficit(self, session: SessionView) -> int:
        return session.target - self.count[session.id]

    def _release_idle(self) -> None:
        for session in self.sessions:
            if session.gang:
                continue
            ending = {end.executor for end in self.plan.ends}
            idle = [
                e
                for e in session.executors
                if e.phase is Phase.IDLE and e.idle_s >= session.idle_timeout and e.id not in ending
            ]
            spare = self.count[session.id] - session.target
            for executor in sorted(idle, key=lambda e: -e.idle_s)[: max(0, spare)]:
                self._end(session, executor)

    def _surplus(self, asking: str) -> list[tuple[SessionView, ExecutorView]]:
        """Elastic executors above warm-up, those that cost least to end first."""
        order = (Phase.IDLE, Phase.STARTING, Phase.BUSY)
        ending = {end.executor for end in self.plan.ends}
        surplus: list[tuple[SessionView, ExecutorView]] = []
        for session in self.sessions:
            if session.gang or session.id == asking:
                continue
            alive = [e for e in session.executors if e.phase in order and e.id not in ending]
            alive.sort(key=lambda e: (order.index(e.phase), -e.idle_s))
            # Those that this plan starts don't count: they can't be there in time.
            spare = max(0, len(alive) - session.warmup)
            surplus += [(session, executor) for executor in alive[:spare]]
        surplus.sort(key=lambda pair: order.index(pair[1].phase))
        return surplus

    def _make_room(
        self,
        session: SessionView,
        count: int,
        candidates: Iterable[tuple[SessionView, ExecutorView]],
    ) -> bool:
        """End just enough of `candidates` for `count` executors; none where it wouldn't help."""
        chosen: list[tuple[SessionView, ExecutorView]] = []
        if self._would_fit(session, count, chosen):
            return True
        for pair in candidates:
            chosen.append(pair)
            if self._would_fit(session, count, chosen):
                break
        else:
            return False
        for pair in list(chosen[:-1]):  # those that free the wrong kind of resource stay
            rest = [other for other in chosen if other is not pair]
            if self._would_fit(session, count, rest):
                chosen = rest
        for owner, executor in chosen:
            self._end(owner, executor)
        return True

    def _would_fit(
        self,
        session: SessionView,
        count: int,
        gone: Iterable[tuple[SessionView, ExecutorView]],
    ) -> bool:
        trial = self.room.copy()
        for need, placement in self.leaving:
            trial.give(need, placement)
        for owner, executor in gone:
            trial.give(owner.need, executor.placement)
        return trial.place_all(session.need, count) is not None

    def _holders(self, session: SessionView, lacks: int) -> tuple[str, ...]:
        free, need = self.room.total(), times(session.need, lacks)
        scarce = [
            name
            for name in ("millicpu", "mem", "milligpu")
            if getattr(free, name) < getattr(need, name)
        ]
        waiting = {blocked.session for blocked in self.plan.blocked}
        return tuple(
            other.id
            for other in self.sessions
            if other.id != session.id
            and (other.executors or other.id in waiting)
            and (not scarce or any(getattr(other.need, name) for name in scarce))
        )

    def _start(self, session: SessionView, placements: tuple[Placement, ...]) -> None:
        self.count[session.id] += len(placements)
        self.plan.starts.append(Start(session.id, placements))

    def _end(self, session: SessionView, executor: ExecutorView) -> None:
        self.count[session.id] -= 1
        self.leaving.append((session.need, executor.placement))
        self.plan.ends.append(End(session.id, executor.id))
