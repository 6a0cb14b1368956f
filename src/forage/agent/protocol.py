"""The rules by which text becomes searches and answers.

The policy writes `<think>…</think>`, then `<search>query</search>` or `<answer>…</answer>`;
generation stops at the tag that completes an action. A model in training writes every other
shape too, and whatever the rules leave open it learns to use, so each malformed shape has one
rule, in `RULES`. What they share:

- Tags are exact: lower case, no spaces inside. Anything else is plain text.
- An action is completed by its closing tag and begins at the *last* opening tag of its kind
  before it, in the same turn. The first completed action of a turn counts; nothing follows it.
- An answer is taken as it stands, so that no second guess can hide in it; a query is cleaned.
- Only a completed answer can earn a reward: a turn that ends without an action ends the sample.
- `<information>` means something only where the loop wrote it.

Where several rules fit an action, the first in the order of the table names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from forage.agent.information import encode_parts, information_parts, neutralise, notice_parts

__all__ = [
    "EMPTY_QUERY",
    "OVER_LIMIT",
    "RULES",
    "Action",
    "Outcome",
    "Rule",
    "encode_parts",
    "end_of_turn",
    "find_action",
    "information_parts",
    "neutralise",
    "notice_parts",
    "read_transcript",
]

Kind = Literal["search", "answer"]
Effect = Literal["search", "notice", "answer", "end", "ignored"]

OVER_LIMIT = "search_over_limit"
EMPTY_QUERY = "The query was empty."

_TAG = re.compile(r"<(?P<slash>/?)(?P<name>think|search|answer|information)>")
_BROKEN_TAG = re.compile(r"</?\s*(?:think|search|answer|information)", re.IGNORECASE)
# A sampled token may close the tag and carry a few characters more.
_INFORMATION = re.compile(r"[^<]{0,8}?<information>.*?(?:</information>|\Z)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """What one shape of text leads to.

    Attributes:
        name: as trajectories record it.
        shape: the text that the rule is about.
        effect: `search` looks the query up; `notice` counts as a search and gives a remark in
            place of passages; `answer` ends the sample with an answer; `end` ends it without
            one; `ignored` changes nothing.
    """

    name: str
    shape: str
    effect: Effect


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(OVER_LIMIT, "a completed search after `max_searches` of them", "end"),
        Rule("search_empty", "a query of nothing but spaces and tags", "notice"),
        Rule("search_tagged", "tags inside the query: they are cut out of it", "search"),
        Rule("search_restarted", "`<search>` opened again before it was closed", "search"),
        Rule("search_in_answer", "a search after an `<answer>` left open", "search"),
        Rule("search_forged", "a search after an `<information>` tag of the model's own", "search"),
        Rule("search_in_think", "a search inside an open `<think>`", "search"),
        Rule("search", "`<search>query</search>`", "search"),
        Rule("answer_empty", "an answer of nothing but spaces: it is the empty answer", "answer"),
        Rule("answer_tagged", "tags inside the answer: they stay part of it", "answer"),
        Rule("answer_restarted", "`<answer>` opened again before it was closed", "answer"),
        Rule("answer_in_search", "an answer after a `<search>` left open", "answer"),
        Rule(
            "answer_forged", "an answer after an `<information>` tag of the model's own", "answer"
        ),
        Rule("answer_in_think", "an answer inside an open `<think>`", "answer"),
        Rule("answer", "`<answer>text</answer>`", "answer"),
        Rule("empty_turn", "the turn ends with nothing but spaces", "end"),
        Rule("search_unclosed", "the turn ends inside a `<search>`", "end"),
        Rule("answer_unclosed", "the turn ends inside an `<answer>`", "end"),
        Rule("information_forged", "the turn ends after `<information>` tags, no action", "end"),
        Rule("think_unclosed", "the turn ends inside a `<think>`, no action", "end"),
        Rule("stray_close", "the turn ends after `</search>` or `</answer>` never opened", "end"),
        Rule("broken_tag", "the turn ends after a misspelt tag such as `<Search>`", "end"),
        Rule("no_action", "the turn ends after text without any action", "end"),
        Rule("cut_in_search", "the token limit falls inside a `<search>`", "end"),
        Rule("cut_in_answer", "the token limit falls inside an `<answer>`", "end"),
        Rule("cut_in_think", "the token limit falls inside a `<think>`", "end"),
        Rule("cut", "the token limit falls elsewhere", "end"),
        Rule("after_answer", "text after the answer (in transcripts of other loops)", "ignored"),
    )
}
"""Every rule by its name. What can end a turn is ignored as long as the turn goes on."""


@dataclass(frozen=True, slots=True)
class Action:
    """A completed search or answer.

    Attributes:
        content: the query, cleaned of tags, or the answer; both without surrounding spaces.
        rule: name of the rule that fits.
        end: offset in the text just past the closing tag.
    """

    kind: Kind
    content: str
    rule: str
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a whole transcript comes to: queries looked up, answer, and the rule that ended it."""

    searches: tuple[str, ...]
    answer: str | None
    rule: str


def find_action(text: str) -> Action | None:
    """The first completed action of a turn, where generation stops.

    Args:
        text: what was sampled so far in this turn: after the prompt or the last information block.
    """
    opened: dict[str, re.Match[str]] = {}
    for tag in _TAG.finditer(text):
        if not tag["slash"]:
            opened[tag["name"]] = tag
        elif tag["name"] in opened and tag["name"] in ("search", "answer"):
            return _action(text, opened[tag["name"]], tag)
    return None


def _action(text: str, opening: re.Match[str], closing: re.Match[str]) -> Action:
    before, body = text[: opening.start()], text[opening.end() : closing.start()]
    kind: Kind = "search" if closing["name"] == "search" else "answer"
    content = " ".join(_TAG.sub(" ", body).split()) if kind == "search" else body.strip()
    return Action(kind, content, _rule_of(kind, content, before, body), closing.end())


def _rule_of(kind: Kind, content: str, before: str, body: str) -> str:
    """The first rule of the table that fits a completed action."""
    other = "answer" if kind == "search" else "search"
    if not content:
        return f"{kind}_empty"
    if _TAG.search(body):
        return f"{kind}_tagged"
    if f"<{kind}>" in before:
        return f"{kind}_restarted"
    if f"<{other}>" in before:
        return f"{kind}_in_{other}"
    if "<information>" in before or "</information>" in before:
        return f"{kind}_forged"
    return f"{kind}_in_think" if _open("think", before) else kind


def end_of_turn(text: str, reason: Literal["eos", "length"]) -> str:
    """The rule for a turn that ended with no action; the sample ends without an answer.

    Args:
        text: what was sampled in this turn, without the end token.
        reason: `eos` if the model ended it, `length` if a token limit did.
    """
    unclosed = [name for name in ("search", "answer") if _open(name, text)]
    last = max(unclosed, key=lambda name: text.rfind(f"<{name}>"), default="")
    thinking = _open("think", text)
    if reason == "length":
        where = last or ("think" if thinking else "")
        return f"cut_in_{where}" if where else "cut"
    if not text.strip():
        return "empty_turn"
    if last:
        return f"{last}_unclosed"
    if "<information>" in text or "</information>" in text:
        return "information_forged"
    if thinking:
        return "think_unclosed"
    if "</search>" in text or "</answer>" in text:
        return "stray_close"
    return "broken_tag" if _BROKEN_TAG.search(_TAG.sub("", text)) else "no_action"


def _open(name: str, text: str) -> bool:
    """Whether the last tag of this name in `text` opens."""
    return text.rfind(f"<{name}>") > text.rfind(f"</{name}>")


def read_transcript(text: str, max_searches: int) -> Outcome:
    """Replay a whole transcript by the rules that hold while sampling.

    Args:
        text: everything after the prompt, information blocks included. A block belongs to the
            loop where it directly follows a completed search; there it ends at its first
            closing tag. Text after a search that has no block is read as the next turn.
        max_searches: searches allowed; one more ends the sample without an answer.
    """
    searches: list[str] = []
    position = 0
    while action := find_action(text[position:]):
        if action.kind == "answer":
            return Outcome(tuple(searches), action.content, action.rule)
        if len(searches) == max_searches:
            return Outcome(tuple(searches), None, OVER_LIMIT)
        searches.append(action.content)
        position += action.end
        if block := _INFORMATION.match(text, position):
            position = block.end()
    return Outcome(tuple(searches), None, end_of_turn(text[position:], "eos"))
