"""Configuration as TOML: presets, `--config` files and the resolved copy in a run directory."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from forage.errors import UserError
from forage.loop.config import KEYS, TrainConfig, with_values


def read_toml(path: Path) -> dict[str, object]:
    """The keys of a TOML file as they stand; `UserError` if it can't be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def preset_names() -> list[str]:
    """Names that `--preset` accepts."""
    folder = resources.files("forage") / "presets"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_preset(name: str) -> dict[str, object]:
    """The keys of a built-in preset."""
    names = preset_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise UserError(f"--preset {name!r} does not exist; {hint}")
    text = (resources.files("forage") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def load_config(path: Path) -> TrainConfig:
    """A resolved configuration as `to_toml` wrote it."""
    return with_values(TrainConfig(), read_toml(path), str(path))


def to_toml(config: TrainConfig) -> str:
    """`config` as TOML that `load_config` reads back equal; keys without a value are comments."""
    lines: list[str] = []
    group = ""
    for field in dataclasses.fields(config):
        option = KEYS[field.name]
        if option.group != group:
            group = option.group
            lines += ([""] if lines else []) + [f"# {group}"]
        value = getattr(config, field.name)
        lines.append(f"# {field.name} =" if value is None else f"{field.name} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON leaves alone.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
