"""Numbers as people read them."""

from __future__ import annotations


def decimal(value: float | None) -> str:
    """Two decimals, or a dash for nothing."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in per cent with one decimal."""
    return "-" if value is None else f"{100 * value:.1f} %"


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}"


def seconds(value: float) -> str:
    """A time: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes in decimal units: `512 B`, `1.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
