"""Export a trained policy as a folder in Hugging Face layout."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="run directory or checkpoint")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="new folder to write")


def run(args: argparse.Namespace) -> None:
    """Copy the policy."""
    from forage.loop.export import export
    from forage.report.console import Console

    Console(sys.stdout).line(f"wrote {export(args.source, args.out)}")
