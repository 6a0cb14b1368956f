"""A service runtime: classes and functions that run in warm, stateful executors.

    from forage import app

    @app.service(resreq="cpu=1")
    class Counter:
        def __init__(self, start): self.value = start
        def add(self, amount): self.value += amount; return self.value

    with app.init("example"):
        counter = Counter.remote(10)
        print(counter.add.remote(5).result())

It knows nothing of models. See `docs/app.md` for concepts and failure semantics.
"""

from forage.app.api import append, delete, fetch, get, put, rebase, replace
from forage.app.cache.refs import Ref, Update
from forage.app.contexts import Context, context
from forage.app.driver import App, init, shutdown, status
from forage.app.errors import (
    AppError,
    CacheFull,
    Deadlock,
    ExecutorLost,
    GangBroken,
    Infeasible,
    ObjectLost,
    RemoteError,
    SessionClosed,
    VersionConflict,
)
from forage.app.futures import as_completed, wait
from forage.app.packaging import Package, packaged
from forage.app.services import method, service
from forage.app.session import Session

__all__ = [
    "App",
    "AppError",
    "CacheFull",
    "Context",
    "Deadlock",
    "ExecutorLost",
    "GangBroken",
    "Infeasible",
    "ObjectLost",
    "Package",
    "Ref",
    "RemoteError",
    "Session",
    "SessionClosed",
    "Update",
    "VersionConflict",
    "append",
    "as_completed",
    "context",
    "delete",
    "fetch",
    "get",
    "init",
    "method",
    "packaged",
    "put",
    "rebase",
    "replace",
    "service",
    "shutdown",
    "status",
    "wait",
]
