"""A GPU's memory: how it is told, and what happens when it runs out.

This module imports no torch: the driver asks it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forage.errors import UserError

GIB = 1 << 30


def gib(size: float) -> str:
    """Bytes as a number of GiB."""
    return f"{size / GIB:.1f}"


@contextmanager
def clear_when_full(what: str, remedy: str) -> Iterator[None]:
    """Turn running out of a GPU's memory into one line: `what` did, and what to do about it.

    Raises:
        UserError: where torch ran out of memory.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{what} ran out of GPU memory ({reason}); {remedy}") from error
