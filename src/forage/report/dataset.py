"""What `forage data` shows of a data set."""

from __future__ import annotations

import textwrap

from forage.agent.data import describe
from forage.agent.types import DataSet
from forage.report.numbers import percent


def describe_lines(data: DataSet, width: int) -> list[str]:
    """Counts, kinds, coverage and first questions of a data set."""
    facts = describe(data)
    lines = [
        f"{facts.name}: {facts.train} training questions, {facts.heldout} held out, "
        f"{facts.passages} passages",
        f"words per question {facts.question_words:.1f}, per passage {facts.passage_words:.1f}; "
        f"answers per question {facts.answers:.2f}",
    ]
    if facts.evidence is not None:
        lines.append(f"questions whose evidence is all in the corpus: {percent(facts.evidence)}")
    for kind, (train, heldout) in facts.kinds.items():
        lines.append(f"  {kind or 'no kind'}: {train} to train on, {heldout} held out")
    lines += facts.notes
    for question in facts.examples:
        gold = " | ".join(question.answers)
        lines += ["", *textwrap.wrap(f"{question.text}  (gold: {gold})", width)]
    return lines
