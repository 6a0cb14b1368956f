"""Calls from several threads: one after the other, or together in one batch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forage.agent.retrieval import open_retriever
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Passage, Question
from forage.rollout.batches import OneByOne, Shared
from forage.rollout.collect import Collector, Work
from forage.rollout.draws import stream
from forage.rollout.meter import BusyMeter
from forage.rollout.sample import Limits, Sample, TokenText
from forage.rollout.torch_engine import TorchEngine

LIMITS = Limits(max_searches=3, max_turn_tokens=12, max_tokens=90)


class FreeEngine(TorchEngine):
    """Joins as they come, as on a GPU; counts, and can fail or be held up."""

    reproducible = False

    def __init__(self, model, temperature):
        super().__init__(model, temperature)
        self.most = 0
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def step(self):
        assert self.open.wait(60)
        if self.broken:
            raise MemoryError("no room")
        draws = super().step()
        self.most = max(self.most, len(draws))
        return draws


@pytest.fixture
def text(tokenizer):
    return TokenText(tokenizer, "plain")


@pytest.fixture
def make(model, tmp_path):
    corpus = [Passage("a", "b c"), Passage("b", "d e"), Passage("c", "c c b")]
    retriever = open_retriever(str(build_index(corpus, tmp_path)))
    engine = FreeEngine(model, 1.0)
    with ThreadPoolExecutor(4) as pool:
        yield lambda: Collector(engine, retriever, pool, top_k=2, max_batch=16)


def work(text, call, samples=4, version=1):
    made = []
    for index in range(samples):
        question = Question(f"{call}-{index}", "a", ("b",))
        prompt = [4 + index, 7]
        sample = Sample(question, index, prompt, text, LIMITS, frozenset([1]))
        made.append(Work(sample, prompt, stream(0, "test", 0, question.id, index), version))
    return made


def tokens(each: Work):
    return each.sample.trajectory(0.0, 0.0, 0.0).token_ids.tolist()


def test_calls_that_share_a_batch_draw_together_what_they_draw_alone(text, make):
    alone = OneByOne(make)
    expected = []
    for call in range(3):
        samples = work(text, call)
        alone.submit(samples).result()
        expected.append([tokens(each) for each in samples])
    shared = Shared(make)
    shared.engine.most = 0
    shared.engine.open.clear()
    calls = [work(text, call) for call in range(3)]
    futures = [shared.submit(samples) for samples in calls]
    shared.engine.open.set()
    for future in futures:
        future.result(60)
    assert [[tokens(each) for each in samples] for samples in calls] == expected
    assert shared.engine.most > 4


def test_a_call_ends_with_its_own_samples(text, make):
    shared = Shared(make)
    long = [
        Work(
            Sample(Question("l", "a", ("b",)), 0, [5], text, Limits(0, 900, 900), frozenset()),
            [5],
            stream(0, "test", 0, "l", 0),
            1,
        )
    ]
    slow, quick = shared.submit(long), shared.submit(work(text, 0))
    quick.result(60)
    assert not slow.done()
    slow.result(120)


def test_a_change_waits_for_those_before_and_holds_up_those_after(text, make):
    shared = Shared(make)
    shared.engine.open.clear()
    before = work(text, 0)
    first = shared.submit(before)
    seen = []
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(shared.change, lambda: seen.append(first.done()))
        while len(shared._inbox) < 1:
            pass
        after = work(text, 1)
        second = shared.submit(after)
        shared.engine.open.set()
        assert change.result(60) >= 0
    assert seen == [True]
    second.result(60)


def test_a_failed_change_is_the_callers_and_the_batch_goes_on(text, make):
    shared = Shared(make)
    with pytest.raises(ValueError, match="no such version"):
        shared.change(lambda: (_ for _ in ()).throw(ValueError("no such version")))
    shared.submit(work(text, 0)).result(60)


def test_an_engine_that_fails_fails_every_call(text, make):
    shared = Shared(make)
    shared.engine.broken = True
    with pytest.raises(MemoryError):
        shared.submit(work(text, 0)).result(60)
    with pytest.raises(MemoryError):
        shared.submit(work(text, 1))


def test_an_engine_that_cannot_be_made_raises_where_it_was_asked_for():
    def make():
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        Shared(make)


def test_a_call_without_samples_ends_at_once(make):
    assert Shared(make).submit([]).result(10) is None


def test_overlapping_calls_are_counted_once():
    now = iter([0.0, 4.0, 5.0, 9.0, 9.0])
    meter = BusyMeter(lambda: next(now))
    meter.enter()  # 0
    meter.enter()
    assert meter.leave() == 4.0
    assert meter.leave() == 1.0  # 5
    meter.enter()  # 9
    assert meter.leave() == 0.0
