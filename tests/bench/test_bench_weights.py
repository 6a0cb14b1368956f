"""`forage bench weights` on a small shape."""

from __future__ import annotations

import re

import pytest
import torch

from forage.bench.weights_ends import fused_views
from forage.cli import main


def test_it_prints_each_part_and_judges_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "weights", "--shape", "tiny", "--changed", "0.02"]) == 0
    out = capsys.readouterr().out
    for part in ("export", "stage", "pause", "publish to applied"):
        assert re.search(rf"\| whole: {part} ", out)
        assert re.search(rf"\| 2 % changed: {part} ", out)
    [ratio] = re.findall(r"bytes, ([\d.]+) times the entropy", out)
    assert 0.9 < float(ratio) < 1.1
    assert "every tensor equals a full reload" in out


def test_a_share_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "weights", "--changed", "1.5"]) == 2
    assert "--changed 1.5: a share" in capsys.readouterr().err


def test_projections_are_rows_of_fused_parameters() -> None:
    sizes = {"l.q_proj.weight": (4, 3), "l.k_proj.weight": (2, 3), "l.up_proj.bias": (5,)}
    views = fused_views({n: torch.Size(s) for n, s in sizes.items()}, torch.device("cpu"))
    assert {name: tuple(view.shape) for name, view in views.items()} == sizes
    query, key, up = views.values()
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    assert key.storage_offset() == query.numel()
    assert up.untyped_storage().data_ptr() != key.untyped_storage().data_ptr()
