"""The driver holds no model: it imports no torch and no transformers."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "vllm"}


def _imported_by(code: str) -> set[str]:
    script = (
        f"{code}\nimport sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_driver_and_its_services_import_no_torch() -> None:
    modules = [
        "loop.train",
        "loop.standalone",
        "loop.warmstart",
        "loop.export",
        "report.summary",
        "report.progress",
        "report.start",
        "cli.main",
    ]
    imports = "; ".join(f"import forage.{module}" for module in modules)
    assert not _imported_by(imports) & HEAVY


@pytest.mark.parametrize("command", ["--help", "train --help", "--version"])
def test_help_imports_nothing_heavy_at_all(command: str) -> None:
    code = (
        "from forage.cli import main\n"
        f"try: main({command.split()!r})\n"
        "except SystemExit as leaving: assert not leaving.code"
    )
    assert not _imported_by(code) & (HEAVY | {"numpy", "bm25s", "tokenizers", "huggingface_hub"})


def test_checking_and_indexing_real_data_imports_no_torch() -> None:
    code = (
        "import tempfile\n"
        "from forage.loop.config import TrainConfig\n"
        "from forage.loop.preflight import load_data\n"
        "from forage.loop.services import retriever_of\n"
        "from pathlib import Path\n"
        "config = TrainConfig(data='atlas')\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    retriever_of(config, load_data(config), Path(folder))"
    )
    assert not _imported_by(code) & HEAVY
