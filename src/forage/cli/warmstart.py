"""Show a model how to search, before training: it imitates traces written from supporting facts.

Values come from the defaults, then --preset, then --config, then the other flags, as for train.
"""

from __future__ import annotations

import argparse
import sys

from forage.cli.options import add_layers, add_options, at_least, layered, positive
from forage.loop.config import TrainConfig

KEYS = (
    "model",
    *("data", "heldout_data", "corpus", "heldout", "train_questions"),
    *("prompt", "retriever", "top_k", "max_searches", "max_tokens", "seed"),
    *("trainer_resources", "trainer_threads", "resources", "engine", "address"),
    "micro_batch_tokens",
)
"""What matters to a supervised start."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--out", dest="folder", metavar="FOLDER", required=True, help="new folder")
    parser.add_argument(
        "--questions", type=at_least(1), metavar="N", help="write traces about so many only"
    )
    parser.add_argument(
        "--max-epochs",
        type=at_least(1),
        default=8,
        metavar="N",
        help="epochs; fewer where the loss on traces set aside falls no further "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=positive,
        default=1e-4,
        metavar="X",
        help="learning rate, at its highest (default: %(default)s)",
    )
    parser.add_argument(
        "--batch",
        type=at_least(1),
        default=16,
        metavar="N",
        help="traces per optimizer step (default: %(default)s)",
    )
    add_layers(parser)
    add_options(parser, KEYS)


def run(args: argparse.Namespace) -> None:
    """Write the model, and say what it learned."""
    from forage.loop.warmstart import StartOptions, write_start
    from forage.report.console import Console
    from forage.report.start import start_lines

    options = StartOptions(
        out=args.folder,
        questions=args.questions,
        max_epochs=args.max_epochs,
        learning_rate=args.rate,
        batch=args.batch,
    )
    report = write_start(layered(TrainConfig(), args), options)
    console = Console(sys.stdout)
    for line in start_lines(report):
        console.line(line)
    console.line(f"wrote {args.folder}; go on with: forage train --model {args.folder}")
