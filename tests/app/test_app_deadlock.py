"""The deadlock check as a pure function."""

from __future__ import annotations

from forage.app.deadlock import QueuedCall, RunningCall, stuck_calls
from forage.app.placement import Node, Placement
from forage.app.resources import ONE_CPU
from forage.app.scheduler import ExecutorView, Phase, SessionView

HERE = Placement("a")


def nodes(cpus: int) -> tuple[Node, ...]:
    return (Node("a", 1000 * cpus, 0),)


def session(
    id: str, *executors: str, pending: int = 0, warmup: int = 0, gang: bool = False, **changes: int
) -> SessionView:
    return SessionView(
        id=id,
        need=ONE_CPU,
        gang=gang,
        warmup=warmup,
        limit=changes.get("limit", 99),
        concurrency=changes.get("concurrency", 1),
        idle_timeout=60.0,
        pending=pending,
        running=changes.get("running", len(executors)),
        executors=tuple(ExecutorView(name, HERE, Phase.BUSY) for name in executors),
    )


def test_all_executors_wait_for_a_session_without_one() -> None:
    sessions = [session("A", "a0", "a1", warmup=2), session("B", pending=2)]
    running = [RunningCall(1, "a0", (11,)), RunningCall(2, "a1", (12,))]
    queued = [QueuedCall(11, "B"), QueuedCall(12, "B")]
    assert stuck_calls(nodes(2), sessions, running, queued) == {11, 12}
    assert stuck_calls(nodes(3), sessions, running, queued) == set()


def test_one_executor_that_works_frees_the_others_if_it_can_be_released() -> None:
    running = [RunningCall(1, "a0", (11,)), RunningCall(2, "a1")]
    queued = [QueuedCall(11, "B")]
    elastic = [session("A", "a0", "a1"), session("B", pending=1)]
    assert stuck_calls(nodes(2), elastic, running, queued) == set()
    warm = [session("A", "a0", "a1", warmup=2), session("B", pending=1)]
    assert stuck_calls(nodes(2), warm, running, queued) == {11}


def test_a_cycle_over_three_sessions() -> None:
    names = "ABC"
    sessions = [session(name, name.lower(), pending=1, limit=1) for name in names]
    running = [RunningCall(n, name.lower(), (10 + (n + 1) % 3,)) for n, name in enumerate(names)]
    queued = [QueuedCall(10 + n, name) for n, name in enumerate(names)]
    assert stuck_calls(nodes(9), sessions, running, queued) == {10, 11, 12}


def test_a_wait_for_any_of_several_needs_only_one() -> None:
    sessions = [session("A", "a0", warmup=1), session("B", pending=1), session("C", "c0")]
    running = [RunningCall(1, "a0", (11, 21)), RunningCall(21, "c0")]
    queued = [QueuedCall(11, "B")]
    # c0 ends and goes, since it is above its warm-up: B gets its place.
    assert stuck_calls(nodes(2), sessions, running, queued) == set()
    warm = [*sessions[:2], session("C", "c0", warmup=1)]
    assert stuck_calls(nodes(2), warm, running, queued) == set()
    done = [RunningCall(1, "a0", (11,))]
    idle = [*sessions[:2], session("C", "c0", warmup=1, running=0)]
    assert stuck_calls(nodes(2), idle, done, queued) == {11}


def test_a_wait_for_a_call_that_has_ended_is_none() -> None:
    sessions = [session("A", "a0", pending=1, limit=1)]
    assert stuck_calls(nodes(1), sessions, [RunningCall(1, "a0", (99,))], []) == set()


def test_calls_that_nobody_waits_for_may_stay_queued() -> None:
    sessions = [session("A", "a0", warmup=1), session("B", pending=2)]
    running = [RunningCall(1, "a0", (11,))]
    queued = [QueuedCall(11, "B"), QueuedCall(12, "B")]
    assert stuck_calls(nodes(1), sessions, running, queued) == {11}


def test_a_free_slot_beside_a_stuck_call_serves() -> None:
    sessions = [session("A", "a0", pending=1, limit=1, concurrency=2)]
    assert (
        stuck_calls(nodes(1), sessions, [RunningCall(1, "a0", (2,))], [QueuedCall(2, "A")]) == set()
    )
    full = [session("A", "a0", pending=1, limit=1, concurrency=2, running=2)]
    running = [RunningCall(1, "a0", (3,)), RunningCall(2, "a0", (3,))]
    assert stuck_calls(nodes(1), full, running, [QueuedCall(3, "A")]) == {3}
    running = [RunningCall(1, "a0", (3,)), RunningCall(2, "a0")]
    assert stuck_calls(nodes(1), full, running, [QueuedCall(3, "A")]) == set()


def test_a_broadcast_moves_only_if_it_does_on_every_rank() -> None:
    gang = session("G", "g0", "g1", warmup=2, gang=True, running=1)
    sessions = [gang, session("B", pending=1)]
    running = [RunningCall(1, "g0", (11,)), RunningCall(1, "g1")]
    assert stuck_calls(nodes(2), sessions, running, [QueuedCall(11, "B")]) == {11}
