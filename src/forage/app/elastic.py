"""Elastic sessions: as many executors as calls want; any of them takes any call."""

from __future__ import annotations

from dataclasses import replace

from forage.app import failures
from forage.app.calls import Call, CallState, Executor
from forage.app.engines.base import Lost
from forage.app.errors import ExecutorLost
from forage.app.placement import Placement
from forage.app.pool import Pool
from forage.app.scheduler import Phase, SessionView
from forage.app.wire import Failure, Packed


class ElasticPool(Pool):
    """See `forage.app.pool.Pool`."""

    def dispatch(self) -> None:
        """Give queued calls, in order, to the executors with the fewest."""
        while self.queue and (executor := self._freest()) is not None:
            self.run(self.queue[0], [executor])

    def _freest(self) -> Executor | None:
        """The executor with the fewest calls, if any takes one more.

        Of equally free ones the last used: the others may then idle out.
        """
        freest, fewest = None, self.options.concurrency
        for executor in self.executors.values():
            calls = len(executor.calls)
            if calls > fewest or not executor.takes_calls:
                continue
            if calls < fewest or (freest and executor.idle_since > freest.idle_since):
                freest, fewest = executor, calls
        return freest

    def start(self, placements: tuple[Placement, ...]) -> None:
        """Start one executor per placement."""
        for placement in placements:
            self.hub.launch(self, 0, placement)

    def said_hello(self, executor: Executor) -> None:
        """Construct its object at once."""
        self.construct(executor, 0, 1, "")

    def returned(self, executor: Executor, call: Call, outcome: Packed | Failure) -> None:
        """Pass the outcome on."""
        if isinstance(outcome, Failure):
            self.hub.ledger.settle(call, outcome)
        else:
            call.results[0] = outcome
            self.hub.ledger.settle(call, self.collect(call))

    def lost(self, executor: Executor, lost: Lost) -> None:
        """Run its calls again elsewhere, as often as each allows."""
        del self.executors[executor.serial]
        again: list[Call] = []
        for call in executor.calls.values():
            call.runners.clear()
            if call.settled:
                self.hub.ledger.free(call)
                continue
            if call.retries > 0:
                call.retries -= 1
                self.retried += 1
                call.state = CallState.QUEUED
                again.append(call)
                self.hub.event("call_retried", session=self.id, call=call.label, exit=lost.exit)
            else:
                self.hub.ledger.settle(call, failures.encode(self._error(executor, call, lost)))
        self.queue.extendleft(sorted(again, key=lambda call: call.id, reverse=True))
        if executor.phase is Phase.STARTING:
            self.count_failure(failures.encode(self._error(executor, None, lost)))
        self.dispatch()
        self._give_up_if_alone()
        self.check_drained()

    def constructor_failed(self) -> None:
        """After too many failures grow no more; with nobody left, fail."""
        self._give_up_if_alone()

    def view(self, now: float) -> SessionView:
        """A session that can't construct more executors wants no more than it has."""
        view = super().view(now)
        if not self.gave_up:
            return view
        return replace(view, warmup=min(view.warmup, view.alive), limit=view.alive)

    def _give_up_if_alone(self) -> None:
        alone = not any(e.takes_calls for e in self.executors.values())
        if self.gave_up and alone and self._last_failure is not None:
            self.failure = self._last_failure
            self.fail_queued(self.failure)

    def _error(self, executor: Executor, call: Call | None, lost: Lost) -> ExecutorLost:
        what = f"{call.label} lost its executor" if call else "lost while it was constructed:"
        return ExecutorLost(
            f"{what} {executor.name}",
            why=lost.exit,
            remedy="its calls may run again elsewhere: see `retries`" if call else "",
            session=self.id,
            executor=executor.name,
            exit=lost.exit,
            log=lost.log,
        )
