"""Where executors fit: the arithmetic of free resources on nodes and their GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from forage.app.resources import Resources


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: thousandths of CPUs, bytes of memory, ids of whole GPUs."""

    name: str
    millicpu: int
    mem: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of an executor and the GPUs that it sees there."""

    node: str
    gpus: tuple[str, ...] = ()


@dataclass(slots=True)
class _Free:
    millicpu: int
    mem: int
    gpus: dict[str, int]  # free thousandths of each GPU


@dataclass(slots=True)
class Room:
    """Free resources of some nodes, changed by `take`, `give` and `reserve`."""

    nodes: dict[str, _Free] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Room:
        """The room of empty nodes."""
        return cls({n.name: _Free(n.millicpu, n.mem, dict.fromkeys(n.gpus, 1000)) for n in nodes})

    def copy(self) -> Room:
        """An independent copy, to try things out on."""
        return Room(
            {name: _Free(f.millicpu, f.mem, dict(f.gpus)) for name, f in self.nodes.items()}
        )

    def take(self, need: Resources, placement: Placement) -> None:
        """Occupy `need` at `placement`."""
        self._shift(need, placement, -1)

    def give(self, need: Resources, placement: Placement) -> None:
        """Free what `take` occupied."""
        self._shift(need, placement, 1)

    def place(self, need: Resources, avoid: Collection[tuple[str, str]] = ()) -> Placement | None:
        """Where `need` fits, without taking it; `avoid` names (node, GPU) pairs to stay off.

        Nodes are filled in order. A fraction of a GPU goes where the least is left over, so
        that whole GPUs stay whole.
        """
        share = min(need.milligpu, 1000)
        for name, free in self.nodes.items():
            if free.millicpu < need.millicpu or free.mem < need.mem:
                continue
            usable = sorted(
                (left, order, gpu)
                for order, (gpu, left) in enumerate(free.gpus.items())
                if left >= share and (name, gpu) not in avoid
            )
            if len(usable) >= need.whole_gpus:
                return Placement(name, tuple(gpu for *_, gpu in usable[: need.whole_gpus]))
        return None

    def place_all(self, need: Resources, count: int) -> tuple[Placement, ...] | None:
        """Take room for `count` executors on GPUs of their own each; None if it isn't there."""
        trial = self.copy()
        placements: list[Placement] = []
        used: set[tuple[str, str]] = set()
        for _ in range(count):
            placement = trial.place(need, used)
            if placement is None:
                return None
            trial.take(need, placement)
            placements.append(placement)
            used |= {(placement.node, gpu) for gpu in placement.gpus}
        self.nodes = trial.nodes
        return tuple(placements)

    def reserve(self, need: Resources, count: int, able: Sequence[str]) -> None:
        """Keep what there is of `count` times `need` from those who come later.

        Nothing is kept but on `able`, the nodes that could hold one `need` if they were empty.
        """
        used: set[tuple[str, str]] = set()
        for _ in range(count if able else 0):
            name = max(able, key=lambda node: _fit(need, self.nodes[node]))
            free = self.nodes[name]
            free.millicpu = max(0, free.millicpu - need.millicpu)
            free.mem = max(0, free.mem - need.mem)
            fresh = [gpu for gpu in free.gpus if (name, gpu) not in used]
            fresh.sort(key=lambda gpu: -free.gpus[gpu])
            for gpu in fresh[: need.whole_gpus]:
                free.gpus[gpu] = max(0, free.gpus[gpu] - min(need.milligpu, 1000))
                used.add((name, gpu))

    def total(self) -> Resources:
        """All that is free, over all nodes."""
        frees = self.nodes.values()
        return Resources(
            sum(f.millicpu for f in frees),
            sum(f.mem for f in frees),
            sum(sum(f.gpus.values()) for f in frees),
        )

    def _shift(self, need: Resources, placement: Placement, sign: int) -> None:
        free = self.nodes[placement.node]
        free.millicpu += sign * need.millicpu
        free.mem += sign * need.mem
        for gpu in placement.gpus:
            free.gpus[gpu] += sign * min(need.milligpu, 1000)


def times(need: Resources, count: int) -> Resources:
    """`need`, `count` times."""
    return Resources(need.millicpu * count, need.mem * count, need.milligpu * count)


def fits_empty(need: Resources, count: int, nodes: Sequence[Node], *, distinct: bool) -> bool:
    """Whether `count` executors fit on empty nodes; `distinct`: on GPUs of their own each."""
    room = Room.of(nodes)
    if distinct:
        return room.place_all(need, count) is not None
    for _ in range(count):
        placement = room.place(need)
        if placement is None:
            return False
        room.take(need, placement)
    return True


def _fit(need: Resources, free: _Free) -> float:
    """How much of `need` is free on a node, 0 to 1."""
    parts = (
        (need.millicpu, free.millicpu),
        (need.mem, free.mem),
        (need.milligpu, sum(free.gpus.values())),
    )
    return min((min(1.0, have / want) for want, have in parts if want), default=1.0)
