"""`forage bench rollout` on a small shape."""

from __future__ import annotations

import pytest

from forage.bench import rollout
from forage.cli import main

SMALL = {
    "--shape": "tiny",
    "--prompts": "2",
    "--calls": "1",
    "--turn-tokens": "4",
    "--prompt-tokens": "10",
    "--information-tokens": "6",
}


@pytest.mark.parametrize(
    ("searches", "amount", "noted"),
    [
        ("0", "2 samples, 20 + 8 tokens", False),
        ("1", "2 samples, 32 + 16 tokens", True),
    ],
)
def test_it_prints_a_table_and_the_time_of_searches_if_there_are_any(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    searches: str,
    amount: str,
    noted: bool,
) -> None:
    monkeypatch.setattr(rollout, "PASSAGES", 200)
    words = [word for pair in SMALL.items() for word in pair]
    assert main(["bench", "rollout", *words, "--searches", searches]) == 0
    out = capsys.readouterr().out
    assert amount in out
    assert ("4 searches of 200 passages: median " in out) is noted
