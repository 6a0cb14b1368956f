"""Configuration keys as flags, and the layers that a configuration is made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from forage.loop.config import (
    DEFAULTS,
    KEYS,
    TrainConfig,
    flag,
    parse_value,
    value_type,
    with_values,
)
from forage.loop.configfile import preset_names, read_preset, read_toml

_METAVARS = {str: "TEXT", int: "N", float: "X"}


def add_options(parser: argparse.ArgumentParser, keys: Iterable[str]) -> None:
    """A flag for each key, in the groups of the configuration; absent flags leave no trace."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for key in keys:
        option = KEYS[key]
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add = partial(
            groups[option.group].add_argument,
            flag(key),
            default=argparse.SUPPRESS,
            help=_help(key),
        )
        if value_type(key) is bool:
            add(action=argparse.BooleanOptionalAction)
        else:
            add(type=partial(parse_value, key), metavar=_METAVARS[value_type(key)])


def add_layers(parser: argparse.ArgumentParser) -> None:
    """The flags that bring many values at once."""
    parser.add_argument("--preset", metavar="NAME", help=f"one of: {', '.join(preset_names())}")
    parser.add_argument("--config", metavar="FILE.toml", help="values by key; flags override them")


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag that is no configuration key: a whole number from `least` on."""

    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"is {value}; it must be at least {least}")
        return value

    parse.__name__ = "whole number"
    return parse


def positive(text: str) -> float:
    """The type of a flag that is no configuration key: a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text}; it must be greater than 0")
    return value


def given(args: argparse.Namespace) -> dict[str, object]:
    """The configuration keys that flags were given for."""
    return {key: getattr(args, key) for key in KEYS if hasattr(args, key)}


def layered(base: TrainConfig, args: argparse.Namespace) -> TrainConfig:
    """`base`, then the preset, then the file, then the flags."""
    config = base
    if args.preset is not None:
        config = with_values(config, read_preset(args.preset), f"preset {args.preset}")
    if args.config is not None:
        config = with_values(config, read_toml(Path(args.config)), args.config)
    return with_values(config, given(args), "command line")


def _help(key: str) -> str:
    option, default = KEYS[key], getattr(DEFAULTS, key)
    unit = f" [{option.unit}]" if option.unit else ""
    shown = f" (default: {default})" if default not in (None, False) else ""
    return f"{option.help}{unit}{shown}".replace("%", "%%")
