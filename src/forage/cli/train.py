"""Train a search agent.

Values come from the defaults, then --preset, then --config, then the other flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from forage.cli.options import add_layers, add_options, layered
from forage.loop.config import KEYS, TrainConfig
from forage.loop.configfile import load_config, to_toml
from forage.loop.rundir import RunDir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_layers(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --out from its last checkpoint"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration, check everything, start nothing",
    )
    add_options(parser, KEYS)


def run(args: argparse.Namespace) -> None:
    """Train, or only check whether it could be done."""
    config = _resolved(args)
    if args.dry_run:
        _dry_run(config, args.resume)
        return
    from forage.app import AppError
    from forage.loop.train import train
    from forage.report.console import Console
    from forage.report.progress import Progress
    from forage.report.summary import summarize_run

    console = Console(sys.stdout)
    try:
        finished = train(config, Progress(console), resume=args.resume)
    except (KeyboardInterrupt, AppError):
        if RunDir(Path(config.out)).holds_run():
            console.line(f"stopped; go on with: forage train --resume --out {config.out}")
        raise
    for line in summarize_run(finished, console.width):
        console.line(line)


def _resolved(args: argparse.Namespace) -> TrainConfig:
    """The configuration; a resumed run's own takes the place of the defaults."""
    config = layered(TrainConfig(), args)
    run = RunDir(Path(config.out))
    if args.resume and run.holds_run():
        own = dataclasses.replace(load_config(run.config), out=config.out)
        config = layered(own, args)
    return config


def _dry_run(config: TrainConfig, resume: bool) -> None:
    from forage.loop.preflight import check_fit, check_training, memory_lines
    from forage.report.console import Console

    console = Console(sys.stdout)
    console.line(to_toml(config))
    data = check_training(config, resume=resume)
    console.line(
        f"# data: {len(data.train)} training questions, {len(data.heldout)} held out, "
        f"{len(data.corpus)} passages"
    )
    console.line(f"# fits: {check_fit(config)}")
    for line in memory_lines(config):
        console.line(f"# memory in GiB: {line}")
