"""From the words of a command line to a command, and from its errors to one line each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

import forage
from forage.cli import bench, data, evaluate, export, status, train, warmstart
from forage.errors import UserError

USER_MISTAKE = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Refuses in one line instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, 2 after a user's mistake, 130 if interrupted."""
    # A user's own reward function is found where the user stands.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # A scheduler that takes the machine away says SIGTERM: end as tidily as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        args = _parse(sys.argv[1:] if arguments is None else arguments)
        args.run(args)
    except UserError as error:
        sys.stderr.write(f"forage: {error}\n")
        return USER_MISTAKE
    except KeyboardInterrupt:
        sys.stderr.write("forage: interrupted\n")
        return INTERRUPTED
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    args, unknown = _parser().parse_known_args(arguments)
    if unknown:
        raise UserError(_unknown(args.parser, unknown))
    return args


def _unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not flags:
        return f"unexpected {words[0]!r}; see {parser.prog} --help"
    known = [name for action in parser._actions for name in action.option_strings]
    near = get_close_matches(flags[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"see {parser.prog} --help"
    return f"unknown flag {flags[0]}; {hint}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="forage", description=forage.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"forage {forage.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in (
        ("warmstart", warmstart),
        ("train", train),
        ("eval", evaluate),
        ("export", export),
        ("data", data),
        ("status", status),
        ("bench", bench),
    ):
        about = (command.__doc__ or "").splitlines()[0]
        added = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        command.add_arguments(added)
        added.set_defaults(run=command.run, parser=added)
    return parser
