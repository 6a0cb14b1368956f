"""Declaring services: what they stay, what they gain, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest
from app_services import Worker, square, square_later

from forage import app


def test_a_decorated_class_stays_what_it_is() -> None:
    assert inspect.isclass(Worker)
    worker = Worker(4)
    assert isinstance(worker, Worker)
    assert worker.add(3) == 7
    assert pickle.loads(pickle.dumps(Worker)) is Worker
    with pytest.raises(AttributeError, match="belongs to the class"):
        worker.remote  # noqa: B018


def test_a_decorated_function_stays_what_it_is() -> None:
    assert inspect.isfunction(square)
    assert square(5) == 25
    assert asyncio.run(square_later(6)) == 36


def test_outside_an_executor_the_context_is_a_world_of_one() -> None:
    here = app.context()
    assert (here.rank, here.size, here.generation, here.rendezvous) == (0, 1, 0, "")


def test_functions_run_in_executors(running: app.App) -> None:
    assert [f.result() for f in [square.remote(n) for n in range(4)]] == [0, 1, 4, 9]
    assert square_later.remote(7).result() == 49
    assert len(running.status()["sessions"]) == 2
    assert square.options(warmup=1).remote(3).result() == 9
    assert len(running.status()["sessions"]) == 3


def test_a_subclass_opens_itself_with_inherited_options(running: app.App) -> None:
    class Doubler(Worker):
        def add(self, amount: int = 1) -> int:
            return super().add(2 * amount)

    assert Doubler.remote(1).add.remote(3).result() == 7  # type: ignore[attr-defined]


def test_every_session_is_its_own(running: app.App) -> None:
    first, second = Worker.remote(1), Worker.remote(2)
    assert (first.add.remote().result(), second.add.remote().result()) == (2, 3)
    assert first.id != second.id


@pytest.mark.parametrize("target", [3, "text", len, Worker(), lambda: None])
def test_only_classes_and_functions_are_services(target: Any) -> None:
    if inspect.isfunction(target):
        app.service(target)
        return
    with pytest.raises(TypeError, match="a service is a class or a function"):
        app.service(target)


@pytest.mark.parametrize("name", ["close", "id", "options", "reform", "remote"])
def test_reserved_method_names(name: str) -> None:
    with pytest.raises(TypeError, match=f"Clash.{name}: the name is reserved"):
        app.service(type("Clash", (), {name: lambda self: None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": -1}, "warmup must be a whole number from 0, not -1"),
        ({"warmup": 0, "autoscale": False}, "a gang's warmup .* from 1, not 0"),
        ({"warmup": -2, "autoscale": False}, "a gang's warmup .* from 1, not -2"),
        ({"warmup": True}, "warmup must be a whole number"),
        ({"warmup": 1.5}, "warmup must be a whole number"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"threads": 0}, "threads must be a whole number from 1"),
        ({"max_executors": 0}, "max_executors must be a whole number of at least 1"),
        ({"max_executors": 1, "warmup": 2}, r"at least 1 and warmup \(2\)"),
        ({"max_executors": 2, "autoscale": False}, "a gang's size is its warmup"),
        ({"idle_timeout": -1}, "idle_timeout must be seconds from 0"),
        ({"idle_timeout": float("nan")}, "idle_timeout"),
        ({"retries": -1}, "retries must be a whole number from 0"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"resreq": "cpu=1,"}, "resreq 'cpu=1,'"),
        ({"resreq": "cpu=0"}, "holds nothing"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Worker.options(**options)


def test_options_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="unknown option 'warm_up'; a service has resreq"):
        Worker.options(warm_up=2)
    with pytest.raises(TypeError, match="resreq must be text"):
        Worker.options(resreq=2)
    with pytest.raises(TypeError, match="autoscale must be True or False"):
        Worker.options(autoscale="yes")
    with pytest.raises(ValueError, match="a function can't be a gang"):
        app.service(autoscale=False)(lambda: None)


def test_a_session_knows_its_methods(running: app.App) -> None:
    session = Worker.remote()
    with pytest.raises(AttributeError, match="no method 'ad'; did you mean 'add'"):
        session.ad  # noqa: B018
    with pytest.raises(TypeError, match=r"Worker.add runs in executors: call add.remote"):
        session.add(1)
    with pytest.raises(TypeError, match="only gangs broadcast"):
        session.add.broadcast(1)
    with pytest.raises(TypeError, match="only a gang can be reformed"):
        session.reform()


def test_there_is_one_app_per_process(running: app.App) -> None:
    with pytest.raises(app.AppError, match="app 'contract' is running"):
        app.init("second")


def test_without_an_app_nothing_runs() -> None:
    for use in (Worker.remote, lambda: app.put(1), app.status):
        with pytest.raises(app.AppError, match=r"no app is running; start one: app.init"):
            use()
    app.shutdown()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "slurm"}, "engine must be .*, not 'slurm'"),
        ({"name": ""}, "an app's name"),
        ({"name": "a/b"}, "an app's name"),
        ({"resources": "cpu"}, "resreq 'cpu'"),
        ({"cache": "much"}, "cache must be a size .*, not 'much'"),
    ],
)
def test_malformed_init(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        app.init(**{"name": "x", **arguments})


def test_the_public_names_are_those_of_the_contract() -> None:
    names = """
        init shutdown service method put append replace rebase get fetch delete as_completed wait
        context status packaged
    """
    errors = """
        AppError GangBroken ExecutorLost Infeasible Deadlock SessionClosed CacheFull ObjectLost
        VersionConflict RemoteError
    """
    types = ["App", "Context", "Package", "Ref", "Session", "Update"]
    assert sorted(app.__all__) == sorted([*names.split(), *errors.split(), *types])
    for name in errors.split():
        assert issubclass(getattr(app, name), app.AppError)


def test_the_runtime_imports_no_numerical_library() -> None:
    code = (
        "import sys, forage.app, forage.app.executor\n"
        "heavy = {'numpy', 'torch', 'asyncio', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_user_code_decides_what_executors_import(running: app.App, engine: str) -> None:
    modules = Worker.remote().modules.remote().result()
    assert "numpy" not in modules or engine == "ray"  # whose workers import it themselves
    assert "pytest" not in modules
