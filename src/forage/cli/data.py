"""Show what a data set holds: questions, split and corpus."""

from __future__ import annotations

import argparse
import sys

from forage.cli.options import add_options, given
from forage.loop.config import TrainConfig, with_values

KEYS = ("heldout_data", "corpus", "heldout", "train_questions", "retriever")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("data", metavar="SPEC", help="as for --data of forage train")
    add_options(parser, KEYS)


def run(args: argparse.Namespace) -> None:
    """Load the data as training would, and describe it."""
    from forage.loop.preflight import load_data
    from forage.report.console import Console
    from forage.report.dataset import describe_lines

    config = with_values(TrainConfig(), given(args), "command line")
    console = Console(sys.stdout)
    for line in describe_lines(load_data(config), console.width):
        console.line(line)
