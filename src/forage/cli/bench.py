"""Measure speeds on this machine, each beside a ceiling of the same run.

Models have random weights in a named shape, so that anyone can repeat it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module

from forage.cli.options import at_least
from forage.loop.config import flag, parse_value


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
        _key(added, "seed", 0, "seed of the weights")
        add(added)
        added.set_defaults(benchmark=name, parser=added)


def run(args: argparse.Namespace) -> None:
    """Run the benchmark; it prints its table."""
    import_module(f"forage.bench.{args.benchmark}").run(args)


def _rollout(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--prompts", 350, "samples, all at once")
    _number(parser, "--searches", 2, "searches per sample", least=0)
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
        type=fraction,
        nargs="+",
        default=[0.01, 0.03],
        metavar="SHARE",
        help="shares of the weights that an update moves (default: 0.01 0.03)",
    )
    parser.add_argument(
        "--vllm", action="store_true", help="apply to vLLM's parameters (default: fused like them)"
    )


def _update(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--tokens", 200_000, "tokens of the batch, a last sample more", least=2)
    _number(parser, "--shortest", 300, "tokens of the shortest sample", least=2)
    _number(parser, "--longest", 2000, "tokens of the longest sample", least=2)
    _share(parser, "--sampled", 0.25, "share of the tokens that the policy sampled")
    _key(parser, "kl", 0.0, "weight of the KL to a reference model; 0 holds none")
    _key(parser, "micro_batch_tokens", 16384, "tokens per forward and backward pass, at most")
    _share(parser, "--gpu-share", 1.0, "share of the GPU's memory that the trainer may use")


def _step(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--prompts", 70, "questions of a step")
    _number(parser, "--samples", 5, "samples per question, compared with each other", least=2)
    _number(parser, "--searches", 2, "searches per sample", least=0)
    _number(parser, "--turn-tokens", 100, "tokens generated per turn")
    _number(parser, "--prompt-tokens", 200, "tokens of a prompt")
    _number(parser, "--information-tokens", 420, "tokens that a search brings")
    _number(parser, "--steps", 3, "steps measured, after two to warm up")
    _key(parser, "prompts_per_task", 5, "questions per rollout call")
    _key(parser, "rollouts", 1, "rollout executors")
    _key(parser, "trainers", 1, "trainers")
    _key(parser, "shard", 1, "trainers that hold one copy together, as for forage train")
    _key(parser, "kl", 0.001, "weight of the KL to a reference model; 0 holds none")
    _key(parser, "micro_batch_tokens", 16384, "tokens per forward and backward pass, at most")
    for who in ("rollout", "trainer"):
        parser.add_argument(
            f"--{who}-resources", metavar="TEXT", help=f"of each {who}, as for forage train"
        )


def fraction(text: str) -> float:
    """The type of a flag that is a share of something: above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"is {text}; it must be greater than 0 and at most 1")
    return value


def _share(parser: argparse.ArgumentParser, name: str, default: float, about: str) -> None:
    _add(parser, name, fraction, default, about)


def _number(
    parser: argparse.ArgumentParser, name: str, default: int, about: str, *, least: int = 1
) -> None:
    _add(parser, name, at_least(least), default, about)


def _key(parser: argparse.ArgumentParser, key: str, default: float, about: str) -> None:
    """A flag with the name and the limits of a configuration key."""
    _add(parser, flag(key), partial(parse_value, key), default, about)


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    parse: Callable[[str], object],
    default: float,
    about: str,
) -> None:
    about = f"{about} (default: %(default)s)"
    metavar = "X" if isinstance(default, float) else "N"
    parser.add_argument(name, type=parse, default=default, metavar=metavar, help=about)


BENCHMARKS = {
    "rollout": ("generation with searches beside raw vLLM", _rollout),
    "update": ("updates of a trainer beside plain matrix products", _update),
    "weights": ("weight deltas from a trainer to a rollout beside whole weights", _weights),
    "step": ("whole training steps, phase by phase", _step),
}
"""Name, which is the module's in `forage.bench`; one line about it; and what adds its flags."""
