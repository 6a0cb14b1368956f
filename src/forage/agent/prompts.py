"""What the policy is told: a small registry of prompts, and their token ids."""

from __future__ import annotations

from typing import Any, Protocol

from forage.agent.information import Part, PartEncoder, Tokenizer, neutralise
from forage.errors import UserError

QUESTION = "{question}"

PROMPTS: dict[str, str] = {
    "search-r1": (
        "Answer the given question. You must conduct reasoning inside <think> and </think> first "
        "every time you get new information. After reasoning, if you find you lack some "
        "knowledge, you can call a search engine by <search> query </search> and it will return "
        "the top searched results between <information> and </information>. You can search as "
        "many times as your want. If you find no further external knowledge needed, you can "
        "directly provide the answer inside <answer> and </answer>, without detailed "
        "illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
    ),
    "plain": "Question: {question}\n",
}
"""Prompts by name. `search-r1` is word for word that of Search-R1 (arXiv 2503.09516), so that
policies trained with either can be compared; `plain` suits a policy that knows the protocol."""

_PLACE = "forageplaceofquestion"


class ChatTokenizer(Tokenizer, Protocol):
    """A Hugging Face tokenizer that may have a chat template."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """The text, or ids, of a conversation."""
        ...


def prompt_parts(name: str, question_text: str) -> tuple[str, str, str]:
    """The prompt as (our words before, the question made harmless, our words after).

    Raises:
        UserError: if there is no prompt of that name.
    """
    if name not in PROMPTS:
        known = ", ".join(sorted(PROMPTS))
        raise UserError(f"prompt {name!r} is unknown; choose one of: {known}")
    before, after = PROMPTS[name].split(QUESTION)
    return before, neutralise(question_text.strip()), after


class PromptEncoder:
    """Token ids of whole prompts of one name, up to where the policy begins to write.

    A tokenizer with a chat template gets one user turn and the generation prompt; one without
    gets the plain text, after its beginning token if it uses one. The question is text from
    outside: it can't produce a special token, nor close the user turn.
    """

    def __init__(self, tokenizer: ChatTokenizer, name: str) -> None:
        """Frame a question as the prompt and the tokenizer have it.

        Raises:
            UserError: if the prompt is unknown, or the chat template drops or changes its content.
        """
        self._name = name
        self._encode = PartEncoder(tokenizer)
        self._start: list[int] = []
        self._before, _, self._after = prompt_parts(name, "")
        if tokenizer.chat_template:
            self._before, self._after = _in_chat(tokenizer, self._before, self._after)
        else:
            self._start = _beginning(tokenizer)

    def __call__(self, question_text: str) -> list[int]:
        """Token ids of the prompt around a question."""
        before, (_, question, _) = self._before, prompt_parts(self._name, question_text)
        if before.endswith(" "):
            # Most vocabularies hold a word together with the space before it.
            before, question = before[:-1], " " + question
        parts: list[Part] = [(before, True), (question, False), (self._after, True)]
        return self._start + self._encode([part for part in parts if part[0]])


def _in_chat(tokenizer: ChatTokenizer, before: str, after: str) -> tuple[str, str]:
    """Our words around the question, as the chat template sets them."""
    message = {"role": "user", "content": before + _PLACE + after}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    pieces = str(text).split(_PLACE)
    if len(pieces) != 2:
        raise UserError(
            f"the tokenizer's chat template shows the user's text {len(pieces) - 1} times instead "
            "of once; give the model a chat template that keeps it, or none"
        )
    return pieces[0], pieces[1]


def _beginning(tokenizer: ChatTokenizer) -> list[int]:
    """The beginning token, where the tokenizer puts one before a text."""
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer.encode("", add_special_tokens=True)[:1] != [bos]:
        return []
    return [int(bos)]
