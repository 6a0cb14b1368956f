"""What an answer earns: exact match and F1 by the official rules, or the user's own function.

Normalisation and scores are those of the SQuAD 1.1 evaluation script (Rajpurkar et al. 2016), the
rule on yes and no that of HotpotQA's (Yang et al. 2018).
"""

from __future__ import annotations

import importlib
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from numbers import Real

from forage.agent.types import Question
from forage.errors import UserError

Reward = Callable[[Question, str | None, str], float]
"""Called with the question, the answer (None: there is none) and the text after the prompt."""

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = ("yes", "no", "noanswer")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str | None, golds: Iterable[str]) -> float:
    """1.0 if the answer equals one of `golds` after normalisation, else 0.0.

    An answer of which normalisation leaves nothing (`A`, `The`) is compared in lower case as it
    stands, so that an empty answer never earns anything.
    """
    return float(any(_same(answer, gold) for gold in golds)) if answer is not None else 0.0


def _same(answer: str, gold: str) -> bool:
    normalized = normalize_answer(answer)
    if not normalized:
        bare = answer.strip().lower()
        return bool(bare) and bare == gold.strip().lower()
    return normalized == normalize_answer(gold)


def f1(answer: str | None, golds: Iterable[str]) -> float:
    """The best F1 of the answer's words over `golds`, in [0, 1].

    `yes`, `no` and `noanswer`, on either side, match only themselves.
    """
    return max((_f1(answer, gold) for gold in golds), default=0.0) if answer is not None else 0.0


def _f1(answer: str, gold: str) -> float:
    answer, gold = normalize_answer(answer), normalize_answer(gold)
    if answer != gold and (answer in _VERDICTS or gold in _VERDICTS):
        return 0.0
    words, gold_words = answer.split(), gold.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * common / (len(words) + len(gold_words)) if common else 0.0


def resolve_reward(name: str) -> Reward:
    """The reward function of that name: `em`, `f1`, or `module:function`.

    A function of the user's is called as `function(question, answer, transcript)` and returns a
    finite number.

    Raises:
        UserError: if there is no such function; from the returned function, if the user's
            returns anything but a finite number.
    """
    if name == "em":
        return lambda question, answer, _: exact_match(answer, question.answers)
    if name == "f1":
        return lambda question, answer, _: f1(answer, question.answers)
    return _checked(name, _import(name))


def _import(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UserError(f"reward {name!r} is unknown; give em, f1 or module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"reward {name!r}: can't import {module_name!r} ({error}); "
            "give a module that is installed or on PYTHONPATH"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"reward {name!r}: module {module_name!r} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


def _checked(name: str, function: Callable[..., object]) -> Reward:
    def reward(question: Question, answer: str | None, transcript: str) -> float:
        value = function(question, answer, transcript)
        if not isinstance(value, Real) or not math.isfinite(value):
            raise UserError(
                f"reward {name!r} returned {value!r} for question {question.id!r}; "
                "it must return a finite number"
            )
        return float(value)

    return reward
