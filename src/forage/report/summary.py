"""The end of a run on one page, read from its directory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forage.loop.evaluate import EvalRecord
from forage.loop.files import read_json
from forage.loop.metrics import SETTLING_STEPS, mean
from forage.loop.rundir import RunDir
from forage.loop.store import read_trajectories
from forage.report.curve import draw_curve
from forage.report.numbers import decimal, percent, points, seconds, size
from forage.report.transcripts import choose, side_by_side

TRANSCRIPTS = 3

AVERAGES = ("step_s", "rollout_s", "update_s", "publish_s", "sync_s", "published_bytes")


def summarize_run(run: RunDir, width: int = 100) -> list[str]:
    """Lines: curve, transcripts, accuracy before and after, averages, where everything is."""
    evals, metrics = read_json(run.evals), read_json(run.metrics)
    lines: list[str] = []
    if evals:
        lines += ["", *draw_curve(evals), ""]
    if len(evals) > 1:
        lines += _transcripts(run, evals[-1]["step"], width)
    if evals:
        lines += _accuracy(evals)
    if metrics:
        lines += _averages(metrics)
    return lines + _places(run)


def _transcripts(run: RunDir, step: int, width: int) -> list[str]:
    before = read_trajectories(run.eval_trajectories(0, "greedy"))
    after = read_trajectories(run.eval_trajectories(step, "greedy"))
    lines: list[str] = []
    for b, a in choose(before, after, TRANSCRIPTS):
        lines += ["", *side_by_side(b, a, step, width)]
    return [*lines, ""]


def _accuracy(evals: Sequence[Mapping[str, Any]]) -> list[str]:
    first, last = evals[0], evals[-1]
    rows = [
        ("", f"step {first['step']}", f"step {last['step']}", "change"),
        ("exact match, greedy", _interval(first), _interval(last), _change(last)),
        _row("exact match, sampled", first, last, "sampled_exact_match"),
    ]
    for kind in last["by_kind"]:
        b, a = first["by_kind"].get(kind), last["by_kind"][kind]
        if b:
            rows.append(_row(f"  {kind}, greedy ({a['n']})", b, a, "exact_match"))
            rows.append(_row(f"  {kind}, sampled", b, a, "sampled_exact_match"))
    for key, name in (("searches_mean", "greedy"), ("sampled_searches_mean", "sampled")):
        rows.append((f"searches, {name}", decimal(first[key]), decimal(last[key]), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def kind_lines(record: EvalRecord) -> list[str]:
    """Accuracy by kind of question, one line each."""
    return [
        f"  {kind}: EM {percent(values['exact_match'])} of {values['n']} greedy, "
        f"{percent(values['sampled_exact_match'])} sampled"
        for kind, values in record.by_kind.items()
    ]


def _row(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], key: str
) -> tuple[str, str, str, str]:
    old, new = before[key], after[key]
    change = points(new - old) if old is not None and new is not None else ""
    return name, percent(old), percent(new), change


def _interval(record: Mapping[str, Any]) -> str:
    return (
        f"{percent(record['exact_match'])} "
        f"({percent(record['ci_low'])} to {percent(record['ci_high'])})"
    )


def _change(record: Mapping[str, Any]) -> str:
    if record["difference"] is None:
        return ""
    low, high = points(record["difference_low"]), points(record["difference_high"])
    return f"{points(record['difference'])} ({low} to {high})"


def _averages(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    settled = metrics[SETTLING_STEPS:] or metrics
    means = {key: mean(record[key] for record in settled) or 0.0 for key in AVERAGES}
    failed = sum(record["samples_failed"] for record in metrics)
    retried = sum(record["calls_retried"] for record in metrics)
    return [
        "",
        f"mean of steps {settled[0]['step']} to {settled[-1]['step']}: "
        f"step {seconds(means['step_s'])}, rollout {seconds(means['rollout_s'])}, "
        f"update {seconds(means['update_s'])}, publication {seconds(means['publish_s'])} "
        f"({size(means['published_bytes'])}), synchronisation {seconds(means['sync_s'])}",
        f"all {len(metrics)} steps: {seconds(sum(record['step_s'] for record in metrics))}, "
        f"{sum(record['samples_trained'] for record in metrics)} samples trained on, "
        f"{failed} failed samples, {retried} retried calls",
    ]


def _places(run: RunDir) -> list[str]:
    lines = ["", f"everything is in {run.path}: metrics.jsonl, evals.jsonl, trajectories/, logs/"]
    if run.newest.exists():
        lines.append(f"newest checkpoint: {run.newest}; forage export {run.path} --out FOLDER")
    return lines
