"""Traces written from supporting facts: which paragraphs hold the evidence for an answer.

Every search of a trace really finds a paragraph that was still missing, with words that the
question or the evidence read before offers. The traces differ in the style of their queries, in
whether they write down the evidence, and in how much of it they look for where less suffices, so
that reinforcement learning has something to choose from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from forage.agent.data.queries import STYLES, Query, plain_name, queries
from forage.agent.retrieval.words import words_of
from forage.agent.rewards import normalize_answer
from forage.agent.traces import Draft, Search, Trace
from forage.agent.types import Passage, Question

QUOTE_SHARE = 0.75
"""Of the traces: write the evidence down before going on."""

CONTENT_SHARE = 0.3
"""Of the traces that have read the answer but not yet all evidence: answer at once."""

VERDICTS = ("yes", "no")
"""Answers that evidence leads to without holding them."""

LONGEST_QUOTE = 400
"""Characters of a sentence that are written down, at most."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"“'(])")


class EvidenceWriter:
    """Writes traces about questions whose evidence is known, over what `search` finds."""

    def __init__(self, search: Search, max_searches: int, rng: random.Random) -> None:
        """`rng` draws whatever is random about the traces."""
        self._search = search
        self._max_searches = max_searches
        self._rng = rng

    def write(self, question: Question) -> Trace | None:
        """A trace that ends in the first gold answer.

        None if the question names no evidence, if no query at hand finds it, or if the answer
        stands neither in what was found nor in the question, and is no verdict.
        """
        draft, reading = Draft(question.text), _Reading(question)
        quoting = self._rng.random() < QUOTE_SHARE
        for _ in range(self._max_searches):
            if not reading.missing() or (reading.suffices() and self._rng.random() < CONTENT_SHARE):
                break
            step = self._next(question, reading)
            if step is None:
                break
            query, found = step
            draft.ask(self._plan(reading.news() if quoting else "", query), query.text, found)
            reading.read(found)
        if not reading.suffices():
            return None
        return draft.answer(
            self._conclusion(reading.news() if quoting else ""), question.answers[0]
        )

    def _next(
        self, question: Question, reading: _Reading
    ) -> tuple[Query, Sequence[Passage]] | None:
        """A query that finds a missing paragraph, and all that it finds; None if there is none."""
        best: dict[str, tuple[Query, Sequence[Passage]]] = {}
        for query in queries(question.text, reading.missing(), reading.sentences()):
            if query.style in best:
                continue
            found = self._search(query.text)
            if any(map(reading.lacks, found)):
                best[query.style] = (query, found)
        if not best:
            return None
        (style,) = self._rng.choices(list(best), [STYLES[pair[0].style] for pair in best.values()])
        return best[style]

    def _plan(self, news: str, query: Query) -> str:
        if query.style == "words":
            plans = (
                "I search for what the question asks.",
                "Let me look for the question's words.",
            )
        else:
            plans = (f"I need to know about {query.about}.", f"Let me look up {query.about}.")
        return f"{news} {self._rng.choice(plans)}".strip()

    def _conclusion(self, news: str) -> str:
        return news or self._rng.choice(("Now I know the answer.", "The passages tell it."))


class _Reading:
    """Which evidence for a question was found, and what of it was not yet written down."""

    def __init__(self, question: Question) -> None:
        self._question = question
        known = {passage.title for passage in question.supporting}
        # Of these there is no text to tell their paragraphs from others of the same title.
        self._bare = [title for title in question.supporting_titles if title not in known]
        self._found: list[Passage] = []
        self._told = 0

    def lacks(self, passage: Passage) -> bool:
        """Whether a passage is evidence that was not read yet."""
        if passage in self._question.supporting:
            return passage not in self._found
        return passage.title in self._bare and passage.title in self.missing()

    def read(self, found: Sequence[Passage]) -> None:
        for passage in found:
            if self.lacks(passage):
                self._found.append(passage)

    def missing(self) -> list[str]:
        """The titles of the evidence that was not read yet, in the data set's order."""
        read = {passage.title for passage in self._found}
        missing = {title for title in self._bare if title not in read}
        missing |= {p.title for p in self._question.supporting if p not in self._found}
        return [title for title in self._question.supporting_titles if title in missing]

    def sentences(self) -> list[str]:
        """The evidence read so far, oldest first."""
        return [self._sentence(passage) for passage in self._found]

    def news(self) -> str:
        """The evidence read since the last call, as it is written down."""
        new = self._found[self._told :]
        self._told = len(self._found)
        return " ".join(f"{plain_name(p.title)}: {self._sentence(p)}" for p in new)

    def suffices(self) -> bool:
        """Whether the answer can be told: it was read, or takes all evidence and that was read."""
        answer = self._question.answers[0]
        if normalize_answer(answer) in VERDICTS or _holds(self._question.text, answer):
            return bool(self._found) and not self.missing()
        return any(_holds(f"{p.title} {p.text}", answer) for p in self._found)

    def _sentence(self, passage: Passage) -> str:
        """What a paragraph has to say: its evidence, else the likeliest of its sentences."""
        title, text = passage.title, passage.text
        facts = (fact.text for fact in self._question.evidence if fact.title == title)
        # Another paragraph of the same title may hold the fact.
        told = [fact for fact in facts if fact in text]
        if not told:
            told = [self._likeliest(title, _SENTENCE_END.split(text))]
        return " ".join(told)[:LONGEST_QUOTE]

    def _likeliest(self, title: str, sentences: Sequence[str]) -> str:
        """The sentence that names the answer, else another paragraph's subject, else the first."""
        others = [plain_name(t) for t in self._question.supporting_titles if t != title]
        for wanted in (self._question.answers[0], *others):
            for sentence in sentences:
                if _holds(sentence, wanted):
                    return sentence
        return sentences[0]


def _holds(text: str, wanted: str) -> bool:
    """Whether `wanted` stands in `text`, as answers are compared or word by word."""
    # Comparing answers drops punctuation: `action-adventure` would not hold `action`.
    return any(
        form(wanted) and f" {form(wanted)} " in f" {form(text)} "
        for form in (normalize_answer, _spaced)
    )


def _spaced(text: str) -> str:
    return normalize_answer(" ".join(words_of(text)))
