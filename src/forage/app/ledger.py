"""Calls from submission to settlement, and who holds their large values meanwhile.

A large argument is held by its call, a large result by its caller; the process that wrote it lets
go as soon as either has it. What nobody holds is freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forage.app import failures
from forage.app.cache.directory import Directory
from forage.app.cache.refs import Parcel
from forage.app.calls import Call, CallState
from forage.app.errors import AppError
from forage.app.wire import Fills, Outcome, Packed, Submission, Values

DRIVER = "driver"
"""The driver's name as a writer of the cache."""


def writer_name(serial: int) -> str:
    """A process's name as a writer of the cache; 0 is the driver."""
    return f"e{serial}" if serial else DRIVER


class Ledger:
    """All calls that aren't settled, and the results that callers hold."""

    def __init__(self, directory: Directory) -> None:
        self.calls: dict[int, Call] = {}
        self._directory = directory
        self._results: dict[int, tuple[int, list[Parcel]]] = {}  # call: (caller, parcels)
        self._gone: set[int] = set()  # executors whose results nobody will ever drop

    def open(
        self,
        submission: Submission,
        origin: int,
        begin: Callable[[], bool],
        settle: Callable[[Outcome], None],
    ) -> Call:
        """Enter a call; settled at once where its arguments are lost."""
        timeout = submission.timeout
        call = Call(
            submission,
            origin,
            None if timeout is None else time.monotonic() + timeout,
            begin,
            settle,
            state=CallState.HELD if submission.held else CallState.QUEUED,
            retries=submission.retries,
        )
        self.calls[call.id] = call
        try:
            self.pass_on(submission.args, _holder(call))
        except AppError as error:
            self.settle(call, failures.encode(error))
        return call

    def fill(self, call: Call, fills: Fills) -> bool:
        """Give a held call the values it waited for; False where that settles it."""
        try:
            for _, values in fills:
                for packed in values.packed:
                    self.pass_on(packed, _holder(call))
        except AppError as error:
            self.settle(call, failures.encode(error))
            return False
        call.fills = fills
        return True

    def settle(self, call: Call, outcome: Outcome) -> None:
        """Tell the caller how a call ended, unless it knows."""
        if call.settled:
            self.discard(outcome)
            return
        call.state = CallState.SETTLED
        del self.calls[call.id]
        if isinstance(outcome, Values):
            self._keep_results(call, outcome)
        else:
            for packed in call.results.values():
                self.discard(packed)
        call.settle(outcome)
        self.free(call)

    def withdraw(self, call: Call) -> None:
        """Forget a call whose caller has cancelled it."""
        call.state = CallState.SETTLED
        del self.calls[call.id]
        self.free(call)

    def drop(self, call_id: int) -> None:
        """The caller holds a call's results no longer."""
        _, parcels = self._results.pop(call_id, (0, []))
        for parcel in parcels:
            self._directory.release(parcel.key, f"result-{call_id}")

    def pass_on(self, packed: Packed, holder: str) -> None:
        """Pass a large value from the process that wrote it to `holder`."""
        if isinstance(packed, Parcel):
            self._directory.retain(packed.key, holder)
            self._directory.release(packed.key, _writer_of(packed))

    def discard(self, outcome: Packed | Outcome) -> None:
        """Free what a process wrote and nobody took."""
        packed = outcome.packed if isinstance(outcome, Values) else (outcome,)
        for value in packed:
            if isinstance(value, Parcel):
                self._directory.release(value.key, _writer_of(value))

    def release(self, packed: Packed, holder: str) -> None:
        """Let `holder` go of a large value."""
        if isinstance(packed, Parcel):
            self._directory.release(packed.key, holder)

    def free(self, call: Call) -> None:
        """Free the arguments of a settled call, unless some rank is still at it."""
        if not call.settled or call.runners:
            return
        holder = _holder(call)
        self.release(call.submission.args, holder)
        for _, values in call.fills:
            for packed in values.packed:
                self.release(packed, holder)

    def forget(self, serial: int) -> list[Call]:
        """An executor is gone: free what it held; returns the calls that it had made."""
        self._gone.add(serial)
        for call_id, (origin, _) in list(self._results.items()):
            if origin == serial:
                self.drop(call_id)
        self._directory.forget(writer_name(serial))
        return [call for call in self.calls.values() if call.origin == serial]

    def _keep_results(self, call: Call, values: Values) -> None:
        parcels = [packed for packed in values.packed if isinstance(packed, Parcel)]
        if not parcels:
            return
        for parcel in parcels:
            self.pass_on(parcel, f"result-{call.id}")
        self._results[call.id] = (call.origin, parcels)
        if call.origin in self._gone:
            self.drop(call.id)


def _holder(call: Call) -> str:
    return f"call-{call.id}"


def _writer_of(parcel: Parcel) -> str:
    return parcel.blob.name.partition("/")[0]
