"""What is known of a configuration key beside its type and default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What `--help` and the checks know about a key, beside its type and default.

    Attributes:
        at_least: smallest value allowed.
        above: value that it must exceed.
        why: the reason for the limit, added to the error.
        choices: the values that there are, if they can be listed.
        may_change: whether `--resume` accepts another value than the run started with. Only keys
            that leave the mathematics of the run alone are marked; the order in which floating
            point sums are formed may still differ.
    """

    group: str
    help: str
    unit: str = ""
    at_least: float | None = None
    above: float | None = None
    why: str = ""
    choices: tuple[str, ...] = ()
    may_change: bool = False


def option(default: Any, group: str, help: str, **more: Any) -> Any:
    """A dataclass field with its `Option`."""
    return field(default=default, metadata={"option": Option(group=group, help=help, **more)})
