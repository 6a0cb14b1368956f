"""The executors and the queue of one session: what elastic sessions and gangs have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from forage.app import failures
from forage.app.calls import Call, CallState, Executor
from forage.app.contexts import Context
from forage.app.engines.base import Lost
from forage.app.errors import SessionClosed
from forage.app.options import ServiceOptions
from forage.app.placement import Placement
from forage.app.scheduler import Phase, SessionView
from forage.app.wire import (
    Construct,
    Failure,
    Finished,
    Hello,
    Invoke,
    NotReady,
    Packed,
    Values,
)

if TYPE_CHECKING:
    from forage.app.fleet import Fleet

CONSTRUCTOR_ATTEMPTS = 5


class Pool(ABC):
    """One session, in the controller's thread."""

    gang = False

    def __init__(
        self,
        hub: Fleet,
        id: str,
        app: str,
        options: ServiceOptions,
        service: Packed,
        args: Packed,
    ) -> None:
        self.hub = hub
        self.id = id
        self.options = options
        self.executors: dict[int, Executor] = {}
        self.queue: deque[Call] = deque()
        self.held: set[Call] = set()
        self.failure: Failure | None = None  # why it can take no calls
        self.closing = False
        self.yields = False
        self.closed: Future[None] = Future()
        self.generation = 0
        self.retried = 0  # calls that ran again because their executor was lost
        self._app = app
        self.service = service
        self.args = args
        self._constructor_failures = 0
        self._last_failure: Failure | None = None

    # What the two kinds decide for themselves.

    @abstractmethod
    def dispatch(self) -> None:
        """Hand queued calls to executors."""

    @abstractmethod
    def start(self, placements: tuple[Placement, ...]) -> None:
        """Start executors where the scheduler put them."""

    @abstractmethod
    def said_hello(self, executor: Executor) -> None:
        """An executor's process is up."""

    @abstractmethod
    def lost(self, executor: Executor, lost: Lost) -> None:
        """An executor is gone."""

    @abstractmethod
    def returned(self, executor: Executor, call: Call, outcome: Packed | Failure) -> None:
        """A call has ended in an executor."""

    @abstractmethod
    def constructor_failed(self) -> None:
        """An executor couldn't be constructed."""

    # Calls

    def submit(self, call: Call) -> None:
        """Take a call; one made by an executor is taken while the session drains, too."""
        if self.closed.done() or (self.closing and not call.origin):
            error = SessionClosed(f"session {self.id} is closed", session=self.id)
            self.hub.ledger.settle(call, failures.encode(error))
        elif self.failure is not None:
            self.hub.ledger.settle(call, self.failure)
        elif call.state is CallState.HELD:
            self.held.add(call)
        else:
            self.enqueue(call)

    def enqueue(self, call: Call) -> None:
        """Put a call at the end of the queue."""
        call.state = CallState.QUEUED
        waiting = bool(self.queue)  # then nobody is free
        self.queue.append(call)
        if not waiting:
            self.dispatch()
        if self.queue:
            self.hub.replan()

    def take_back(self, call: Call) -> None:
        """Take a call out of the queue if it is there."""
        self.held.discard(call)
        if call.state is CallState.QUEUED:
            self.queue.remove(call)

    def run(self, call: Call, executors: list[Executor]) -> None:
        """Run the head of the queue, unless its caller has cancelled it meanwhile."""
        self.queue.popleft()
        if not call.begun and not call.begin():
            self.hub.ledger.withdraw(call)
            return
        call.begun = True
        call.state = CallState.RUNNING
        submission = call.submission
        message = Invoke(call.id, submission.method, submission.args, call.fills)
        for executor in executors:
            call.runners[executor.serial] = executor.rank
            executor.calls[call.id] = call
            executor.phase = Phase.BUSY
            self.hub.send(executor.serial, message)

    def finished(self, executor: Executor, message: Finished) -> None:
        """A call has ended in an executor, whether or not anybody still waits for it."""
        call = executor.calls.pop(message.call)
        executor.waits.pop(message.call, None)
        del call.runners[executor.serial]
        if call.settled:
            self.hub.ledger.discard(message.outcome)
        else:
            self.returned(executor, call, message.outcome)
        self.hub.ledger.free(call)
        if not executor.calls:
            executor.idle_since = time.monotonic()
            if executor.phase is Phase.BUSY:
                executor.phase = Phase.IDLE
            elif executor.phase is Phase.ENDING:
                self.hub.dismiss(executor)
        self.dispatch()
        if executor.phase is Phase.IDLE:
            self.hub.executor_idle()
        self.check_drained()

    def fail_queued(self, failure: Failure) -> None:
        """Fail all calls that haven't begun."""
        waiting = [*self.queue, *self.held]
        self.queue.clear()
        self.held.clear()
        for call in waiting:
            self.hub.ledger.settle(call, failure)

    # Executors

    def ready(self, executor: Executor) -> None:
        """An executor is constructed."""
        if executor.phase is not Phase.STARTING:  # on its way out already
            return
        executor.phase = Phase.IDLE
        executor.idle_since = time.monotonic()
        if self.proven:
            self._constructor_failures = 0
        self.hub.event("executor_ready", session=self.id, executor=executor.name)
        self.dispatch()
        self.hub.replan()

    def not_ready(self, executor: Executor, message: NotReady) -> None:
        """A constructor raised; the executor leaves by itself."""
        executor.failed = True
        executor.phase = Phase.ENDING
        self.hub.dismiss(executor)
        self.count_failure(message.failure)

    def end(self, executor: Executor) -> None:
        """Let an executor finish its calls and leave."""
        starting = executor.phase is Phase.STARTING
        executor.phase = Phase.ENDING
        if starting:
            self.hub.kill(executor.serial, "no longer needed")
        elif not executor.calls:
            self.hub.dismiss(executor)

    def construct(self, executor: Executor, rank: int, size: int, rendezvous: str) -> None:
        """Tell an executor what to build."""
        context = Context(
            app=self._app,
            session=self.id,
            executor=executor.name,
            rank=rank,
            size=size,
            generation=self.generation,
            address=executor.address,
            gpus=executor.gpus,
            rendezvous=rendezvous,
        )
        message = Construct(self.service, self.args, context, self.options.concurrency)
        self.hub.send(executor.serial, message)

    def hello(self, executor: Executor, message: Hello) -> None:
        """Note where an executor can be met."""
        executor.pid = message.pid
        executor.address = message.address
        executor.gpus = message.gpus
        executor.meeting = f"{message.address}:{message.port}"
        self.said_hello(executor)

    def count_failure(self, failure: Failure) -> None:
        """An executor wasn't constructed: its constructor raised, or its process died in it."""
        self._constructor_failures += 1
        self._last_failure = failure
        self.hub.event(
            "constructor_failed",
            session=self.id,
            attempt=self._constructor_failures,
            error=f"{failure.type_name}: {failure.message}",
        )
        self.constructor_failed()
        self.hub.replan()

    @property
    def proven(self) -> bool:
        """Whether the constructor has been seen to work."""
        return True

    @property
    def gave_up(self) -> bool:
        """Whether the constructor has failed too often in a row."""
        return self._constructor_failures >= CONSTRUCTOR_ATTEMPTS

    # Life

    def close(self) -> None:
        """Take no more calls; end when there are none left."""
        self.closing = True
        self.hub.replan()
        self.check_drained()

    @property
    def drained(self) -> bool:
        """Whether no call waits or runs."""
        return not (self.queue or self.held or any(e.calls for e in self.executors.values()))

    def check_drained(self) -> None:
        """Free the executors of a closing session that has no call left."""
        # When the app ends, sessions may call each other until all of them have none left.
        if self.closing and self.drained and not self.hub.draining:
            self.release_all()

    def make_way(self) -> None:
        """Keep no executor for calls that may still come: the app ends, and others wait."""
        self.yields = True

    def release_all(self) -> None:
        """End all executors, and the session once they are gone."""
        self.yields = True
        for executor in list(self.executors.values()):
            if executor.phase is not Phase.ENDING:
                self.end(executor)
        if not self.executors and not self.closed.done():
            self.hub.event("session_closed", session=self.id)
            self.closed.set_result(None)
            self.hub.replan()

    def view(self, now: float) -> SessionView:
        """What the scheduler needs to know."""
        running = {
            call.id for executor in self.executors.values() for call in executor.calls.values()
        }
        return SessionView(
            id=self.id,
            need=self.options.need,
            gang=self.gang,
            warmup=self.options.size if self.gang or not self.yields else 0,
            limit=self.options.limit,
            concurrency=self.options.concurrency,
            idle_timeout=self.options.idle_timeout,
            pending=len(self.queue),
            running=len(running),
            executors=tuple(executor.view(now) for executor in self.executors.values()),
        )

    def collect(self, call: Call) -> Values:
        """The values of a call that has returned everywhere, in rank order."""
        ranks = sorted(call.results)
        return Values(tuple(call.results[rank] for rank in ranks), call.submission.broadcast)
