"""The configuration: one list of keys for flags, TOML and help."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.agent.prompts import prompt_parts
from forage.agent.rewards import resolve_reward
from forage.app.placement import Node, Room
from forage.app.resources import parse_resreq
from forage.errors import UserError
from forage.loop.config import (
    DEFAULTS,
    KEYS,
    TrainConfig,
    is_optional,
    parse_value,
    value_type,
    with_values,
)
from forage.loop.configfile import load_config, preset_names, read_preset, read_toml, to_toml


def _values(key: str) -> st.SearchStrategy[object]:
    option, kind = KEYS[key], value_type(key)
    if option.choices:
        found: st.SearchStrategy[object] = st.sampled_from(option.choices)
    elif kind is bool:
        found = st.booleans()
    elif kind is int:
        found = st.integers(min_value=int(option.at_least or 0), max_value=2**40)
    elif kind is float:
        least = option.above if option.above is not None else option.at_least
        found = st.floats(
            min_value=least,
            exclude_min=option.above is not None,
            max_value=1e300,
            allow_nan=False,
        )
    else:
        found = st.text(st.characters(exclude_categories=["Cs"]))
    return st.none() | found if is_optional(key) else found


configs = st.fixed_dictionaries({key: _values(key) for key in KEYS}).map(
    lambda values: TrainConfig(**values)  # type: ignore[arg-type]
)


@given(configs)
def test_toml_reads_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, config: TrainConfig
) -> None:
    path = tmp_path_factory.getbasetemp() / "roundtrip.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_every_key_has_help_and_a_default_within_its_limits() -> None:
    for key, option in KEYS.items():
        assert option.help
        value = getattr(DEFAULTS, key)
        if value is not None:
            assert with_values(TrainConfig(), {key: value}, "test") == DEFAULTS


def test_defaults_are_those_of_the_reference_experiment() -> None:
    assert (DEFAULTS.steps, DEFAULTS.prompts_per_step, DEFAULTS.prompts_per_task) == (100, 70, 5)
    assert (DEFAULTS.group_size, DEFAULTS.max_searches, DEFAULTS.heldout) == (5, 4, 200)


@pytest.mark.parametrize("name", preset_names())
def test_presets_hold_known_keys_and_sound_values(name: str) -> None:
    config = with_values(TrainConfig(), read_preset(name), name)
    assert config != TrainConfig()
    assert config.prompts_per_step % config.prompts_per_task == 0
    prompt_parts(config.prompt, "")
    resolve_reward(config.reward)


@pytest.mark.parametrize(("name", "gpus"), [("search-r1", 16), ("one-gpu-3b", 1)])
def test_presets_that_name_gpus_ask_for_that_many(name: str, gpus: int) -> None:
    config = with_values(TrainConfig(), read_preset(name), name)
    asked = [parse_resreq(config.rollout_resources or "")] * config.rollouts
    asked += [parse_resreq(config.trainer_resources or "")] * config.trainers
    assert sum(each.milligpu for each in asked) == 1000 * gpus
    room = Room.of([Node("here", 1000 * 1000, 1 << 50, tuple(map(str, range(gpus))))])
    for each in asked:
        placement = room.place(each)
        assert placement is not None
        room.take(each, placement)


def test_the_preset_of_the_reference_is_its_run() -> None:
    config = with_values(TrainConfig(), read_preset("search-r1"), "search-r1")
    assert (config.prompts_per_step, config.group_size, config.prompts_per_task) == (70, 5, 5)
    assert (config.rollouts, config.trainers, config.max_searches) == (14, 2, 4)


def test_choices_are_what_the_registries_hold() -> None:
    from forage.trainer.algorithms import ALGORITHMS

    assert set(KEYS["algorithm"].choices) == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepz": 3}, "file.toml: unknown key 'stepz'; did you mean steps?"),
        ({"qqq": 3}, "file.toml: unknown key 'qqq'; forage train --help lists the keys"),
        ({"prompts-per-step": 3}, "did you mean prompts_per_step?"),
        ({"steps": "3"}, "file.toml: steps is '3'; expected a whole number"),
        ({"steps": 3.0}, "file.toml: steps is 3.0; expected a whole number"),
        ({"steps": True}, "file.toml: steps is True; expected a whole number"),
        ({"kl": "x"}, "file.toml: kl is 'x'; expected a number"),
        ({"kl": math.nan}, "file.toml: kl is nan; expected a number"),
        ({"data": 1}, "file.toml: data is 1; expected a text"),
        ({"shuffle_rewards": 1}, "file.toml: shuffle_rewards is 1; expected true or false"),
        ({"model": {"name": "x"}}, "file.toml: model is {'name': 'x'}; expected a text"),
        ({"group_size": 1}, "it must be at least 2 (a sample is compared"),
        ({"learning_rate": 0.0}, "file.toml: learning_rate is 0.0; it must be greater than 0"),
        ({"algorithm": "ppo"}, "file.toml: algorithm is 'ppo'; choose one of: "),
    ],
)
def test_wrong_values_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        with_values(TrainConfig(), values, "file.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_stand_for_floats() -> None:
    kl = with_values(TrainConfig(), {"kl": 0}, "file").kl
    assert kl == 0.0
    assert isinstance(kl, float)


def test_flags_are_parsed_by_their_types() -> None:
    assert parse_value("steps", "12") == 12
    assert parse_value("learning_rate", "4e-4") == 4e-4
    assert parse_value("data", "12") == "12"
    with pytest.raises(UserError, match=r"--learning-rate is 'fast'; expected a number"):
        parse_value("learning_rate", "fast")


def test_unreadable_toml_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("steps = \n")
    with pytest.raises(UserError, match=r"bad\.toml: not valid TOML: .*line 1"):
        read_toml(bad)
    with pytest.raises(UserError, match="can't be read"):
        read_toml(tmp_path / "absent.toml")


def test_what_may_change_on_resume_leaves_the_mathematics_alone() -> None:
    changeable = {key for key, option in KEYS.items() if option.may_change}
    assert {"steps", "out", "rollouts", "eval_every", "keep_checkpoints"} <= changeable
    fixed = {"seed", "data", "model", "learning_rate", "group_size", "reward", "temperature"}
    assert not changeable & fixed
    assert {f.name for f in dataclasses.fields(TrainConfig)} == set(KEYS)


def test_the_documentation_is_made_from_the_keys() -> None:
    root = Path(__file__).parents[2]
    script = root / "scripts" / "configuration_table.py"
    made = subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", check=True
    )
    page = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == made.stdout, f"run: python {script.name} > docs/configuration.md"
