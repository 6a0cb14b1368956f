"""What `forage warmstart` says at its end."""

from __future__ import annotations

from forage.trainer.supervised import SupervisedReport


def start_lines(report: SupervisedReport) -> list[str]:
    """Traces, losses and how it ended."""
    epochs = len(report.losses) - 1
    ended = "converged" if report.converged else "not yet converged: raise --max-epochs"
    return [
        f"{report.traces} traces to learn from, {report.aside} set aside, about "
        f"{report.questions} questions; {report.trace_tokens:.0f} tokens each, of which the "
        f"policy writes {report.written_tokens:.0f}",
        "loss on the traces set aside, before and after each epoch: "
        + " ".join(f"{loss:.3f}" for loss in report.losses),
        f"kept epoch {report.best} of {epochs} ({report.steps} steps; {ended})",
    ]
