"""What of the user's project travels to the nodes of a cluster.

The project is the folder that holds `pyproject.toml`, found upward from the program. Its files go
as one archive whose name is the hash of its content, so that changed code is never stale; what is
ignored, cached or belongs to an environment stays behind. Its declared dependencies are installed
on the nodes, or checked there.
"""

from __future__ import annotations

import os
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.app.errors import AppError
from forage.app.packaging_ignore import Rule, ignored, read_rules
from forage.app.resources import format_size

PROJECT_FILE = "pyproject.toml"
LIMIT = 256 << 20
"""Bytes of files that a project may send."""

_NEVER_SENT = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules"})
_NAMED_LARGEST = 5
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip archive can tell


@dataclass(frozen=True, slots=True)
class Package:
    """What is sent of a project: `files` are (path relative to `root`, bytes), sorted by path."""

    root: Path
    files: tuple[tuple[str, int], ...]
    requirements: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size in self.files)

    def __str__(self) -> str:
        lines = [f"{format_size(size):>8}  {path}" for path, size in self.files]
        total = f"{format_size(self.nbytes):>8}  in all, of {self.root}"
        return "\n".join([*lines, total])

    def write(self, target: Path) -> None:
        """Write the archive; the same content gives the same bytes."""
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path, _ in self.files:
                source = self.root / path
                entry = zipfile.ZipInfo(path, _EPOCH)
                entry.external_attr = (source.stat().st_mode & 0xFFFF) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, source.read_bytes())

    def holds(self, folder: str) -> bool:
        """Whether files below `folder` (relative to the root) are sent."""
        return folder == "." or any(path.startswith(f"{folder}/") for path, _ in self.files)


def packaged() -> Package:
    """What `init(engine="ray")` sends to the nodes from this program's project.

    Raises:
        AppError: no project was found, or it is too large; the message says what to do.
    """
    root = find_project()
    if root is None:
        raise AppError(
            f"there is no project to send: no {PROJECT_FILE} in or above {program_folder()}",
            remedy=f"put a {PROJECT_FILE} at the top of the code that executors import",
        )
    package = Package(root, tuple(sorted(_walk(root))), _requirements(root / PROJECT_FILE))
    if package.nbytes > LIMIT:
        largest = sorted(package.files, key=lambda file: -file[1])[:_NAMED_LARGEST]
        named = ", ".join(f"{path} {format_size(size)}" for path, size in largest)
        raise AppError(
            f"project {root} is too large to send",
            why=f"{len(package.files)} files hold {format_size(package.nbytes)} of "
            f"{format_size(LIMIT)}, the largest: {named}",
            remedy="name data in .gitignore, or keep it outside of the project",
        )
    return package


def find_project() -> Path | None:
    """The folder of this program that holds `pyproject.toml`, or None."""
    for start in dict.fromkeys((program_folder(), Path.cwd())):
        for folder in (start, *start.parents):
            if (folder / PROJECT_FILE).is_file():
                return folder
    return None


def program_folder() -> Path:
    """Where the program's script lies; the working directory for installed and typed programs."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None:
        return Path.cwd()
    folder = Path(script).resolve().parent
    environments = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    return Path.cwd() if environments & {folder, *folder.parents} else folder


def import_path(package: Package) -> tuple[list[str], list[str]]:
    """The driver's import path as executors need it: in the project's copy, and elsewhere."""
    inside, outside = [], []
    for entry in (os.path.abspath(entry or ".") for entry in sys.path):
        relative = os.path.relpath(entry, package.root)
        if not relative.startswith("..") and package.holds(relative):
            inside.append(relative)
        else:
            outside.append(entry)
    layout = [folder for folder in ("src", ".") if package.holds(folder)]
    return list(dict.fromkeys([*inside, *layout])), outside


def missing(requirements: Iterable[str]) -> list[str]:
    """Those of the requirements that this process's environment doesn't meet, with what it has."""
    from importlib import metadata

    from packaging.requirements import Requirement  # comes with Ray

    lacking = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            lacking.append(text)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            lacking.append(f"{text} (it has {version})")
    return lacking


def _requirements(project_file: Path) -> tuple[str, ...]:
    try:
        project = tomllib.loads(project_file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise AppError(f"{project_file} is malformed", why=str(error)) from error
    declared: Any = project.get("project", {}).get("dependencies", [])
    if not isinstance(declared, list) or not all(isinstance(item, str) for item in declared):
        raise AppError(f"{project_file}: project.dependencies must be a list of strings")
    return tuple(declared)


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    yield from _walk_folder(root, "", _rules_above(root))


def _rules_above(root: Path) -> list[Rule]:
    """Rules of the folders between a repository's top and the project."""
    if (root / ".git").exists():
        return []
    for top in root.parents:
        if (top / ".git").exists():
            between = [folder for folder in reversed(root.parents) if folder.is_relative_to(top)]
            return [
                rule
                for folder in between
                for rule in read_rules(folder, "", root.relative_to(folder).as_posix())
            ]
    return []


def _walk_folder(root: Path, base: str, rules: Sequence[Rule]) -> Iterator[tuple[str, int]]:
    own = [*rules, *read_rules(root / base, base)]
    with os.scandir(root / base) as entries:
        for entry in entries:
            path = f"{base}/{entry.name}" if base else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in _NEVER_SENT or ignored(path, is_folder, own):
                continue
            if is_folder:
                if not _is_product(Path(entry.path)):
                    yield from _walk_folder(root, path, own)
            elif entry.is_file() and not entry.name.endswith(".pyc"):
                yield path, entry.stat().st_size


def _is_product(folder: Path) -> bool:
    """Whether a folder is an environment, a cache, or what a run has written."""
    marks = ("pyvenv.cfg", "CACHEDIR.TAG", "conda-meta")
    if any((folder / mark).exists() for mark in marks):
        return True
    return (folder / "events.jsonl").is_file() and (folder / "logs").is_dir()
