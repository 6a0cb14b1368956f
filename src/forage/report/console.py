"""The one place that writes to a person: lines, and on a terminal a status line below them."""

from __future__ import annotations

import shutil
from typing import TextIO


class Console:
    """Writes to a stream; what is only of the moment is shown on terminals alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False
        self.terminal = stream.isatty()

    @property
    def width(self) -> int:
        """Columns to write in."""
        return shutil.get_terminal_size((100, 24)).columns if self.terminal else 100

    def line(self, text: str = "") -> None:
        """Write a line that stays."""
        self._clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def status(self, text: str) -> None:
        """Show what goes on right now, in place of what was shown before."""
        if self.terminal:
            self._clear()
            self._stream.write(text[: self.width - 1])
            self._stream.flush()
            self._shown = True

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._shown = False
