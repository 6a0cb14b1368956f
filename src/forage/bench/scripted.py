"""Rollouts whose turns end by count: a policy with random weights never writes a tag.

Everything else is real: the engine, the batch, the searches and what is read of them. Prompts and
what a search brings are cut, or repeated, to the length asked for, so that the work is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from transformers import PreTrainedTokenizerBase

from forage.agent.information import Part
from forage.agent.types import Question
from forage.model.load import load_tokenizer
from forage.rollout.sample import Limits, Sample, State, TokenText
from forage.rollout.service import Rollout
from forage.rollout.types import RolloutConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What every sample does.

    Attributes:
        prompt_tokens: of its prompt.
        searches: turns that end in a search, each of its own part of the question's words; one
            more turn follows.
        turn_tokens: sampled in each turn.
        information_tokens: read after each search.
    """

    prompt_tokens: int
    searches: int
    turn_tokens: int
    information_tokens: int

    @property
    def read(self) -> int:
        """Tokens that a sample reads."""
        return self.prompt_tokens + self.searches * self.information_tokens

    @property
    def sampled(self) -> int:
        """Tokens that a sample draws."""
        return (self.searches + 1) * self.turn_tokens

    @property
    def limits(self) -> Limits:
        """Limits that no sample meets."""
        return Limits(self.searches, self.turn_tokens + 1, self.read + self.sampled + 1)


class ScriptedText(TokenText):
    """Encodes to the lengths of a script."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str, script: Script) -> None:
        """`prompt` is the name of a prompt template."""
        super().__init__(tokenizer, prompt)
        self._script = script

    def encode(self, parts: Sequence[Part]) -> list[int]:
        """What a search brought, `information_tokens` of it."""
        return _sized(super().encode(parts), self._script.information_tokens)

    def prompt(self, question: str) -> list[int]:
        """The prompt, `prompt_tokens` of it."""
        return _sized(super().prompt(question), self._script.prompt_tokens)


class ScriptedSample(Sample):
    """A sample whose turns end after so many tokens."""

    def __init__(
        self, question: Question, index: int, prompt: Sequence[int], text: TokenText, script: Script
    ) -> None:
        """See `Sample`."""
        super().__init__(question, index, prompt, text, script.limits, frozenset())
        self._script = script

    def take(self, token: int, logprob: float, version: int) -> State:
        """See `Sample.take`."""
        self._ids.append(token)
        self._mask.append(1)
        self._logprobs.append(logprob)
        self._versions.append(version)
        if len(self._ids) - self._turn < self._script.turn_tokens:
            return self.state
        if self.searches < self._script.searches:
            self.query = self._part(self.searches)
            self.searches += 1
            self._close_turn()
            self.state = State.SEARCHING
        else:
            self._end("answer")
        return self.state

    def _part(self, number: int) -> str:
        """The words of the question that a search asks for."""
        return " ".join(self.question.text.split()[number :: self._script.searches])


class ScriptedRollout(Rollout):
    """The rollout service with scripted samples."""

    def __init__(self, config: RolloutConfig, script: Script) -> None:
        """See `Rollout`."""
        super().__init__(config)
        self._script = script
        self._text = ScriptedText(load_tokenizer(config.model), config.prompt, script)

    def _sample(self, question: Question, index: int, prompt: list[int]) -> Sample:
        return ScriptedSample(question, index, prompt, self._text, self._script)


def _sized(ids: list[int], size: int) -> list[int]:
    return list(islice(cycle(ids), size))
