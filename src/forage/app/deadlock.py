"""Which queued calls can never start: a pure function over who waits for whom.

An executor whose running calls all wait, in the end, for calls that can't start will never be
free. A queued call is stuck if its session has no executor that could take it and could get none
even if everything that can still end did end. The rest is a fixed point: assume all stuck,
and strike out whatever can move until nothing changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forage.app.placement import Node
from forage.app.scheduler import ExecutorView, Phase, SessionView, plan


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call in an executor; `waits` are calls that it blocks on until one of them ends."""

    id: int
    executor: str
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """A call that waits for an executor, or with `broadcast` for all ranks of a gang."""

    id: int
    session: str
    broadcast: bool = False


def stuck_calls(
    nodes: Sequence[Node],
    sessions: Sequence[SessionView],
    running: Sequence[RunningCall],
    queued: Sequence[QueuedCall],
) -> set[int]:
    """The queued calls that some running call waits for and that can never start.

    `queued` holds each session's calls in their order.
    """
    known = {call.id for call in running} | {call.id for call in queued}
    moving: set[int] = set()
    while True:
        # A broadcast is at several executors; it moves only if it does everywhere.
        blocked = {
            call.id
            for call in running
            if call.waits and not any(w in moving or w not in known for w in call.waits)
        }
        stuck = Counter(call.executor for call in running if call.id in blocked)
        fresh = {call.id for call in running} - blocked
        fresh |= _startable(nodes, sessions, stuck, [q for q in queued if q.id not in moving])
        if fresh <= moving:
            break
        moving |= fresh
    awaited = {wait for call in running if call.id in blocked for wait in call.waits}
    return {call.id for call in queued if call.id in awaited and call.id not in moving}


def _startable(
    nodes: Sequence[Node],
    sessions: Sequence[SessionView],
    stuck: Counter[str],
    queued: Sequence[QueuedCall],
) -> set[int]:
    """Calls whose session has, or could get, an executor that isn't full of stuck calls."""
    heads = {call.session: call for call in reversed(queued)}
    able = {
        session.id
        for session in sessions
        if session.id in heads and _can_serve(nodes, sessions, session, stuck, heads[session.id])
    }
    return {call.id for call in queued if call.session in able}


def _can_serve(
    nodes: Sequence[Node],
    sessions: Sequence[SessionView],
    session: SessionView,
    stuck: Counter[str],
    head: QueuedCall,
) -> bool:
    alive = [e for e in session.executors if e.phase is not Phase.ENDING]
    able = [stuck[executor.id] < session.concurrency for executor in alive]
    if session.gang and alive:
        return all(able) if head.broadcast else able[0]
    if any(able):
        return True
    future = [_at_rest(other, stuck, wants=other is session) for other in sessions]
    return any(start.session == session.id for start in plan(nodes, future).starts)


def _at_rest(session: SessionView, stuck: Counter[str], *, wants: bool) -> SessionView:
    """A session once all that can end has ended; only `wants` asks for more than its warm-up."""
    if session.gang:
        return session
    held = [e for e in session.executors if stuck[e.id]]
    spare = [e for e in session.executors if not stuck[e.id] and e.phase is not Phase.ENDING]
    kept: list[ExecutorView] = held + spare[: max(0, session.warmup - len(held))]
    pending = (session.pending + session.running) if wants else 0
    return replace(session, executors=tuple(kept), pending=pending, running=0)
