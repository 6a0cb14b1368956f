"""What people look at, from the records of a run."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from loop_samples import trajectory

from forage.agent.types import Question
from forage.loop import files
from forage.loop.checkpoint import Counters, save_checkpoint
from forage.loop.config import TrainConfig
from forage.loop.evaluate import EvalRecord, Evaluation, summarize
from forage.loop.metrics import StepMetrics
from forage.loop.rundir import RunDir
from forage.loop.store import write_trajectories
from forage.report.console import Console
from forage.report.curve import draw_curve
from forage.report.numbers import seconds, size
from forage.report.progress import Progress, eval_line, step_line
from forage.report.summary import summarize_run
from forage.report.transcripts import choose, side_by_side

QUESTIONS = [Question(f"q{i}", f"Question {i}?", ("Riga",), kind="2hop") for i in range(10)]


def _metrics(step: int, **changes: object) -> StepMetrics:
    values: dict[str, object] = {field.name: 0 for field in dataclasses.fields(StepMetrics)}
    values |= {"step": step, "step_s": 100.0 if step < 3 else 2.0, "kl": None, **changes}
    return StepMetrics(**values)  # type: ignore[arg-type]


def _evaluation(right: int) -> Evaluation:
    greedy = [trajectory(q.id, reward=float(i < right)) for i, q in enumerate(QUESTIONS)]
    return Evaluation(tuple(greedy), tuple(greedy))


def _record(step: int, right: int, start: dict[str, float] | None = None) -> EvalRecord:
    return summarize(_evaluation(right), QUESTIONS, step, step, start)


def test_a_log_gets_whole_lines_and_no_control_characters() -> None:
    stream = io.StringIO()
    progress = Progress(Console(stream))
    progress.phase("starting executors")
    progress.stepped(_metrics(7, reward_mean=0.5, samples_failed=3), 50)
    progress.evaluated(_record(7, 4))
    progress.saved("runs/x/checkpoints/step-000007")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("step  7/50  reward 0.50")
    assert "failed samples 3" in lines[1]
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_status_line_that_is_replaced() -> None:
    stream = _Terminal()
    progress = Progress(Console(stream))
    for step in (1, 2):
        progress.stepped(_metrics(step), 4)
    progress.evaluated(_record(2, 4))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r\x1b[2K") == 2
    assert stream.getvalue().endswith(eval_line(_record(2, 4)) + "\n")


def test_lines_of_steps_and_evaluations() -> None:
    assert "reward -" in step_line(_metrics(1, reward_mean=None), 9)
    assert eval_line(_record(10, 4)) == (
        "eval at step 10: EM 40.0 % (16.8 % to 68.7 %) of 10 greedy, 40.0 % sampled, searches 1.00"
    )


def test_the_curve_puts_marks_where_the_numbers_are() -> None:
    evals = [
        {"step": 0, "exact_match": 0.2, "sampled_exact_match": 0.1},
        {"step": 50, "exact_match": 1.0, "sampled_exact_match": 1.0},
    ]
    lines = draw_curve(evals, width=11)
    assert lines[0] == " 100 % |          @"
    assert lines[8] == "  20 % |*"
    assert lines[9] == "  10 % |o"
    assert lines[12].split() == ["0", "50"]
    assert draw_curve([evals[0] | {"sampled_exact_match": None}])[8] == "  20 % |*"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.path.mkdir()
    made.create(TrainConfig())
    start = _evaluation(2).correct()
    for step, right, before in ((0, 2, None), (4, 9, start)):
        files.append_json(made.evals, dataclasses.asdict(_record(step, right, before)))
        write_trajectories(
            made.eval_trajectories(step, "greedy"), _evaluation(right).greedy, QUESTIONS
        )
    for step in range(1, 5):
        files.append_json(made.metrics, dataclasses.asdict(_metrics(step, calls_retried=1)))
    return made


def test_the_summary_compares_before_with_after(run: RunDir) -> None:
    save_checkpoint(run, Counters(step=4), lambda _: None, 1)
    text = "\n".join(summarize_run(run))
    assert "exact match over steps" in text
    assert text.count("before training: a (wrong)") == 3
    assert text.count("after step 4: a (right)") == 3
    assert "+70.0 (+" in text
    assert "2hop, greedy (10)" in text
    assert "mean of steps 3 to 4: step 2.0 s" in text  # The first two are left out.
    assert "0 failed samples, 4 retried calls" in text
    assert f"forage export {run.path} --out FOLDER" in text


def test_a_run_that_only_evaluated_has_a_summary(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    files.append_json(run.evals, dataclasses.asdict(_record(0, 2)))
    assert any("20.0 %" in line for line in summarize_run(run))


def test_transcripts_fit_their_columns_and_cannot_steer_a_terminal() -> None:
    before = {
        "question_id": "q",
        "question": "Which city?",
        "answers": ["Riga"],
        "answer": "\x1b[31mOslo",
        "exact_match": 0.0,
        "failure": None,
        "segments": [
            {"kind": "prompt", "text": "never shown"},
            {"kind": "sampled", "text": "<search>" + "word " * 40 + "</search>\x07"},
            {"kind": "information", "text": "Doc 1"},
        ],
    }
    after = before | {"answer": "Riga", "exact_match": 1.0}
    lines = side_by_side(before, after, 50, 80)
    text = "\n".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert "never shown" not in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "    Doc 1" in text
    assert "Riga (right)" in text


def test_questions_that_were_learned_come_first() -> None:
    def record(name: str, right: bool, failure: str | None = None) -> dict[str, object]:
        return {"question_id": name, "exact_match": float(right), "failure": failure}

    before = [record(name, name == "lost") for name in ("same", "lost", "won", "down")]
    after = [record(name, name == "won") for name in ("lost", "won", "same")]
    after.append(record("down", True, "retriever"))
    chosen = [b["question_id"] for b, _ in choose(before, after, 3)]
    assert chosen == ["won", "same", "lost"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.4, "59 s"), (200.2, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_times_are_readable(value: float, text: str) -> None:
    assert seconds(value) == text


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (0, 999, 1300, 6.17e9, 2e12)] == [
        "0 B",
        "999 B",
        "1.3 kB",
        "6.2 GB",
        "2.0 TB",
    ]
