"""Scores against those of other projects, and rewards of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import vectors

from forage.agent.rewards import exact_match, f1, normalize_answer, resolve_reward
from forage.agent.types import Question
from forage.errors import UserError

QUESTION = Question("q1", "Who?", ("The Paris", "Lyon"))


def test_normalisation_agrees_with_other_projects() -> None:
    for case in vectors("answer_metrics.json")["normalize"]:
        assert normalize_answer(case["in"]) == case["out"], case


def test_exact_match_agrees_with_other_projects() -> None:
    for case in vectors("answer_metrics.json")["em"]:
        assert exact_match(case["pred"], case["golds"]) == float(case["em"]), case


def test_f1_agrees_with_other_projects() -> None:
    cases = vectors("answer_metrics.json")
    for case in cases["f1_hotpot_prf"] + cases["f1"]:
        assert f1(case["pred"], [case["gold"]]) == pytest.approx(case["f1"], abs=1e-12), case
    for case in cases["f1_max_over_golds"]:
        assert f1(case["pred"], case["golds"]) == pytest.approx(case["f1"], abs=1e-12), case


def test_means_over_a_corpus_agree_with_t5() -> None:
    for case in vectors("answer_metrics.json")["corpus_level_squad"]:
        pairs = list(zip(case["predictions"], case["targets"], strict=True))
        em = 100 * sum(exact_match(answer, golds) for answer, golds in pairs) / len(pairs)
        assert em == pytest.approx(case["em"])
        mean_f1 = 100 * sum(f1(answer, golds) for answer, golds in pairs) / len(pairs)
        assert mean_f1 == pytest.approx(case["f1"])


@pytest.mark.parametrize("silence", [None, "", "  ", "...", "the", "!?"])
def test_silence_earns_nothing_even_where_normalisation_leaves_nothing(silence: str | None) -> None:
    assert exact_match(silence, ["A", "", "!"]) == 0.0
    assert f1(silence, ["A", "", "!"]) == 0.0


def test_an_answer_that_is_an_article_can_be_right() -> None:
    assert exact_match(" a ", ["B", "A"]) == 1.0


@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=3))
def test_scores_are_bounded_and_an_exact_match_has_full_f1(answer: str, golds: list[str]) -> None:
    assert 0.0 <= f1(answer, golds) <= 1.0
    if exact_match(answer, golds) and normalize_answer(answer):
        assert f1(answer, golds) == 1.0
    if normalize_answer(answer):
        assert exact_match(answer, [*golds, answer]) == 1.0


def test_rewards_by_name() -> None:
    assert resolve_reward("em")(QUESTION, "paris", "") == 1.0
    assert resolve_reward("f1")(QUESTION, "paris texas", "") == pytest.approx(2 / 3)
    assert resolve_reward("em")(QUESTION, None, "<think>") == 0.0


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_rewards.py").write_text(
        "import numpy\n"
        "def brief(question, answer, transcript):\n"
        "    return numpy.float32(len(transcript) < 10 and answer in question.answers)\n"
        "def nothing(question, answer, transcript): pass\n"
        "def undefined(question, answer, transcript): return float('nan')\n"
        "def broken(question, answer, transcript): return {}[answer]\n"
        "constant = 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_rewards"


def test_a_users_function_sees_question_answer_and_transcript(user_module: str) -> None:
    reward = resolve_reward(f"{user_module}:brief")
    assert reward(QUESTION, "Lyon", "short") == 1.0
    assert reward(QUESTION, "Lyon", "a long transcript") == 0.0
    assert type(reward(QUESTION, "Lyon", "short")) is float


@pytest.mark.parametrize(("function", "shown"), [("nothing", "None"), ("undefined", "nan")])
def test_a_reward_that_is_no_finite_number_is_refused(
    user_module: str, function: str, shown: str
) -> None:
    reward = resolve_reward(f"{user_module}:{function}")
    with pytest.raises(UserError, match=f"returned {shown} for question 'q1'.*finite number"):
        reward(QUESTION, "x", "")


def test_an_error_of_the_users_function_stays_what_it_is(user_module: str) -> None:
    with pytest.raises(KeyError, match="Oslo"):
        resolve_reward(f"{user_module}:broken")(QUESTION, "Oslo", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rouge", "reward 'rouge' is unknown; give em, f1 or module:function"),
        ("no_such_module:f", "can't import 'no_such_module'"),
        ("my_rewards:missing", "module 'my_rewards' has no function 'missing'"),
        ("my_rewards:constant", "module 'my_rewards' has no function 'constant'"),
        (":f", "is unknown"),
    ],
)
def test_a_reward_that_does_not_exist_is_refused(user_module: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_reward(name)
