"""One executor as the engine keeps it: its actor, its connections and the signs of its end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forage.app.engines.base import Launch
from forage.app.engines.processes import describe_exit
from forage.app.engines.ray.channels import Channel
from forage.app.engines.witness import ENDED, HEAD, OUTPUT, End
from forage.app.resources import format_size
from forage.app.wire import Frames


@dataclass(slots=True, eq=False)
class Member:
    """An executor; what it writes is appended to `log`.

    Attributes:
        link: its connection, once it has called back; `unsent` is what it gets then.
        witness: the connection of the witness beside it.
        reason: why it was killed.
        end: how it ended, as its witness says.
        gone: that it is gone, as Ray says.
        ending_since: when the first sign of its end came.
    """

    launch: Launch
    log: Path
    actor: Any = None
    group: Any = None
    link: Channel | None = None
    witness: Channel | None = None
    unsent: list[bytes] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    reason: str = ""
    end: End | None = None
    gone: str | None = None
    ending_since: float | None = None
    pressed: bool = False
    _heard: bytearray = field(default_factory=bytearray)

    def ends(self) -> None:
        """A sign of its end."""
        self.ending_since = self.ending_since or time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and all that it said has been heard."""
        silent = self.link is None or not self.link.open
        if self.witness is None:
            return silent and self.gone is not None
        return silent and self.end is not None

    @property
    def exit(self) -> str:
        """How it ended, in words."""
        if self.end is not None and self.end["held"]:
            held, limit = format_size(self.end["held"]), format_size(self.launch.need.mem)
            return f"out of memory: it held {held} of mem={limit}"
        if self.reason:
            return self.reason
        if self.end is not None and self.end["status"] is not None:
            return describe_exit(self.end["status"])
        return self.gone or "ended; its node's system doesn't tell how"

    def hear_witness(self, data: bytes) -> None:
        """Take output, and how it ended."""
        self._heard += data
        while len(self._heard) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._heard)
            content = bytes(self._heard[HEAD.size : HEAD.size + length])
            if len(content) < length:
                return
            del self._heard[: HEAD.size + length]
            if kind == OUTPUT:
                with self.log.open("ab") as log:
                    log.write(content)
            elif kind == ENDED:
                self.end = json.loads(content)
                self.ends()
