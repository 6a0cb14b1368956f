"""A run as it goes: one line per step in a log, a status line that is redrawn on a terminal."""

from __future__ import annotations

import time

from forage.loop.evaluate import EvalRecord
from forage.loop.metrics import StepMetrics
from forage.report.console import Console
from forage.report.numbers import decimal, percent, seconds


class Progress:
    """Shows a run on a console; see `forage.loop.driver.Observer`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._first_step: int | None = None

    def phase(self, text: str) -> None:
        """Say what begins."""
        if self._console.terminal:
            self._console.status(f"{text} ...")
        else:
            self._console.line(f"{text} ...")

    def stepped(self, metrics: StepMetrics, steps: int) -> None:
        """Report a step."""
        if self._first_step is None:
            self._first_step = metrics.step
            self._started = time.monotonic() - metrics.step_s
        text = step_line(metrics, steps)
        if not self._console.terminal:
            self._console.line(text)
            return
        done = metrics.step - self._first_step + 1
        left = (time.monotonic() - self._started) / done * (steps - metrics.step)
        self._console.status(f"{text}  about {seconds(left)} left")

    def evaluated(self, record: EvalRecord) -> None:
        """Report an evaluation, in a line that stays."""
        self._console.line(eval_line(record))

    def trouble(self, text: str) -> None:
        """Report what went wrong, in lines that stay."""
        self._console.line(text)

    def saved(self, path: str) -> None:
        """Report a checkpoint."""
        if not self._console.terminal:
            self._console.line(f"saved {path}")


def step_line(metrics: StepMetrics, steps: int) -> str:
    """One step in a line."""
    parts = [
        f"step {metrics.step:>{len(str(steps))}}/{steps}",
        f"reward {decimal(metrics.reward_mean)}",
        f"EM {decimal(metrics.exact_match)}",
        f"searches {decimal(metrics.searches_mean)}",
        f"groups {metrics.groups_kept}/{metrics.groups_total}",
        f"rollout {seconds(metrics.rollout_s)}",
        f"update {seconds(metrics.update_s)}",
        f"step {seconds(metrics.step_s)}",
    ]
    if metrics.samples_failed:
        parts.append(f"failed samples {metrics.samples_failed}")
    if metrics.calls_retried:
        parts.append(f"retried calls {metrics.calls_retried}")
    return "  ".join(parts)


def eval_line(record: EvalRecord) -> str:
    """One evaluation in a line."""
    text = (
        f"eval at step {record.step}: EM {percent(record.exact_match)} "
        f"({percent(record.ci_low)} to {percent(record.ci_high)}) of {record.n} greedy"
    )
    if record.sampled_exact_match is not None:
        text += (
            f", {percent(record.sampled_exact_match)} sampled, "
            f"searches {decimal(record.sampled_searches_mean)}"
        )
    else:
        text += f", searches {decimal(record.searches_mean)}"
    if record.failed:
        text += f", failed samples {record.failed}"
    return text
