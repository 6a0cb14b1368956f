"""Measure speeds on this machine, each beside a ceiling of the same run.

Models have random weights in a named shape, so that anyone can repeat it.
"""

from __future__ import annotations

import argparse
from importlib import import_module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A subcommand for each benchmark; its module is imported only when it runs."""
    commands = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for name, (about, add) in BENCHMARKS.items():
        added = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        added.add_argument(
            "--shape",
            default="qwen2.5-3b",
            metavar="NAME",
            help="model shape (default: %(default)s)",
        )
        added.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the weights")
        add(added)
        added.set_defaults(benchmark=name, parser=added)


def run(args: argparse.Namespace) -> None:
    """Run the benchmark; it prints its table."""
    import_module(f"forage.bench.{args.benchmark}").run(args)


def _rollout(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--prompts", 350, "samples, all at once")
    _number(parser, "--searches", 2, "searches per sample")
    _number(parser, "--turn-tokens", 100, "tokens generated per turn")
    _number(parser, "--prompt-tokens", 200, "tokens of a prompt")
    _number(parser, "--information-tokens", 420, "tokens read after a search")
    _number(parser, "--calls", 5, "calls that the samples come in, at the same time")
    parser.add_argument(
        "--data", metavar="FILE", help="questions whose paragraphs are searched (default: made up)"
    )
    parser.add_argument("--corpus", metavar="PATH", help="passages to search, as for forage train")
    _share(parser, "--gpu-memory", 0.9, "share of the GPU's memory that vLLM may use")


def _weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--changed",
        type=float,
        nargs="+",
        default=[0.01, 0.03],
        metavar="SHARE",
        help="shares of the weights that an update moves (default: 0.01 0.03)",
    )
    parser.add_argument(
        "--vllm", action="store_true", help="apply to vLLM's parameters (default: fused like them)"
    )


def _update(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--tokens", 200_000, "tokens of the batch, a last sample more")
    _number(parser, "--shortest", 300, "tokens of the shortest sample")
    _number(parser, "--longest", 2000, "tokens of the longest sample")
    _share(parser, "--sampled", 0.25, "share of the tokens that the policy sampled")
    _share(parser, "--kl", 0.0, "weight of the KL to a reference model; 0 holds none")
    _number(parser, "--micro-batch-tokens", 16384, "tokens per forward and backward pass, at most")
    _share(parser, "--gpu-share", 1.0, "share of the GPU's memory that the trainer may use")


def _step(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--prompts", 70, "questions of a step")
    _number(parser, "--samples", 5, "samples per question")
    _number(parser, "--searches", 2, "searches per sample")
    _number(parser, "--turn-tokens", 100, "tokens generated per turn")
    _number(parser, "--prompt-tokens", 200, "tokens of a prompt")
    _number(parser, "--information-tokens", 420, "tokens that a search brings")
    _number(parser, "--steps", 3, "steps measured, after two to warm up")
    _number(parser, "--prompts-per-task", 5, "questions per rollout call")
    _number(parser, "--rollouts", 1, "rollout executors")
    _number(parser, "--trainers", 1, "trainers")
    _number(parser, "--shard", 1, "trainers that hold one copy together, as for forage train")
    _share(parser, "--kl", 0.001, "weight of the KL to a reference model; 0 holds none")
    _number(parser, "--micro-batch-tokens", 16384, "tokens per forward and backward pass, at most")
    for who in ("rollout", "trainer"):
        parser.add_argument(
            f"--{who}-resources", metavar="TEXT", help=f"of each {who}, as for forage train"
        )


def _share(parser: argparse.ArgumentParser, flag: str, default: float, about: str) -> None:
    about = f"{about} (default: %(default)s)"
    parser.add_argument(flag, type=float, default=default, metavar="X", help=about)


def _number(parser: argparse.ArgumentParser, flag: str, default: int, about: str) -> None:
    about = f"{about} (default: %(default)s)"
    parser.add_argument(flag, type=int, default=default, metavar="N", help=about)


BENCHMARKS = {
    "rollout": ("generation with searches beside raw vLLM", _rollout),
    "update": ("updates of a trainer beside plain matrix products", _update),
    "weights": ("weight deltas from a trainer to a rollout beside whole weights", _weights),
    "step": ("whole training steps, phase by phase", _step),
}
"""Name, which is the module's in `forage.bench`; one line about it; and what adds its flags."""
