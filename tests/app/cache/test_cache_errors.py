"""The runtime's errors keep their attributes and message between processes."""

from __future__ import annotations

import pickle

import pytest

from forage.app import errors
from forage.app.errors import AppError

EXAMPLES = [
    AppError("no room", why="the machine is full", remedy="stop something"),
    errors.GangBroken("gang t-1 broke", session="t-1", rank=1, exit="signal SIGKILL", log="a\nb\n"),
    errors.ExecutorLost("e-3 died", session="r-1", executor="e-3", exit="exit code 3", log="oops"),
    errors.Infeasible("gpu=9 can't fit", why="9 > 8"),
    errors.Deadlock("calls wait in a circle", sessions=["a", "b"]),
    errors.SessionClosed("session a is closed", session="a"),
    errors.CacheFull("full", needed=5, budget=3, disk_budget=1, holders=[("model", 2)]),
    errors.ObjectLost("gone", key="model"),
    errors.VersionConflict("lost the race", key="model", expected=2, found=3),
    errors.RemoteError("failed", type_name="x.Odd", traceback="Traceback ..."),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_whole(error: AppError) -> None:
    error.add_note("seen on the way")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.__notes__ == ["seen on the way"]


def test_every_error_has_an_example_and_is_in_the_tree() -> None:
    kinds = {type(error) for error in EXAMPLES}
    assert kinds == {AppError, *AppError.__subclasses__()}
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in kinds)


def test_a_message_says_what_why_and_the_remedy() -> None:
    assert str(EXAMPLES[0]) == "no room: the machine is full; stop something"
    assert str(AppError("no room")) == "no room"


def test_a_lost_process_shows_its_last_log_lines() -> None:
    assert str(EXAMPLES[1]).endswith("last log lines:\na\nb")
