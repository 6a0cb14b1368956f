"""Writes the table of docs/configuration.md from the configuration's own list of keys.

python scripts/configuration_table.py > docs/configuration.md
"""

from __future__ import annotations

from forage.loop.config import DEFAULTS, KEYS, flag, value_type

HEAD = """# Configuration

A run is defined by the keys below. Each is a flag of `forage train` and, with underscores, a key
of a TOML file; both are made from one list in `forage/loop/config.py`, and so is this page.

Values come from the defaults, then `--preset NAME`, then `--config FILE.toml`, then the flags. An
unknown key or a value of the wrong type is an error, never ignored. `--dry-run` prints the
resolved configuration as TOML, checks everything that can be checked without starting a process,
and says whether the executors fit. The resolved configuration of a run lies in its directory as
`config.toml`, and can be given to `--config`.

`--resume` goes on with the run in `--out`, whose configuration takes the place of the defaults.
Keys marked ↻ may then be given another value; they leave the mathematics of the run alone, though
another number of trainers or another batching adds up floating-point numbers in another order.

Resources are written as `cpu=N,mem=SIZE,gpu=N`; see [the runtime](app.md). The steps that these
numbers steer are told in [training](training.md).
"""

WORDS = {str: "text", int: "whole number", float: "number", bool: "yes or no"}


def main() -> None:
    """Print the page."""
    print(HEAD, end="")
    group = ""
    for key, option in KEYS.items():
        if option.group != group:
            group = option.group
            print(f"\n## {group.capitalize()}\n\n| flag | meaning | type | default |")
            print("| --- | --- | --- | --- |")
        print(f"| `{flag(key)}`{' ↻' if option.may_change else ''} | {_about(key)} |")


def _about(key: str) -> str:
    option, default = KEYS[key], getattr(DEFAULTS, key)
    kind = WORDS[value_type(key)] + (f", {option.unit}" if option.unit else "")
    limit = ""
    if option.at_least:
        limit = f", at least {option.at_least}"
    if option.choices:
        limit = ": " + ", ".join(f"`{choice}`" for choice in option.choices)
    shown = "" if default is None else "no" if default is False else f"`{default}`"
    return f"{option.help} | {kind}{limit} | {shown}"


if __name__ == "__main__":
    main()
