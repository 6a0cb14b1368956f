"""The seam between the runtime and where its executors run.

An engine starts executors, carries messages to and from them and tells when one is lost. What
they are started for, and all that follows from a loss, is decided above (`forage.app.controller`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from forage.app.placement import Node, Placement
from forage.app.resources import Resources


@dataclass(frozen=True, slots=True)
class Site:
    """What an engine has to know of the app that it is for.

    Attributes:
        app: the app's name, with what makes it this run's.
        token: marks the app's processes.
        run_dir: where events and logs go; `temporary` says that it goes with the app.
        resources: caps what executors may hold in all, as `init` got it.
        cache: bytes of shared memory for the object cache; None is the default.
        address: of a running cluster.
        install: whether nodes install the project's dependencies.
    """

    app: str
    token: str
    run_dir: Path
    temporary: bool
    resources: str | None
    cache: int | None
    address: str | None
    install: bool

    @property
    def logs(self) -> Path:
        """The folder of executors' logs."""
        return self.run_dir / "logs"


@dataclass(frozen=True, slots=True)
class Launch:
    """An executor to start. `serial` is unique in the app; `name` is for people and files.

    The members of a gang are started one after the other and say its size; others say 1.
    """

    serial: int
    name: str
    need: Resources
    placement: Placement
    threads: int
    gang: str = ""
    size: int = 1


class Lost(NamedTuple):
    """An executor is gone. `exit` says how ("exit code 3", "signal SIGKILL", ...)."""

    exit: str
    log: str


@dataclass(frozen=True, slots=True)
class Demand:
    """Executors that a session lacks and that fit nowhere now; a gang's only `together`."""

    need: Resources
    count: int
    together: bool


class Event(NamedTuple):
    """Something happened to an executor: a message of `forage.app.wire`, or `Lost`."""

    serial: int
    message: Any


class Engine(Protocol):
    """All methods but `wake` are called from the controller's thread only."""

    name: str

    @property
    def nodes(self) -> Sequence[Node]:
        """The machines that executors can be placed on."""

    @property
    def grows(self) -> bool:
        """Whether machines may be added when executors fit nowhere (see `want`)."""

    def refuses(self, need: Resources, *, gang: bool) -> str:
        """Why executors of this kind can never run here; empty where they can."""

    def want(self, demands: Sequence[Demand]) -> None:
        """What executors are lacking now, all of it each time: machines may be added for them."""

    def start(self, launch: Launch) -> None:
        """Start an executor; its `Hello` or `Lost` follows as an event."""

    def send(self, serial: int, message: Any) -> None:
        """Send a message; silently dropped where the executor is already gone."""

    def kill(self, serial: int, reason: str = "") -> None:
        """End an executor and all its descendants now; `Lost` follows, with `reason` as exit."""

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait up to `timeout` seconds for events; returns early after `wake`."""

    def wake(self) -> None:
        """Make `poll` return; from any thread."""

    def close(self) -> None:
        """End all executors and free everything."""
