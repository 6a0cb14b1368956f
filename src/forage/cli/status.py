"""Show what a running app does: sessions, executors, calls, resources, cache."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "folder", metavar="RUN", nargs="?", help="run directory (default: the newest app near here)"
    )
    parser.add_argument("--executors", action="store_true", help="a line for each executor, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> None:
    """Read the app's status file, and print."""
    from forage.loop.files import to_json
    from forage.report.apps import find_app, read_status, status_lines
    from forage.report.console import Console

    console = Console(sys.stdout)
    path = find_app(args.folder)
    status = read_status(path)
    if args.json:
        console.line(to_json(dict(status)))
        return
    for line in status_lines(path, status, executors=args.executors):
        console.line(line)
