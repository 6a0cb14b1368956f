"""Makes the modules of this folder importable from every test below it.

Property tests are judged by what they compute, never by how long a busy machine takes for it. In
CI they try the same examples every time; elsewhere they go on looking for new ones.
"""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("forage", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("forage")

# A shell's background job ignores interrupts, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What torch warns of while it compiles for a GPU depends on its version, and is its own affair.
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings(r"ignore:::torch\."))
