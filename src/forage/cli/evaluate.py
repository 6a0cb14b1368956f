"""Evaluate a run, a checkpoint or a model on held-out questions.

A run or checkpoint is evaluated as it was trained, unless flags say otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from forage.cli.options import add_layers, add_options, layered
from forage.loop.config import TrainConfig

KEYS = (
    *("data", "heldout_data", "corpus", "heldout", "train_questions"),
    *("prompt", "reward", "retriever", "top_k", "max_searches", "max_turn_tokens", "max_tokens"),
    *("temperature", "prompts_per_task", "group_size", "seed"),
    *("rollouts", "max_rollouts", "rollout_resources", "rollout_threads"),
    *("resources", "engine", "address", "max_batch", "generation", "gpu_memory"),
    "eval_samples",
)
"""What matters to an evaluation."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "target", metavar="CHECKPOINT_OR_MODEL", help="run directory, checkpoint or model"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_layers(parser)
    add_options(parser, KEYS)


def run(args: argparse.Namespace) -> None:
    """Evaluate and print."""
    from forage.loop.files import to_json
    from forage.loop.standalone import evaluate_target
    from forage.loop.targets import find_target
    from forage.report.console import Console
    from forage.report.progress import eval_line
    from forage.report.summary import kind_lines

    target = find_target(args.target)
    config = layered(target.config or TrainConfig(), args)
    record = evaluate_target(target, config)
    console = Console(sys.stdout)
    if args.json:
        console.line(to_json(dataclasses.asdict(record)))
        return
    console.line(eval_line(record))
    for line in kind_lines(record):
        console.line(line)
