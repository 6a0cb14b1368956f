"""The driver reads publication reports without torch."""

from __future__ import annotations

import subprocess
import sys


def test_reports_import_no_torch() -> None:
    code = "import sys, forage.weights; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
