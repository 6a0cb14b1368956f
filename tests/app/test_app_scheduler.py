"""The scheduler as a pure function: random machines, sessions and histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from forage.app.placement import Node, Placement, Room, fits_empty
from forage.app.resources import Resources
from forage.app.scheduler import ExecutorView, Phase, SessionView, plan

NODES = (Node("a", 4000, 8, ("0", "1")), Node("b", 2000, 4, ("0",)))

needs = st.builds(
    Resources,
    millicpu=st.sampled_from([500, 1000, 2000]),
    mem=st.integers(0, 3),
    milligpu=st.sampled_from([0, 0, 250, 500, 1000, 2000]),
)


@dataclass
class Session:
    """A session of the simulated world."""

    id: str
    need: Resources
    gang: bool
    warmup: int
    limit: int
    concurrency: int
    pending: int = 0
    executors: dict[str, list] = field(default_factory=dict)  # id: [placement, phase, calls]

    def view(self) -> SessionView:
        return SessionView(
            id=self.id,
            need=self.need,
            gang=self.gang,
            warmup=self.warmup,
            limit=self.limit,
            concurrency=self.concurrency,
            idle_timeout=60.0,
            pending=self.pending,
            running=sum(calls for _, _, calls in self.executors.values()),
            executors=tuple(
                ExecutorView(id, placement, phase)
                for id, (placement, phase, _) in self.executors.items()
            ),
            forming=self.gang and not self.executors,
        )


class World:
    """Carries out plans, and checks each of them."""

    def __init__(self, nodes: tuple[Node, ...], sessions: list[Session]) -> None:
        self.nodes = nodes
        self.sessions = {session.id: session for session in sessions}
        self.numbers = iter(range(1_000_000))

    def schedule(self):
        views = [session.view() for session in self.sessions.values()]
        decided = plan(self.nodes, views)
        for end in decided.ends:
            session = self.sessions[end.session]
            assert not session.gang
            executor = session.executors[end.executor]
            assert executor[1] is not Phase.ENDING
            executor[1] = Phase.ENDING
            if not executor[2]:
                del session.executors[end.executor]
            assert session.view().alive >= session.warmup
        for start in decided.starts:
            self.start(self.sessions[start.session], start.placements)
        self.check_not_oversubscribed()
        return decided

    def start(self, session: Session, placements: tuple[Placement, ...]) -> None:
        if session.gang:
            assert not session.executors
            assert len(placements) == session.warmup
            seen = [(p.node, gpu) for p in placements for gpu in p.gpus]
            assert len(seen) == len(set(seen))
        else:
            assert session.view().alive + len(placements) <= session.view().target
        for placement in placements:
            assert len(placement.gpus) == session.need.whole_gpus
            session.executors[f"{session.id}-{next(self.numbers)}"] = [placement, Phase.STARTING, 0]

    def check_not_oversubscribed(self) -> None:
        cpu, mem, gpu = Counter(), Counter(), Counter()
        for session in self.sessions.values():
            for placement, _, _ in session.executors.values():
                cpu[placement.node] += session.need.millicpu
                mem[placement.node] += session.need.mem
                for device in placement.gpus:
                    gpu[placement.node, device] += min(1000, session.need.milligpu)
        for node in self.nodes:
            assert cpu[node.name] <= node.millicpu
            assert mem[node.name] <= node.mem
        assert all(share <= 1000 for share in gpu.values())

    def settle(self):
        """Schedule until nothing changes any more."""
        for _ in range(200):
            decided = self.schedule()
            if not decided.starts and not decided.ends:
                return decided
        raise AssertionError("the scheduler never comes to rest")

    def advance(self) -> None:
        """Executors become ready and take calls; every running call ends."""
        for session in self.sessions.values():
            for id, executor in list(session.executors.items()):
                executor[2] = 0
                if executor[1] is Phase.ENDING:
                    del session.executors[id]
                    continue
                executor[1] = Phase.IDLE
                if session.pending and not session.gang:
                    taken = min(session.pending, session.concurrency)
                    session.pending -= taken
                    executor[1:] = [Phase.BUSY, taken]

    def free(self) -> Room:
        room = Room.of(self.nodes)
        for session in self.sessions.values():
            for placement, _, _ in session.executors.values():
                room.take(session.need, placement)
        return room


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sessions = []
    for number in range(draw(st.integers(1, 5))):
        gang = draw(st.booleans())
        warmup = draw(st.integers(1, 3) if gang else st.integers(0, 2))
        session = Session(
            id=f"s{number}",
            need=draw(needs),
            gang=gang,
            warmup=warmup,
            limit=warmup if gang else max(1, warmup, draw(st.integers(1, 6))),
            concurrency=draw(st.integers(1, 3)),
        )
        if fits_empty(session.need, max(1, warmup), NODES, distinct=gang):
            sessions.append(session)
    return World(NODES, sessions)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.data())
def test_any_history_is_safe_and_comes_to_rest(world: World, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 6))):
        for session in world.sessions.values():
            if not session.gang:
                session.pending += data.draw(st.integers(0, 6))
        if data.draw(st.booleans()) and world.sessions:
            lost = data.draw(st.sampled_from(sorted(world.sessions)))
            world.sessions[lost].executors.clear()
        world.settle()
        world.advance()


@settings(max_examples=150, deadline=None)
@given(worlds(), st.data())
def test_nothing_idles_while_an_elastic_session_could_use_it(
    world: World, data: st.DataObject
) -> None:
    for session in world.sessions.values():
        session.pending = 0 if session.gang else data.draw(st.integers(0, 6))
    world.settle()
    world.advance()
    decided = world.settle()
    if decided.blocked:  # then what a waiter lacks is kept for it
        return
    for session in world.sessions.values():
        view = session.view()
        if not session.gang and view.alive < view.target:
            assert world.free().place(session.need) is None
            for other in world.sessions.values():
                idle = [e for e in other.view().executors if e.phase is Phase.IDLE]
                if not other.gang and other.view().alive > other.warmup and other is not session:
                    for executor in idle:
                        room = world.free()
                        room.give(other.need, executor.placement)
                        assert room.place(session.need) is None


@settings(max_examples=100, deadline=None)
@given(worlds(), needs, st.integers(1, 3))
def test_elastic_work_never_starves_a_gang(world: World, need: Resources, size: int) -> None:
    """Elastic sessions are always hungry; the gang comes last, and gets its turn."""
    world.sessions = {
        id: session
        for id, session in world.sessions.items()
        if not session.gang and not session.warmup
    }
    if not fits_empty(need, size, NODES, distinct=True):
        return
    for session in world.sessions.values():
        session.pending = 1000
    world.settle()
    world.advance()
    gang = Session("gang", need, True, size, size, 1)
    world.sessions["gang"] = gang
    for _ in range(20):
        world.settle()
        if gang.executors:
            return
        world.advance()
    raise AssertionError("the gang never got its turn")


def test_gangs_and_warmups_are_served_first_come_first_served() -> None:
    node = Node("a", 4000, 0)
    first = Session("first", Resources(1000), True, 3, 3, 1)
    second = Session("second", Resources(1000), True, 2, 2, 1)
    third = Session("third", Resources(1000), False, 1, 1, 1)
    world = World((node,), [first, second, third])
    decided = world.settle()
    assert [len(s.executors) for s in (first, second, third)] == [3, 0, 0]
    assert [(b.session, b.lacks, b.holders) for b in decided.blocked] == [
        ("second", 2, ("first",)),
        ("third", 1, ("first", "second")),
    ]
    del world.sessions["first"]
    world.settle()
    assert [len(s.executors) for s in (second, third)] == [2, 1]


def test_room_is_made_only_where_it_helps() -> None:
    """A gang that another gang keeps out doesn't cost elastic sessions their executors."""
    holder = Session("holder", Resources(1000), True, 3, 3, 1)
    elastic = Session("elastic", Resources(1000), False, 0, 9, 1, pending=1)
    waiter = Session("waiter", Resources(1000), True, 2, 2, 1)
    world = World((Node("a", 4000, 0),), [holder, elastic, waiter])
    del world.sessions["waiter"]
    world.settle()
    world.advance()
    world.sessions["waiter"] = waiter
    decided = world.settle()
    assert len(elastic.executors) == 1
    assert [b.session for b in decided.blocked] == ["waiter"]


def test_growth_goes_to_the_session_furthest_below_its_target() -> None:
    busy = Session("busy", Resources(1000), False, 0, 9, 1, pending=6)
    calm = Session("calm", Resources(1000), False, 0, 9, 2, pending=4)
    world = World((Node("a", 4000, 0),), [calm, busy])
    world.settle()
    assert (len(busy.executors), len(calm.executors)) == (4, 0)
    # Targets are 6 and 2: busy gets four before it is as close to its target as calm.


def test_fractions_of_gpus_share_devices_but_not_within_a_gang() -> None:
    node = Node("a", 8000, 0, ("0", "1"))
    elastic = Session("elastic", Resources(1000, 0, 500), False, 3, 3, 1)
    gang = Session("gang", Resources(1000, 0, 500), True, 2, 2, 1)
    world = World((node,), [elastic])
    world.settle()
    used = Counter(p.gpus for p, _, _ in elastic.executors.values())
    assert used == {("0",): 2, ("1",): 1}
    world = World((node,), [gang])
    world.settle()
    assert {p.gpus for p, _, _ in gang.executors.values()} == {("0",), ("1",)}


@given(needs, st.integers(0, 5), st.integers(0, 5), st.integers(1, 4), st.integers(0, 3))
def test_target_is_the_formula(
    need: Resources, pending: int, running: int, concurrency: int, warmup: int
) -> None:
    limit = warmup + 2
    view = SessionView("s", need, False, warmup, limit, concurrency, 60, pending, running, ())
    wanted = (pending + running + concurrency - 1) // concurrency
    assert view.target == min(max(wanted, warmup), limit)


def test_idle_executors_above_warmup_go_after_their_time() -> None:
    placement = Placement("a")
    executors = (
        ExecutorView("e0", placement, Phase.IDLE, 90.0),
        ExecutorView("e1", placement, Phase.IDLE, 70.0),
        ExecutorView("e2", placement, Phase.IDLE, 10.0),
    )
    view = SessionView("s", Resources(1000), False, 1, 9, 1, 60.0, 0, 0, executors)
    decided = plan((Node("a", 8000, 0),), [view])
    assert [end.executor for end in decided.ends] == ["e0", "e1"]
