"""What travels of a project: checked against git itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forage import app
from forage.app import packaging


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes the program's project of the given files."""

    def make(files: dict[str, str], dependencies: str = "[]") -> Path:
        root = tmp_path / "project"
        text = f'[project]\nname = "sample"\nversion = "0"\ndependencies = {dependencies}\n'
        for name, content in {"pyproject.toml": text, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(root / "run.py"))
        return root

    return make


def names(package: packaging.Package) -> list[str]:
    return [path for path, _ in package.files]


def test_what_is_sent_is_listed_with_its_size(project: Callable[..., Path]) -> None:
    project({"src/sample/__init__.py": "x = 1\n", "run.py": ""}, '["numpy>=1"]')
    package = app.packaged()
    assert names(package) == ["pyproject.toml", "run.py", "src/sample/__init__.py"]
    assert package.requirements == ("numpy>=1",)
    assert package.nbytes == sum(size for _, size in package.files)
    assert "6  src/sample/__init__.py" in str(package)


def test_products_stay_behind(project: Callable[..., Path]) -> None:
    project(
        {
            "a.py": "",
            "__pycache__/a.pyc": "",
            ".git/config": "",
            "environment/pyvenv.cfg": "",
            "environment/lib/big.py": "",
            ".anycache/CACHEDIR.TAG": "",
            ".anycache/entry": "",
            "runs/one/events.jsonl": "",
            "runs/one/logs/worker.log": "",
            "runs/one/checkpoint": "",
            "node_modules/x.js": "",
        }
    )
    assert names(app.packaged()) == ["a.py", "pyproject.toml"]


def test_the_archive_depends_on_content_alone(project: Callable[..., Path], tmp_path: Path) -> None:
    root = project({"a.py": "first"})
    archives = []
    for content in ("first", "first", "other"):
        (root / "a.py").write_text(content)
        target = tmp_path / f"{len(archives)}.zip"
        app.packaged().write(target)
        archives.append(target.read_bytes())
    assert archives[0] == archives[1] != archives[2]
    with zipfile.ZipFile(tmp_path / "2.zip") as archive:
        assert archive.read("a.py") == b"other"


def test_a_project_that_is_too_large_names_its_largest_files(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    project({"small.py": "", "data.bin": "x" * 5000})
    monkeypatch.setattr(packaging, "LIMIT", 1000)
    with pytest.raises(app.AppError, match=r"too large to send.*data.bin 4.883k.*\.gitignore"):
        app.packaged()


def test_a_malformed_project_file_is_an_error(project: Callable[..., Path]) -> None:
    (project({}) / "pyproject.toml").write_text("[project\n")
    with pytest.raises(app.AppError, match="pyproject.toml is malformed"):
        app.packaged()


def test_without_a_project_there_is_nothing_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "run.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(app.AppError, match="no pyproject.toml in or above"):
        app.packaged()


def test_import_paths_lead_into_the_copy(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"src/sample/__init__.py": "", "tools/x.py": "", ".gitignore": "hidden/\n"})
    (root / "hidden").mkdir()
    (root / "hidden" / "y.py").touch()
    monkeypatch.syspath_prepend(str(root / "hidden"))
    monkeypatch.syspath_prepend(str(root / "tools"))
    inside, outside = packaging.import_path(app.packaged())
    assert inside == ["tools", "src", "."]
    assert str(root / "hidden") in outside


def test_missing_requirements_are_named() -> None:
    assert packaging.missing(["pytest>=1", "no-such-package", "x; python_version < '3'"]) == [
        "no-such-package"
    ]
    (told,) = packaging.missing(["pytest<1"])
    assert told.startswith("pytest<1 (it has ")


SEGMENTS = st.sampled_from(["a", "b", "ab", "a.py", "b.log", "*", "a*", "?", "*.py", "**", "[ab]"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    body = "/".join(draw(st.lists(SEGMENTS, min_size=1, max_size=3)))
    return f"{draw(st.sampled_from(['', '', '!']))}{draw(st.sampled_from(['', '/']))}{body}" + draw(
        st.sampled_from(["", "", "/"])
    )


FILES = [
    f"{folder}{name}"
    for folder in ("", "a/", "b/", "a/b/", "ab/a/", "a/b/ab/")
    for name in ("a.py", "b.log", "x")
]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(patterns(), min_size=1, max_size=4),
    st.lists(patterns(), max_size=2),
    st.lists(patterns(), max_size=2),
)
def test_ignore_files_mean_what_git_says(
    project: Callable[..., Path], top: list[str], nested: list[str], own: list[str]
) -> None:
    root = project({name: "" for name in FILES})
    (root / ".gitignore").write_text("\n".join(top) + "\n")
    (root / "a" / ".gitignore").write_text("\n".join(nested) + "\n")
    listing = ["git", "-c", "core.excludesFile=", "ls-files", "-co", "--exclude-standard"]
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("\n".join(own) + "\n")
    told = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True)
    assert names(app.packaged()) == sorted(told.stdout.splitlines())
