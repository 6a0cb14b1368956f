"""Trajectories on disk: one JSON object per sample, compressed, one file per step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forage.agent.types import Question
from forage.loop.files import to_json
from forage.rollout.trajectory import Trajectory


def write_trajectories(
    path: Path, trajectories: Iterable[Trajectory], questions: Sequence[Question]
) -> None:
    """Replace `path` by these samples; `questions` are those that they answer."""
    by_id = {question.id: question for question in questions}
    lines = (to_json(_record(t, by_id[t.question_id])) + "\n" for t in trajectories)
    part = path.with_name(path.name + ".part")
    # No time stamp inside: the same samples make the same file.
    with part.open("wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) as file:
        for line in lines:
            file.write(line.encode())
    part.replace(path)


def read_trajectories(path: Path) -> list[dict[str, Any]]:
    """The records of one file, in the order of generation."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _record(trajectory: Trajectory, question: Question) -> Mapping[str, Any]:
    return {
        "question_id": trajectory.question_id,
        "sample": trajectory.sample,
        "question": question.text,
        "answers": list(question.answers),
        "kind": question.kind,
        "segments": [
            {"kind": segment.kind, "text": segment.text, "tokens": segment.tokens}
            for segment in trajectory.segments
        ],
        "token_ids": trajectory.token_ids.tolist(),
        "mask": trajectory.mask.tolist(),
        "logprobs": trajectory.logprobs.tolist(),
        "weight_versions": trajectory.versions.tolist(),
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        "exact_match": trajectory.exact_match,
        "f1": trajectory.f1,
        "searches": trajectory.searches,
        "rule": trajectory.rule,
        "failure": trajectory.failure,
        "search_ms": list(trajectory.search_ms),
    }
