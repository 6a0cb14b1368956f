"""`forage bench` refuses numbers that can't be measured in one line, before anything starts."""

from __future__ import annotations

import pytest

from forage.cli import bench, main

WHOLE = "it must be at least 1"
SHARE = "it must be greater than 0 and at most 1"
NUMBER = "expected a number"


@pytest.mark.parametrize(
    ("what", "flag", "value", "message"),
    [
        ("rollout", "--prompts", "0", WHOLE),
        ("rollout", "--prompts", "few", "invalid whole number value: 'few'"),
        ("rollout", "--calls", "0", WHOLE),
        ("rollout", "--calls", "-1", WHOLE),
        ("rollout", "--prompt-tokens", "-5", WHOLE),
        ("rollout", "--turn-tokens", "0", WHOLE),
        ("rollout", "--information-tokens", "0", WHOLE),
        ("rollout", "--searches", "-1", "it must be at least 0"),
        ("rollout", "--gpu-memory", "1.5", SHARE),
        ("rollout", "--seed", "-1", "it must be at least 0"),
        ("update", "--tokens", "0", "it must be at least 2"),
        ("update", "--shortest", "1", "it must be at least 2"),
        ("update", "--longest", "-3", "it must be at least 2"),
        ("update", "--sampled", "nan", SHARE),
        ("update", "--sampled", "0", SHARE),
        ("update", "--sampled", "-1", SHARE),
        ("update", "--sampled", "2", SHARE),
        ("update", "--sampled", "half", "invalid fraction value: 'half'"),
        ("update", "--gpu-share", "inf", SHARE),
        ("update", "--kl", "nan", NUMBER),
        ("update", "--kl", "inf", NUMBER),
        ("update", "--kl", "-1", "it must be at least 0"),
        ("update", "--micro-batch-tokens", "0", WHOLE),
        ("update", "--seed", "-1", "it must be at least 0"),
        ("weights", "--changed", "1.5", SHARE),
        ("weights", "--changed", "nan", SHARE),
        ("weights", "--seed", "-1", "it must be at least 0"),
        ("step", "--prompts", "0", WHOLE),
        ("step", "--samples", "1", "it must be at least 2"),
        ("step", "--searches", "-1", "it must be at least 0"),
        ("step", "--steps", "0", WHOLE),
        ("step", "--rollouts", "0", WHOLE),
        ("step", "--trainers", "0", WHOLE),
        ("step", "--shard", "0", WHOLE),
        ("step", "--prompts-per-task", "0", WHOLE),
        ("step", "--micro-batch-tokens", "0", WHOLE),
        ("step", "--kl", "nan", NUMBER),
        ("step", "--seed", "-1", "it must be at least 0"),
    ],
)
def test_a_bad_number_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    flag: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setattr(bench, "import_module", lambda name: pytest.fail(f"{name} began"))
    assert main(["bench", what, "--shape", "tiny", flag, value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forage: ")
    assert error.count("\n") == 1
    assert flag in error
    assert value in error
    assert message in error
