"""Samples through the engine together, searching on real retrievers."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from forage.agent.retrieval import open_retriever
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Passage, Question
from forage.rollout.collect import Collector, Work
from forage.rollout.draws import stream
from forage.rollout.sample import Limits, Sample, TokenText
from forage.rollout.torch_engine import TorchEngine

LIMITS = Limits(max_searches=3, max_turn_tokens=30, max_tokens=160)


@pytest.fixture(scope="module")
def searcher(tokenizer, model):
    """A policy that mostly writes `<search> b </search>` and answers now and then."""
    weights = model.get_output_embeddings().weight
    words = ["<search>", "</search>", "<answer>", "</answer>", "b", "c"]
    likely = tokenizer.convert_tokens_to_ids(words)
    with torch.no_grad():
        weights[likely] *= 3
    yield model
    with torch.no_grad():
        weights[likely] /= 3


def collect(model, tokenizer, retriever, count=12, max_batch=8, seed=0):
    text, ends = TokenText(tokenizer, "plain"), frozenset([tokenizer.eos_token_id])
    work = []
    for index in range(count):
        question = Question(f"q{index}", "a", ("b",))
        prompt = [4 + index % 5, 7]
        sample = Sample(question, 0, prompt, text, LIMITS, ends)
        work.append(Work(sample, prompt, stream(seed, "test", 1, question.id, 0), version=3))
    with ThreadPoolExecutor(8) as pool:
        Collector(TorchEngine(model, 1.0), retriever, pool, top_k=2, max_batch=max_batch).run(work)
    return [each.sample.trajectory(0.0, 0.0, 0.0) for each in work]


def comparable(trajectories):
    return [
        (t.token_ids.tobytes(), t.mask.tobytes(), t.logprobs.tobytes(), t.answer, t.rule)
        for t in trajectories
    ]


@pytest.fixture
def index(tmp_path):
    corpus = [Passage("a", "b c"), Passage("b", "d e"), Passage("c", "c c b")]
    return str(build_index(corpus, tmp_path))


def test_every_sample_ends_and_some_search(searcher, tokenizer, index):
    found = collect(searcher, tokenizer, open_retriever(index))
    assert all(t.rule for t in found)
    assert sum(t.searches for t in found) > 5
    for t in found:
        assert len(t.search_ms) in (t.searches, t.searches - 1)
        assert set(t.versions[t.mask == 1]) == {3}


def test_runs_are_alike_bit_for_bit(searcher, tokenizer, index):
    first, second = (collect(searcher, tokenizer, open_retriever(index), seed=7) for _ in range(2))
    assert comparable(first) == comparable(second)


def test_the_batch_size_changes_no_token(searcher, tokenizer, index):
    wide, narrow = (
        collect(searcher, tokenizer, open_retriever(index), max_batch=size) for size in (12, 3)
    )
    assert [t.token_ids.tolist() for t in wide] == [t.token_ids.tolist() for t in narrow]


class SlowServer(BaseHTTPRequestHandler):
    """Answers the first query only once all other samples have ended."""

    release = threading.Event()
    asked = 0
    lock = threading.Lock()

    def do_POST(self):
        with self.lock:
            first, type(self).asked = type(self).asked == 0, type(self).asked + 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if first:
            assert self.release.wait(60)
        body = json.dumps({"result": [[{"document": {"contents": '"a"\nb c'}, "score": 1.0}]]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


def test_a_slow_search_holds_up_nobody_else(searcher, tokenizer):
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        retriever = open_retriever(f"http://127.0.0.1:{server.server_port}/retrieve")
        text, ends = TokenText(tokenizer, "plain"), frozenset([tokenizer.eos_token_id])
        ended = []

        class Watched(Sample):
            def _end(self, rule):
                super()._end(rule)
                ended.append(self)
                if len(ended) == 11:
                    SlowServer.release.set()

        work = [
            Work(
                Watched(Question(f"q{i}", "a", ("b",)), 0, [4, 7], text, LIMITS, ends),
                [4, 7],
                stream(0, "test", 1, f"q{i}", 0),
                version=0,
            )
            for i in range(12)
        ]
        with ThreadPoolExecutor(8) as pool:
            Collector(TorchEngine(searcher, 1.0), retriever, pool, top_k=2, max_batch=12).run(work)
        assert len(ended) == 12
        assert all(each.sample.failure is None for each in work)
    finally:
        server.shutdown()
        server.server_close()


def test_a_dead_retriever_fails_samples_and_the_rest_ends(searcher, tokenizer):
    found = collect(searcher, tokenizer, open_retriever("http://127.0.0.1:9/retrieve"), count=8)
    failed = [t for t in found if t.failure is not None]
    assert failed
    assert all(t.answer is None and t.rule == "failed" for t in failed)
