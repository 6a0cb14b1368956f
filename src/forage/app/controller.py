"""What callers and executors say to an app, and what follows from it."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from forage.app import failures
from forage.app.cache.directory import SLOW_OPERATIONS, Directory
from forage.app.calls import Call, CallState
from forage.app.engines.base import Engine, Lost
from forage.app.errors import AppError, SessionClosed
from forage.app.events import EventLog
from forage.app.fleet import Fleet
from forage.app.gang import GangPool
from forage.app.pool import Pool
from forage.app.standing import describe
from forage.app.wire import (
    Answer,
    Ask,
    Drop,
    Failure,
    Fills,
    Finished,
    Hello,
    NotReady,
    Outcome,
    Ready,
    Settled,
    Stuck,
    Submission,
    Submit,
    Supply,
)


class Controller(Fleet):
    """Sessions, calls and messages of an app. All methods run in the loop's thread."""

    def __init__(self, engine: Engine, directory: Directory, events: EventLog) -> None:
        super().__init__(engine, directory, events)
        self.directory = directory
        self.functions: dict[Any, str] = {}
        """The sessions that functions share, by definition and options."""
        self._slow: queue.SimpleQueue[tuple[int, Ask] | None] = queue.SimpleQueue()
        threading.Thread(target=self._answer_slowly, name="forage-cache", daemon=True).start()

    # Sessions

    def add(self, pool: Pool) -> None:
        """Take a new session."""
        self.pools[pool.id] = pool
        pool.closed.add_done_callback(lambda _: self._remove(pool))
        self.event("session_opened", session=pool.id, resreq=str(pool.options.need))
        self.replan()

    def pool(self, session: str) -> Pool:
        """A session that isn't closed; raises `SessionClosed`."""
        pool = self.pools.get(session)
        if pool is None:
            raise SessionClosed(f"session {session} is closed", session=session)
        return pool

    def gang(self, session: str) -> GangPool:
        """A session that is a gang."""
        pool = self.pool(session)
        if not isinstance(pool, GangPool):
            raise TypeError(f"session {session} is elastic")
        return pool

    def drain(self) -> list[Future[None]]:
        """Close all sessions together; each may be called until none has a call left."""
        self.draining = True
        pools = list(self.pools.values())
        for pool in pools:
            pool.closing = True
        self.replan()
        return [pool.closed for pool in pools]

    def _remove(self, pool: Pool) -> None:
        self.pools.pop(pool.id, None)
        self.ledger.release(pool.args, f"session-{pool.id}")
        self.ledger.release(pool.service, f"session-{pool.id}")

    def stop(self) -> None:
        """End the threads, and the engine with them."""
        self._slow.put(None)
        super().stop()

    def status(self) -> dict[str, Any]:
        """What runs now, as plain data."""
        return describe(self, self.directory)

    # Calls

    def submit(self, submission: Submission, origin: int, begin: Any, settle: Any) -> None:
        """Take a call from the driver (`origin` 0) or an executor."""
        call = self.ledger.open(submission, origin, begin, settle)
        if call.settled:
            return
        try:
            pool = self.pool(submission.session)
        except SessionClosed as error:
            self.ledger.settle(call, failures.encode(error))
            return
        if submission.timeout is not None:
            self.after(submission.timeout, partial(self._expire, call.id))
        pool.submit(call)

    def supply(self, call_id: int, fills: Fills | Failure) -> None:
        """A held call gets the values that it waited for, or fails with one of them."""
        call = self.ledger.calls.get(call_id)
        if call is None or call.state is not CallState.HELD:
            for _, values in fills if not isinstance(fills, Failure) else ():
                self.ledger.discard(values)
            return
        pool = self.pools[call.submission.session]
        pool.held.discard(call)
        if isinstance(fills, Failure):
            self.ledger.settle(call, fills)
        elif self.ledger.fill(call, fills):
            pool.enqueue(call)
        pool.check_drained()

    def cancel(self, call_id: int) -> bool:
        """Forget a call unless it has begun."""
        call = self.ledger.calls.get(call_id)
        if call is None or call.begun or call.settled:
            return False
        pool = self.pools[call.submission.session]
        pool.take_back(call)
        self.ledger.withdraw(call)
        pool.check_drained()
        return True

    def forget_cancelled(self, call_id: int) -> None:
        """The driver has cancelled a call."""
        self.cancel(call_id)

    def _expire(self, call_id: int) -> None:
        call = self.ledger.calls.get(call_id)
        if call is None:
            return
        timeout = call.submission.timeout
        where = ", ".join(self.executors[serial].name for serial in call.runners)
        state = f"it was running in {where}" if where else "it hadn't started"
        error = TimeoutError(f"{call.label} timed out after {timeout:g} s: {state}")
        self.event("call_timed_out", session=call.submission.session, call=call.label)
        self._fail(call, error)
        for serial in call.runners:
            self.kill(serial, f"killed: {call.label} timed out after {timeout:g} s")

    def _fail(self, call: Call, error: Exception) -> None:
        pool = self.pools[call.submission.session]
        pool.take_back(call)
        self.ledger.settle(call, failures.encode(error))
        pool.check_drained()

    # Messages

    def receive(self, serial: int, message: Any) -> None:
        """Something came from an executor."""
        executor = self.executors[serial]
        pool = self.pools[executor.session]
        match message:
            case Finished():
                pool.finished(executor, message)
            case Ask():
                self._answer(serial, message)
            case Submit(submission):
                settle = partial(self._settle_remote, serial, submission.call)
                self.submit(submission, serial, lambda: True, settle)
            case Supply(call, fills):
                self.supply(call, fills)
            case Drop(call):
                self.ledger.drop(call)
            case Stuck(waits):
                executor.waits = dict(waits)
            case Hello():
                pool.hello(executor, message)
            case Ready():
                pool.ready(executor)
            case NotReady():
                pool.not_ready(executor, message)
            case Lost():
                for orphan in self.ledger.forget(serial):  # nobody waits for these any more
                    self.cancel(orphan.id)
                self.lost(pool, executor, message)

    def _settle_remote(self, serial: int, call: int, outcome: Outcome) -> None:
        self.send(serial, Settled(call, outcome))

    # What executors ask for

    def _answer(self, serial: int, ask: Ask) -> None:
        if ask.op in SLOW_OPERATIONS:
            self._slow.put((serial, ask))
        elif ask.op == "close":
            self._close_for(serial, ask)
        else:
            self.send(serial, self._reply(ask))

    def _answer_slowly(self) -> None:
        """In a thread of its own: what copies files."""
        while (asked := self._slow.get()) is not None:
            serial, ask = asked
            self.post(partial(self.send, serial, self._reply(ask)))

    def _reply(self, ask: Ask) -> Answer:
        try:
            return Answer(ask.request, self._do(ask.op, ask.args), None)
        except Exception as error:  # it belongs to the one who asked
            return Answer(ask.request, None, failures.encode(error))

    def _do(self, op: str, args: tuple[Any, ...]) -> Any:
        match op:
            case "cancel":
                return self.cancel(*args)
            case "function_session":
                return self._function_session(*args)
            case "reform":
                return self.gang(*args).reform()
            case _:
                return self.directory.call(op, *args)

    def _close_for(self, serial: int, ask: Ask) -> None:
        """Answer once the session is closed."""
        session = self.pools.get(ask.args[0])
        answer = Answer(ask.request, None, None)
        if session is None:
            self.send(serial, answer)
        else:
            session.closed.add_done_callback(lambda _: self.send(serial, answer))
            session.close()

    def _function_session(self, key: Any) -> str:
        session: str | None = self.functions.get(key)
        if session is None:
            raise AppError(
                f"function {key[1]} has no session yet",
                why="sessions are opened by the driver, not in executors",
                remedy="call it once in the driver first",
            )
        return session
