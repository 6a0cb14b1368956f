"""One sample in the making: the protocol's rules applied to tokens as they are drawn.

Tokens are only ever appended, each with its writer, so that the loss mask is right by
construction: nothing is decoded and tokenised again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from forage.agent.protocol import (
    EMPTY_QUERY,
    OVER_LIMIT,
    encode_parts,
    end_of_turn,
    find_action,
    information_parts,
    notice_parts,
)
from forage.rollout.trajectory import Segment, SegmentKind, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from forage.agent.types import Passage, Question


class State(Enum):
    """What a sample does next."""

    SAMPLING = "draws tokens"
    SEARCHING = "waits for passages"
    ENDED = "answered, or ended by a rule"


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one sample may go.

    Attributes:
        max_searches: searches in all; a further one ends the sample.
        max_turn_tokens: tokens sampled in one turn.
        max_tokens: tokens in all: prompt, sampled and passages.
    """

    max_searches: int
    max_turn_tokens: int
    max_tokens: int


class TokenText:
    """The text of token ids under one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.closes_tag: Callable[[int], bool] = lru_cache(maxsize=None)(self._closes_tag)

    def _closes_tag(self, token: int) -> bool:
        """Whether a tag can end with this token."""
        return ">" in self.decode([token])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


class Sample:
    """The growing record of one sample of one question."""

    def __init__(
        self,
        question: Question,
        index: int,
        prompt: Sequence[int],
        text: TokenText,
        limits: Limits,
        end_ids: frozenset[int],
    ) -> None:
        """Start with a prompt of token ids; `index` numbers the question's samples."""
        self.question = question
        self.index = index
        self.state = State.SAMPLING
        self.query = ""
        self.answer: str | None = None
        self.searches = 0
        self.rule = ""
        self.failure: str | None = None
        self.search_ms: list[float] = []
        self._text = text
        self._limits = limits
        self._end_ids = end_ids
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._segments: list[Segment] = []
        self._turn: list[int] = []
        self._append("prompt", prompt)
        if self._room() < 1:
            self._end(f"prompt of {len(prompt)} tokens leaves no room in max_tokens")

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def transcript(self) -> str:
        """All text after the prompt."""
        return "".join(segment.text for segment in self._segments[1:])

    def take(self, token: int, logprob: float, version: int) -> State:
        """Append one sampled token and say what comes next."""
        self._ids.append(token)
        self._mask.append(1)
        self._logprobs.append(logprob)
        self._versions.append(version)
        self._turn.append(token)
        if token in self._end_ids:
            self._end(end_of_turn(self._text.decode(self._turn[:-1]), "eos"))
        elif self._text.closes_tag(token):
            self._act()
        if self.state is State.SAMPLING and (
            len(self._turn) >= self._limits.max_turn_tokens or self._room() < 1
        ):
            self._end(end_of_turn(self._text.decode(self._turn), "length"))
        return self.state

    def read(self, passages: Sequence[Passage], milliseconds: float) -> list[int]:
        """Append what a search found; returns the ids that the policy reads next.

        An empty list means that they left no room and the sample has ended.
        """
        self.search_ms.append(milliseconds)
        parts = information_parts(passages) if self.query else notice_parts(EMPTY_QUERY)
        ids = encode_parts(self._text.tokenizer, parts)
        if len(ids) >= self._room():
            self._end("no room for passages")
            return []
        self._append("information", ids)
        self.state = State.SAMPLING
        return ids

    def fail(self, why: str) -> None:
        """End the sample as failed: neither right nor wrong."""
        self.failure = why
        self._end("failed")

    def trajectory(self, reward: float, exact_match: float, f1: float) -> Trajectory:
        """The finished record with its scores."""
        return Trajectory(
            question_id=self.question.id,
            sample=self.index,
            segments=tuple(self._segments),
            token_ids=np.array(self._ids, np.int32),
            mask=np.array(self._mask, np.uint8),
            logprobs=np.array(self._logprobs, np.float32),
            versions=np.array(self._versions, np.int32),
            answer=self.answer,
            reward=reward,
            exact_match=exact_match,
            f1=f1,
            searches=self.searches,
            rule=self.rule,
            failure=self.failure,
            search_ms=tuple(self.search_ms),
        )

    def _act(self) -> None:
        """Follow the action that the turn's text completes, if any."""
        action = find_action(self._text.decode(self._turn))
        if action is None:
            return
        if action.kind == "answer":
            self.answer = action.content
            self._end(action.rule)
        elif self.searches == self._limits.max_searches:
            self._end(OVER_LIMIT)
        else:
            self.searches += 1
            self.query = action.content
            self.rule = action.rule
            self._close_turn()
            self.state = State.SEARCHING

    def _end(self, rule: str) -> None:
        self.rule = rule
        self._close_turn()
        self.state = State.ENDED

    def _close_turn(self) -> None:
        if self._turn:
            text = self._text.decode(self._turn)
            self._segments.append(Segment("sampled", text, len(self._turn)))
        self._turn = []

    def _append(self, kind: SegmentKind, ids: Sequence[int]) -> None:
        self._ids += ids
        self._mask += [0] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._versions += [-1] * len(ids)
        self._segments.append(Segment(kind, self._text.decode(ids), len(ids)))

    def _room(self) -> int:
        return self._limits.max_tokens - len(self._ids)
