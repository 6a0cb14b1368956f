"""Written examples of searching: what a policy is shown before reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forage.agent.information import information_parts, neutralise
from forage.agent.types import Passage

Search = Callable[[str], Sequence[Passage]]


@dataclass(frozen=True, slots=True)
class Trace:
    """A question and pieces of text: (text, trusted, written by the policy)."""

    question: str
    parts: tuple[tuple[str, bool, bool], ...]


@dataclass(slots=True)
class Draft:
    """A trace in the making. Thoughts, queries and answers may hold text from outside."""

    question: str
    parts: list[tuple[str, bool, bool]] = field(default_factory=list)

    def ask(self, thought: str, query: str, found: Sequence[Passage]) -> None:
        """Think, search, and read what was found."""
        self._write(thought, "search", query)
        self.parts += [(text, trusted, False) for text, trusted in information_parts(found)]

    def answer(self, thought: str, answer: str) -> Trace:
        """Think and answer, which ends the trace."""
        self._write(thought, "answer", answer)
        return Trace(self.question, tuple(self.parts))

    def _write(self, thought: str, tag: str, content: str) -> None:
        thought, content = neutralise(thought), neutralise(content)
        self.parts.append((f"<think>{thought}</think> <{tag}>{content}</{tag}>", True, True))
