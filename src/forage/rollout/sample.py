"""One sample in the making: the protocol's rules applied to tokens as they are drawn.

Tokens are only ever appended, each with its writer, so that the loss mask is right by
construction: nothing is decoded and tokenised again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from forage.agent.information import PartEncoder
from forage.agent.prompts import PromptEncoder
from forage.agent.protocol import (
    EMPTY_QUERY,
    OVER_LIMIT,
    end_of_turn,
    find_action,
    information_parts,
    notice_parts,
)
from forage.rollout.trajectory import Segment, SegmentKind, Trajectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from forage.agent.information import Part
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
    """Text and token ids under one tokenizer, for any number of threads.

    Encoding changes a tokenizer's settings for the time of a call, so that it has one to itself
    and one thread at a time.

    Attributes:
        closing: ids of the tokens that a tag can end with.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
        """`prompt` is the name of the prompt that questions are put in."""
        self._decoder = tokenizer
        encoder = copy.deepcopy(tokenizer)
        self._encode = PartEncoder(encoder)
        self._prompt = PromptEncoder(encoder, prompt)
        self._encoding = Lock()
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        self.closing = frozenset(token for token, text in enumerate(texts) if ">" in text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return str(self._decoder.decode(ids, skip_special_tokens=False))

    def encode(self, parts: Sequence[Part]) -> list[int]:
        """Token ids of `parts`, see `forage.agent.information.PartEncoder`."""
        with self._encoding:
            return self._encode(parts)

    def prompt(self, question: str) -> list[int]:
        """Token ids of a whole prompt, see `forage.agent.prompts.PromptEncoder`."""
        with self._encoding:
            return self._prompt(question)


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
        self._turn = 0  # where the turn begins
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
        ids, limits = self._ids, self._limits
        ids.append(token)
        self._mask.append(1)
        self._logprobs.append(logprob)
        self._versions.append(version)
        if token in self._end_ids:
            self._end(end_of_turn(self._text.decode(ids[self._turn : -1]), "eos"))
        elif token in self._text.closing:
            self._act()
        length = len(ids)
        if (
            length - self._turn >= limits.max_turn_tokens or length >= limits.max_tokens
        ) and self.state is State.SAMPLING:
            self._end(end_of_turn(self._turn_text(), "length"))
        return self.state

    def read(self, passages: Sequence[Passage], milliseconds: float) -> list[int]:
        """Append what a search found; returns the ids that the policy reads next.

        An empty list means that they left no room and the sample has ended.
        """
        self.search_ms.append(milliseconds)
        parts = information_parts(passages) if self.query else notice_parts(EMPTY_QUERY)
        ids = self._text.encode(parts)
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
        action = find_action(self._turn_text())
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

    def _turn_text(self) -> str:
        return self._text.decode(self._ids[self._turn :])

    def _close_turn(self) -> None:
        sampled = len(self._ids) - self._turn
        if sampled:
            self._segments.append(Segment("sampled", self._turn_text(), sampled))
        self._turn = len(self._ids)

    def _append(self, kind: SegmentKind, ids: Sequence[int]) -> None:
        self._ids += ids
        self._mask += [0] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._versions += [-1] * len(ids)
        self._turn = len(self._ids)
        self._segments.append(Segment(kind, self._text.decode(ids), len(ids)))

    def _room(self) -> int:
        return self._limits.max_tokens - len(self._ids)
