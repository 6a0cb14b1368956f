"""An app for tests that publish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forage import app


@pytest.fixture(scope="module")
def running_app() -> Iterator[None]:
    with app.init("weights", resources="cpu=1"):
        yield
