"""What a service asks for, checked where it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from forage.app.resources import Resources, parse_resreq

UNLIMITED = 1 << 30
"""Stands for no `max_executors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """Per-call options; None leaves them to what the method, then the service, says.

    `timeout` is in seconds from submission; `retries` is how often a call runs again after its
    executor was lost.
    """

    timeout: float | None = None
    retries: int | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not _is_number(self.timeout, above=0):
            raise ValueError(f"timeout must be a number of seconds above 0, not {self.timeout!r}")
        if self.retries is not None and not _is_count(self.retries, least=0):
            raise ValueError(f"retries must be a whole number from 0, not {self.retries!r}")

    def over(self, other: MethodOptions) -> MethodOptions:
        """These options, completed by `other`."""
        return MethodOptions(
            timeout=other.timeout if self.timeout is None else self.timeout,
            retries=other.retries if self.retries is None else self.retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What `service(...)` and `.options(...)` take.

    Attributes:
        resreq: what each executor holds, `cpu=N,mem=SIZE,gpu=N`; None is one CPU.
        autoscale: True is an elastic session, False a gang of exactly `warmup` executors.
        warmup: executors kept at all times; None is 0 for an elastic session, 1 for a gang.
        max_executors: the most that an elastic session grows to; None is what fits.
        concurrency: calls that one executor takes at once.
        idle_timeout: seconds after which an idle executor above `warmup` is released.
        threads: what OMP_NUM_THREADS and its like say; None is the share of CPUs.
        retries: how often a call of an elastic session runs again after its executor was lost.
        timeout: seconds that a call may take from its submission; None is no limit.
    """

    resreq: str | None = None
    autoscale: bool = True
    warmup: int | None = None
    max_executors: int | None = None
    concurrency: int = 1
    idle_timeout: float = 60.0
    threads: int | None = None
    retries: int = 2
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.need == Resources():
            raise ValueError(f"resreq {self.resreq!r} holds nothing; ask for some cpu, mem or gpu")
        if not isinstance(self.autoscale, bool):
            raise TypeError(f"autoscale must be True or False, not {self.autoscale!r}")
        self._check_counts()
        if not _is_number(self.idle_timeout, above=-1e-9):
            raise ValueError(f"idle_timeout must be seconds from 0, not {self.idle_timeout!r}")
        MethodOptions(timeout=self.timeout, retries=self.retries)

    def _check_counts(self) -> None:
        least = {"warmup": 0 if self.autoscale else 1, "concurrency": 1, "threads": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not _is_count(value, least=bound):
                what = "a gang's warmup (its size)" if not self.autoscale else name
                raise ValueError(
                    f"{what if name == 'warmup' else name} must be a whole number from {bound}, "
                    f"not {value!r}"
                )
        if self.max_executors is None:
            return
        if not self.autoscale:
            raise ValueError("max_executors is for elastic sessions; a gang's size is its warmup")
        if not _is_count(self.max_executors, least=max(1, self.warmup or 0)):
            raise ValueError(
                f"max_executors must be a whole number of at least 1 and warmup "
                f"({self.warmup or 0}), not {self.max_executors!r}"
            )

    @property
    def need(self) -> Resources:
        """What each executor holds."""
        return parse_resreq(self.resreq)

    @property
    def size(self) -> int:
        """Executors at all times."""
        return self.warmup if self.warmup is not None else int(not self.autoscale)

    @property
    def limit(self) -> int:
        """The most executors."""
        if not self.autoscale:
            return self.size
        return self.max_executors if self.max_executors is not None else UNLIMITED

    @property
    def thread_count(self) -> int:
        """Threads for numerical libraries: as given, or the share of CPUs, at least one."""
        return self.threads or max(1, self.need.millicpu // 1000)

    def but(self, changes: dict[str, Any]) -> ServiceOptions:
        """These options with some changed; raises `TypeError` naming an unknown one."""
        unknown = sorted(set(changes) - set(self.__dataclass_fields__))
        if unknown:
            known = ", ".join(self.__dataclass_fields__)
            raise TypeError(f"unknown option {unknown[0]!r}; a service has {known}")
        return replace(self, **changes)


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any, *, above: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > above
    )
