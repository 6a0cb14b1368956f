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


def test_a_share_that_may_be_no_weight_at_all_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "weights", "--shape", "tiny", "--changed", "1e-7"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forage: --changed 1e-07 of the 229,952 weights of tiny is fewer than")
    assert error.count("\n") == 1


def test_vllm_without_a_gpu_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["bench", "weights", "--shape", "tiny", "--vllm"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forage: --vllm needs a GPU and vLLM")
    assert error.count("\n") == 1


def test_projections_are_rows_of_fused_parameters() -> None:
    sizes = {"l.q_proj.weight": (4, 3), "l.k_proj.weight": (2, 3), "l.up_proj.bias": (5,)}
    views = fused_views({n: torch.Size(s) for n, s in sizes.items()}, torch.device("cpu"))
    assert {name: tuple(view.shape) for name, view in views.items()} == sizes
    query, key, up = views.values()
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    assert key.storage_offset() == query.numel()
    assert up.untyped_storage().data_ptr() != key.untyped_storage().data_ptr()
