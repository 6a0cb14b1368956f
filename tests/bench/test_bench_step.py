"""`forage bench step` on a small shape."""

from __future__ import annotations

import re

import pytest

from forage.bench.step import reward
from forage.cli import main

SMALL = {
    "--shape": "tiny",
    "--prompts": "4",
    "--prompts-per-task": "2",
    "--samples": "3",
    "--turn-tokens": "8",
    "--prompt-tokens": "20",
    "--information-tokens": "30",
    "--steps": "1",
    "--rollout-resources": "cpu=0.5",
    "--trainer-resources": "cpu=0.5",
}


def bench(**changes: str) -> int:
    flags = SMALL | {f"--{key.replace('_', '-')}": value for key, value in changes.items()}
    return main(["bench", "step", *(word for pair in flags.items() for word in pair)])


def test_it_prints_each_phase_and_trains_on_half(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench() == 0
    out = capsys.readouterr().out
    phases = re.findall(r"^\| ([^|]+?) +\|", out, re.MULTILINE)
    assert phases[2:] == [
        "rollout",
        "of that, weights fetched and applied",
        "update",
        "publish",
        "step",
    ]
    # 20 read of the prompt and 30 of each search; 3 turns of 8.
    assert "12 samples, 960 + 288 tokens" in out
    assert "6 samples, 624 tokens" in out
    assert "idle: rollout executors" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": "5"}, "--prompts 5: must be even and divisible by --prompts-per-task 2"),
        ({"shape": "huge"}, "--shape huge: unknown"),
        ({"trainer_resources": "cpu=999"}, "does not fit"),
        ({"trainers": "1", "shard": "2"}, "--trainers 1 is not divisible by --shard 2"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    assert bench(**changes) == 2
    assert message in capsys.readouterr().err


def test_every_second_group_has_rewards_that_differ() -> None:
    from forage.agent.types import Question

    even, odd = (Question(name, "?", ("",)) for name in ("q2", "q3"))
    assert {reward(even, None, text) for text in "abc"} == {0.0}
    assert len({reward(odd, None, text) for text in "abc"}) == 3
