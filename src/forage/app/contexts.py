"""Where code runs: what an executor knows about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The place of the running code.

    Outside an executor it describes a world of one, so that a service that is called plainly
    works the same. `rendezvous` is `host:port` where a gang's members meet: free on rank 0's
    node, and new in each generation; empty outside gangs.
    """

    app: str = ""
    session: str = ""
    executor: str = ""
    rank: int = 0
    size: int = 1
    generation: int = 0
    address: str = "127.0.0.1"
    gpus: tuple[str, ...] = ()
    rendezvous: str = ""


_here = Context()


def context() -> Context:
    """The context of this process."""
    return _here


def enter(here: Context) -> None:
    """Make `here` this process's context; an executor calls it before it constructs its object."""
    global _here
    _here = here
