"""`forage bench weights`: from a trainer's weights to a rollout's, whole and as deltas."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from forage import app
from forage.bench.table import Row, note, rate, show
from forage.bench.weights_ends import Followed, Published, Sink, Source, shapes_of
from forage.errors import UserError
from forage.rollout.choice import use_vllm

ROUNDS = 4
"""Publications of a kind; the first one only warms up."""
FEWEST = 10
"""Weights that a share must stand for: they are drawn, and none might be."""


@dataclass(frozen=True, slots=True)
class Sync:
    """One version on its way, or the median of several; seconds.

    Attributes:
        export_s: until the version could be fetched.
        stage_s: fetching and decoding, while an engine may generate.
        pause_s: applying and proving, while it may not.
        applied_s: from the beginning of the publication until the version is held.
        changed: share of the weights.
    """

    export_s: float
    stage_s: float
    pause_s: float
    applied_s: float
    nbytes: int
    changed: float


def run(args: Namespace) -> None:
    """Measure and print.

    Raises:
        UserError: the flags ask for what can't be measured here, or tensors didn't arrive bit for
            bit.
    """
    count = sum(size.numel() for size in shapes_of(args.shape).values())
    _check(args, count)
    with app.init("bench-weights"):
        source, sink = _ends(args)
        copy_s = source.copy.remote().result()
        versions = itertools.count(1)
        whole = _syncs(source, sink, versions)
        rows = [
            Row("device copy of all weights", _megabytes(2 * count), copy_s, "", 1.0),
            *_rows("whole", whole, count, copy_s),
        ]
        notes = []
        for share in args.changed:
            delta = _syncs(source, sink, versions, share)
            _compare(source, sink)
            label = f"{100 * share:g} % changed"
            rows += _rows(label, delta, count, copy_s)
            notes.append(_judged(label, delta, whole, count))
    show(f"Weights, {args.shape}: {count / 1e6:,.0f} M in bf16, {_where(args)}", rows)
    for line in notes:
        note(line)


def _check(args: Namespace, count: int) -> None:
    """Whether so small shares of `count` weights, and vLLM, can be measured here."""
    for share in args.changed:
        if share * count < FEWEST:
            raise UserError(
                f"--changed {share:g} of the {count:,} weights of {args.shape} is fewer than "
                f"{FEWEST}; give a larger share"
            )
    if args.vllm and not use_vllm("auto", gpu=torch.cuda.device_count() > 0):
        raise UserError(
            "--vllm needs a GPU and vLLM, which aren't both here; leave it out, or run it on a "
            "GPU after pip install 'forage-rl[vllm]'"
        )


def _ends(args: Namespace) -> tuple[Any, Any]:
    """Both services, on a GPU each or sharing one."""
    gpus = torch.cuda.device_count()
    need = "cpu=1" if not gpus else "cpu=2,gpu=1" if gpus > 1 else "cpu=2,gpu=0.5"
    memory = 0.9 if gpus > 1 else 0.4
    publishes, follows = _service(Source), _service(Sink)
    source = publishes.options(resreq=need).remote(args.shape, args.seed)
    return source, follows.options(resreq=need).remote(args.shape, args.vllm, memory)


def _service(declared: Any) -> Any:
    """A decorated class is a `Service`, which type checkers don't see."""
    return declared


def _sync(source: Any, sink: Any, version: int, whole: bool) -> Sync:
    published: Published = source.publish.remote(version, whole).result()
    report = published.report
    followed: Followed = sink.follow.remote(published.manifest, report.version).result()
    return Sync(
        export_s=report.seconds,
        stage_s=followed.stage_s,
        pause_s=followed.pause_s,
        applied_s=followed.held - published.began,
        nbytes=followed.nbytes,
        changed=report.changed_fraction,
    )


def _syncs(source: Any, sink: Any, versions: Iterator[int], share: float | None = None) -> Sync:
    """The medians of some deltas after a share of the weights has changed; or of whole weights."""
    syncs = []
    for version in itertools.islice(versions, ROUNDS):
        if share is not None:
            source.change.remote(share).result()
        syncs.append(_sync(source, sink, version, whole=share is None))
    del syncs[0]
    return Sync(
        export_s=median(sync.export_s for sync in syncs),
        stage_s=median(sync.stage_s for sync in syncs),
        pause_s=median(sync.pause_s for sync in syncs),
        applied_s=median(sync.applied_s for sync in syncs),
        nbytes=round(median(sync.nbytes for sync in syncs)),
        changed=median(sync.changed for sync in syncs),
    )


def _compare(source: Any, sink: Any) -> None:
    """Both ends hold the same bits, by way of a file."""
    with TemporaryDirectory() as folder:
        source.save.remote(folder).result()
        if not sink.equals.remote(folder).result():
            raise UserError("the weights that arrived aren't those that were published")


def _rows(label: str, sync: Sync, count: int, copy_s: float) -> list[Row]:
    moved = _megabytes(sync.nbytes)
    return [
        Row(
            f"{label}: export", moved, sync.export_s, _weights(count, sync.export_s),
            copy_s / sync.export_s,
        ),
        Row(f"{label}: stage", moved, sync.stage_s),
        Row(
            f"{label}: pause", moved, sync.pause_s, _weights(count, sync.pause_s),
            copy_s / sync.pause_s,
        ),
        Row(f"{label}: publish to applied", moved, sync.applied_s),
    ]  # fmt: skip


def _judged(label: str, delta: Sync, whole: Sync, count: int) -> str:
    bound = _bound_bytes(delta.changed, count)
    return (
        f"{label}: {delta.changed * count / 1e6:,.1f} M weights moved; {delta.nbytes:,} bytes,"
        f" {delta.nbytes / bound:.3f} times the entropy of their positions + 16 bits each,"
        f" {whole.nbytes / delta.nbytes:.0f} times fewer than whole; publish to applied"
        f" {delta.applied_s / whole.applied_s:.0%} of the time of whole; every tensor equals a"
        " full reload"
    )


def _bound_bytes(changed: float, count: int) -> float:
    """The entropy of random positions, and two bytes for each value."""
    entropy = 0.0 if changed >= 1 else (1 - changed) * math.log2(1 - changed)
    entropy += changed * math.log2(changed)
    return count * (2 * changed - entropy / 8)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _weights(count: int, seconds: float) -> str:
    return rate(count / 1e6, seconds, "M weights")


def _where(args: Namespace) -> str:
    gpus = torch.cuda.device_count()
    ends = f"{min(gpus, 2)} GPU{'s' if gpus > 1 else ''}" if gpus else "CPU"
    return f"two processes on {ends}" + (", one of them vLLM" if args.vllm else "")
