"""Calls on their way, as the controller keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from forage.app.placement import Placement
from forage.app.scheduler import ExecutorView, Phase
from forage.app.wire import Fills, Outcome, Packed, Submission


class CallState(Enum):
    """Where a call stands."""

    HELD = "held"  # waits for futures among its arguments
    QUEUED = "queued"
    RUNNING = "running"
    SETTLED = "settled"


@dataclass(slots=True, eq=False)
class Call:
    """One call. `begin` tells its caller that it starts; False means that it was cancelled.

    A settled call is over for its caller; `runners` may still be at it.
    """

    submission: Submission
    origin: int  # serial of the calling executor, 0 for the driver
    deadline: float | None
    begin: Callable[[], bool]
    settle: Callable[[Outcome], None]
    state: CallState = CallState.QUEUED
    fills: Fills = ()
    retries: int = 0
    begun: bool = False
    runners: dict[int, int] = field(default_factory=dict)  # serial: rank, of those still at it
    results: dict[int, Packed] = field(default_factory=dict)  # by rank

    @property
    def id(self) -> int:
        """Unique in the app."""
        return self.submission.call

    @property
    def label(self) -> str:
        """Names the call in messages."""
        return f"{self.submission.session}.{self.submission.method}"

    @property
    def settled(self) -> bool:
        """Whether its caller knows how it ended."""
        return self.state is CallState.SETTLED


@dataclass(slots=True, eq=False)
class Executor:
    """One executor. `waits` holds, by running call, the calls that it has waited for a while."""

    serial: int
    name: str
    session: str
    rank: int
    placement: Placement
    phase: Phase = Phase.STARTING
    idle_since: float = 0.0
    meeting: str | None = None  # host:port, once it has said hello
    address: str = ""
    pid: int = 0
    gpus: tuple[str, ...] = ()  # as the process sees them, once it has said hello
    failed: bool = False  # its constructor raised; its end is no further news
    calls: dict[int, Call] = field(default_factory=dict)
    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def takes_calls(self) -> bool:
        """Whether it is constructed and not on its way out."""
        return self.phase in (Phase.IDLE, Phase.BUSY)

    def view(self, now: float) -> ExecutorView:
        """What the scheduler needs to know."""
        idle = now - self.idle_since if self.phase is Phase.IDLE else 0.0
        return ExecutorView(self.name, self.placement, self.phase, idle)
