"""Writes docs/api.md, the reference of `forage.app`, from signatures and docstrings.

Run `python scripts/make_api_docs.py` after changing either; `--check` only tells whether it is due.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forage import app
from forage.app import errors
from forage.app.futures import CallFuture
from forage.app.options import MethodOptions, ServiceOptions
from forage.app.session import Method

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"

HEAD = """# API reference: `forage.app`

Written by `scripts/make_api_docs.py` from the code's own documentation. Concepts are in
[the runtime](app.md) and [the object cache](cache.md).
"""

SECTIONS: dict[str, tuple[Any, ...]] = {
    "The app": (app.init, app.App, app.shutdown, app.status),
    "Services": (app.service, app.method, ServiceOptions, MethodOptions),
    "Sessions and calls": (app.Session, Method, CallFuture, app.as_completed, app.wait),
    "Inside executors": (app.context, app.Context),
    "The object cache": (
        *(app.put, app.append, app.replace, app.rebase, app.get, app.fetch, app.delete),
        *(app.Ref, app.Update),
    ),
    "What travels to a cluster": (app.packaged, app.Package),
}
"""What is shown where; errors follow, and then what no section names."""

INTERNAL = {
    "App": {
        *("cancel", "close_session", "drop", "function_session", "new_call", "open", "reform"),
        *("submit", "supply", "waiting"),
    },
    "CallFuture": {"begin", "mark_cancelled", "settle", "outcome"},
    "MethodOptions": {"over"},
    "Package": {"holds", "write"},
    "ServiceOptions": {"but", "limit", "need", "size", "thread_count"},
}
"""Members without an underscore that are the runtime's own business."""


def page() -> str:
    """The whole page."""
    sections = {title: list(things) for title, things in SECTIONS.items()}
    listed = {thing for things in sections.values() for thing in things}
    public = [getattr(app, name) for name in app.__all__]
    raised = [it for it in public if isinstance(it, type) and issubclass(it, Exception)]
    sections["Errors"] = raised
    rest = [it for it in public if it not in listed and it not in raised]
    if rest:
        sections["More"] = rest
    lines = [HEAD]
    for title, things in sections.items():
        lines.append(f"## {title}\n")
        lines += _text(errors) if title == "Errors" else ()
        for thing in things:
            lines += _class(thing) if isinstance(thing, type) else _function(thing, "###")
    return "\n".join(lines).rstrip() + "\n"


def _function(function: Any, level: str, owner: str = "") -> Iterator[str]:
    name = f"{owner}{function.__name__}"
    yield f"{level} `{name}`\n"
    yield f"```python\n{name}{_signature(function, bound=bool(owner))}\n```\n"
    yield from _text(function)


def _class(kind: type) -> Iterator[str]:
    yield f"### `{kind.__name__}`\n"
    if not issubclass(kind, Exception) and "__dataclass_fields__" in kind.__dict__:
        yield f"```python\n{kind.__name__}{_signature(kind)}\n```\n"
    yield from _text(kind)
    for name, member in kind.__dict__.items():
        if name.startswith("_") or name in INTERNAL.get(kind.__name__, ()):
            continue
        if isinstance(member, property):
            yield f"#### `{kind.__name__}.{name}`\n"
            yield from _text(member.fget)
        elif inspect.isfunction(member):
            yield from _function(member, "####", f"{kind.__name__}.")


class _Verbatim(str):
    """An annotation that shows as it is written, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _signature(thing: Any, *, bound: bool = False) -> str:
    signature = inspect.signature(thing)
    shown = [
        parameter.replace(annotation=_verbatim(parameter.annotation))
        for parameter in list(signature.parameters.values())[bound:]
    ]
    returns = signature.empty if isinstance(thing, type) else signature.return_annotation
    text = str(signature.replace(parameters=shown, return_annotation=_verbatim(returns)))
    if len(text) <= 80:
        return text
    inside, _, result = text[1:].rpartition(")")
    parts = re.split(r", (?![^\[(]*[\])])", inside)
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _verbatim(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation


def _text(thing: Any) -> Iterator[str]:
    """A docstring as Markdown: its named blocks become lists."""
    for block in re.split(r"\n\n+", inspect.getdoc(thing) or ""):
        title, _, rest = block.partition("\n")
        if title in ("Args:", "Attributes:", "Raises:"):
            yield f"{title}\n"
            yield _items(inspect.cleandoc(rest)) + "\n"
        elif block.startswith("    "):
            yield f"```text\n{inspect.cleandoc(block)}\n```\n"
        else:
            yield re.sub(r"::$", ":", block) + "\n"


def _items(text: str) -> str:
    joined = re.sub(r"\n\s+", " ", text)
    return re.sub(r"^(\w+): ", r"- `\1`: ", joined, flags=re.MULTILINE)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where it is due"
    )
    check = parser.parse_args().check
    due = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
    if due and check:
        print(f"{PAGE.name} is not what the code says: run scripts/make_api_docs.py")
        return 1
    if due:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
