"""What an executor needs and what this process may use.

Amounts are kept as integers (thousandths of a CPU or GPU, bytes of memory), so that sums of
fractional requests are exact and a machine is never oversubscribed by rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_SIZE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)\Z")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([kmgt])(?:i?b)?)?\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of resources. `millicpu` and `milligpu` are thousandths; `mem` is bytes."""

    millicpu: int = 0
    mem: int = 0
    milligpu: int = 0

    @property
    def whole_gpus(self) -> int:
        """How many devices the request spans: a fraction of one GPU still touches one."""
        return -(-self.milligpu // 1000)

    def __str__(self) -> str:
        parts = [f"cpu={_decimal(self.millicpu)}"]
        if self.mem:
            parts.append(f"mem={format_size(self.mem)}")
        if self.milligpu:
            parts.append(f"gpu={_decimal(self.milligpu)}")
        return ",".join(parts)


ONE_CPU = Resources(millicpu=1000)


def parse_resreq(text: str | None) -> Resources:
    """Parse `cpu=N,mem=SIZE,gpu=N`; `None` is one CPU, and a key left out is zero.

    `cpu` and `gpu` may be fractional (to a thousandth; above one GPU only whole numbers), sizes
    are binary: `64g`, `64gb` and `64GiB` are the same 2^36 bytes.

    Raises:
        ValueError: the text is malformed; the message quotes it.
    """
    if text is None:
        return ONE_CPU
    found = parse_amounts(text)
    milligpu = found.get("gpu", 0)
    if milligpu > 1000 and milligpu % 1000:
        raise ValueError(
            f"resreq {text!r}: gpu={_decimal(milligpu)} spans devices unevenly; "
            "above 1, give a whole number"
        )
    return Resources(found.get("cpu", 0), found.get("mem", 0), milligpu)


def parse_amounts(text: str) -> dict[str, int]:
    """Parse resreq's syntax into the keys that it names; see `parse_resreq` for the units."""
    if not isinstance(text, str):
        raise TypeError(f"resreq must be text such as 'cpu=2,mem=4g,gpu=1', not {text!r}")
    parsers: dict[str, Callable[[str], int | None]] = {
        "cpu": _thousandths,
        "mem": parse_size,
        "gpu": _thousandths,
    }
    found: dict[str, int] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"resreq {text!r}: {item!r} is not key=value")
        if key not in parsers:
            raise ValueError(f"resreq {text!r}: unknown key {key!r}; use cpu, mem, gpu")
        if key in found:
            raise ValueError(f"resreq {text!r}: {key} is given twice")
        amount = parsers[key](value)
        if amount is None:
            kind = "a size such as 512m or 64g" if key == "mem" else "a number such as 2 or 0.5"
            raise ValueError(f"resreq {text!r}: {key}={value!r} is not {kind}")
        found[key] = amount
    return found


def parse_size(text: str) -> int | None:
    """Bytes of a size such as `512m`, or None where the text is no size."""
    match = _SIZE.match(text)
    if not match:
        return None
    return int(float(match[1]) * (1 << _SIZE_UNITS[(match[2] or "").lower()]))


def format_size(size: int) -> str:
    """A size in the largest binary unit that keeps it at one or more: `1.5g`."""
    for unit in "tgmk":
        scale = 1 << _SIZE_UNITS[unit]
        if size >= scale:
            return f"{size / scale:.4g}{unit}"
    return str(size)


def format_milli(amount: int) -> str:
    """Thousandths as a decimal: 1500 is `1.5`."""
    return _decimal(amount)


def _thousandths(text: str) -> int | None:
    if not _NUMBER.match(text):
        return None
    return round(float(text) * 1000)


def _decimal(milli: int) -> str:
    return f"{milli / 1000:g}"
