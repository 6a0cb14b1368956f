"""Rollouts as a service. Importing it is cheap: the driver does, and it imports no torch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forage import app
from forage.agent.prompts import encode_prompt
from forage.agent.retrieval import open_retriever
from forage.agent.rewards import exact_match, f1, resolve_reward
from forage.agent.types import Question
from forage.rollout.draws import stream
from forage.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    import numpy as np

    from forage.rollout.sample import Sample
    from forage.weights.subscribe import Subscriber

SEARCH_THREADS = 16
"""Searches under way at once in one executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """What a rollout executor needs to know.

    Attributes:
        model: folder in Hugging Face layout, or `.gguf` file.
        retriever: index folder, or URL of a retrieval server.
        prompt: name of a prompt template.
        reward: `em`, `f1` or `module:function`.
        top_k: passages per search.
        max_searches, max_turn_tokens, max_tokens: see `forage.rollout.sample.Limits`.
        temperature: of sampled draws.
        seed: names the draws.
        max_batch: samples generated at once.
    """

    model: str
    retriever: str
    prompt: str
    reward: str
    top_k: int
    max_searches: int
    max_turn_tokens: int
    max_tokens: int
    temperature: float
    seed: int
    max_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Questions to answer, and with which policy.

    Attributes:
        purpose: `train` or `eval`; with `step`, part of the name of every draw.
        samples: per question.
        greedy: draw the likeliest token instead of sampling.
        manifest: where the published weights' manifest lies; None for the model as loaded.
        weight_version: the version to answer with, 0 for the model as loaded.
    """

    purpose: str
    step: int
    questions: tuple[Question, ...]
    samples: int
    greedy: bool
    manifest: app.Ref | None
    weight_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult:
    """Trajectories in question order, `samples` each, and the seconds they took."""

    trajectories: tuple[Trajectory, ...]
    weight_version: int
    generate_s: float
    sync_s: float
    synced_bytes: int


@app.service(resreq="cpu=1")
class Rollout:
    """A policy with its retriever, warm between calls."""

    def __init__(self, config: RolloutConfig) -> None:
        """Load the model and open the retriever."""
        from forage.model.load import (
            compute_dtype,
            default_device,
            end_token_ids,
            load_policy,
            load_tokenizer,
        )
        from forage.rollout.sample import Limits, TokenText
        from forage.rollout.torch_engine import TorchEngine
        from forage.weights.policy import policy_tensors

        device = default_device()
        self._config = config
        self._tokenizer = load_tokenizer(config.model)
        model = load_policy(config.model, compute_dtype(device), device)
        self._engine = TorchEngine(model, config.temperature)
        self._tensors = policy_tensors(model)
        self._text = TokenText(self._tokenizer)
        self._limits = Limits(config.max_searches, config.max_turn_tokens, config.max_tokens)
        self._end_ids = end_token_ids(model, self._tokenizer)
        self._retriever = open_retriever(config.retriever)
        self._searchers = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        self._reward = resolve_reward(config.reward)
        self._subscriber: Subscriber | None = None

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answer the request's questions with the policy of its weight version."""
        from forage.rollout.collect import Collector

        started = time.perf_counter()
        synced_bytes = self._sync(request)
        synced = time.perf_counter()
        work = [
            self._sample(request, question, index)
            for question in request.questions
            for index in range(request.samples)
        ]
        Collector(
            self._engine,
            self._retriever,
            self._searchers,
            top_k=self._config.top_k,
            max_batch=self._config.max_batch,
            version=request.weight_version,
        ).run(work)
        return GenerateResult(
            trajectories=tuple(self._score(sample) for sample, _, _ in work),
            weight_version=request.weight_version,
            generate_s=time.perf_counter() - synced,
            sync_s=synced - started,
            synced_bytes=synced_bytes,
        )

    def _sync(self, request: GenerateRequest) -> int:
        """Hold exactly the version that the request asks for; returns the bytes fetched."""
        from forage.weights.subscribe import DigestMismatch, Subscriber

        if request.manifest is None:
            return 0
        if self._subscriber is None:
            self._subscriber = Subscriber(request.manifest)
        if self._subscriber.version == request.weight_version:
            return 0
        before = self._subscriber.bytes_fetched
        try:
            self._apply(self._subscriber, request.weight_version)
        except DigestMismatch:
            # It holds no version now and fetches whole tensors.
            self._apply(self._subscriber, request.weight_version)
        return self._subscriber.bytes_fetched - before

    def _apply(self, subscriber: Subscriber, version: int) -> None:
        subscriber.apply(subscriber.fetch(version), self._tensors)

    def _sample(
        self, request: GenerateRequest, question: Question, index: int
    ) -> tuple[Sample, list[int], np.uint64 | None]:
        from forage.rollout.sample import Sample

        prompt = encode_prompt(self._tokenizer, self._config.prompt, question.text)
        sample = Sample(question, index, prompt, self._text, self._limits, self._end_ids)
        if request.greedy:
            return sample, prompt, None
        draws = stream(self._config.seed, request.purpose, request.step, question.id, index)
        return sample, prompt, draws

    def _score(self, sample: Sample) -> Trajectory:
        question, answer = sample.question, sample.answer
        if sample.failure is not None:
            return sample.trajectory(reward=0.0, exact_match=0.0, f1=0.0)
        return sample.trajectory(
            reward=self._reward(question, answer, sample.transcript),
            exact_match=exact_match(answer or "", question.answers),
            f1=f1(answer or "", question.answers),
        )
