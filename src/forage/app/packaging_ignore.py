"""Which files of a project stay behind: what its ignore files name, as git reads them.

Git itself isn't asked: a project need not be a repository, and an image need not hold git.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

IGNORE_FILES = (".git/info/exclude", ".gitignore")
"""Of each folder; the later says the last word."""


class Rule(NamedTuple):
    """One line of an ignore file. `pattern` matches a path relative to the file's folder."""

    base: str  # that folder, relative to the walk's root; "" is the root itself, or above it
    pattern: re.Pattern[str]
    keeps: bool  # a line with `!`
    folders_only: bool


def read_rules(folder: Path, base: str, below: str = "") -> list[Rule]:
    """The rules of a folder's ignore files. `below` leads from it to the root."""
    lines: list[str] = []
    for name in IGNORE_FILES:
        with suppress(OSError):
            lines += (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    return [rule for line in lines if (rule := _parse(line, base, below)) is not None]


def ignored(path: str, is_folder: bool, rules: list[Rule]) -> bool:
    """Whether a path is ignored: the last rule that matches decides."""
    for rule in reversed(rules):
        if rule.folders_only and not is_folder:
            continue
        relative = path.removeprefix(f"{rule.base}/") if rule.base else path
        if rule.pattern.fullmatch(relative):
            return not rule.keeps
    return False


def _parse(line: str, base: str, below: str) -> Rule | None:
    line = re.sub(r"(?<!\\)\s+$", "", line)
    if not line or line.startswith("#"):
        return None
    keeps = line.startswith("!")
    line = line.removeprefix("!")
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    anchored = "/" in line
    expression = _translate(line.removeprefix("/"))
    if not anchored:
        expression = f"(?:.*/)?{expression}"
    elif below:  # the rule is of a folder above: it says something about paths below the root only
        return _below(line.removeprefix("/"), below, keeps, folders_only)
    return Rule(base, re.compile(expression, re.DOTALL), keeps, folders_only)


def _below(line: str, below: str, keeps: bool, folders_only: bool) -> Rule | None:
    """A rule of a folder above the root, as paths relative to the root have it."""
    prefix = f"{below}/"
    if line == "**" or line.startswith("**/"):
        return Rule("", re.compile(_translate(line), re.DOTALL), keeps, folders_only)
    if not line.startswith(prefix):
        return None
    return Rule("", re.compile(_translate(line[len(prefix) :]), re.DOTALL), keeps, folders_only)


_TOKEN = re.compile(
    r"(?P<lead>^(?:\*\*/)+)|(?P<middle>(?:/\*\*)+(?=/))|(?P<tail>/\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|(?P<set>\[!?\]?(?:\\.|[^\]\\])*\])|(?P<escaped>\\.)|(?P<plain>.)",
    re.DOTALL,
)


def _translate(pattern: str) -> str:
    if pattern == "**":
        return ".+"
    parts = []
    for match in _TOKEN.finditer(pattern):
        text = match[0]
        match match.lastgroup:
            case "lead":
                parts.append("(?:.*/)?")
            case "middle":
                parts.append("(?:/.*)?")
            case "tail":
                parts.append("/.+")
            case "stars":
                parts.append("[^/]*")
            case "one":
                parts.append("[^/]")
            case "set":
                parts.append(_set(text[1:-1]))
            case "escaped":
                parts.append(re.escape(text[1]))
            case _:
                parts.append(re.escape(text))
    return "".join(parts)


def _set(content: str) -> str:
    negated = content[:1] in ("!", "^")
    content = content[1:] if negated else content
    escaped = re.sub(r"(?<!\\)\[", r"\\[", content)
    if escaped.startswith("]"):
        escaped = "\\" + escaped
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
