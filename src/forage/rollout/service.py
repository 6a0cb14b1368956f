"""Rollouts as a service. Importing it is cheap: the driver does, and it imports no torch."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from forage import app
from forage.agent.retrieval import open_retriever
from forage.agent.rewards import exact_match, f1, resolve_reward
from forage.rollout.draws import stream
from forage.rollout.meter import BusyMeter
from forage.rollout.types import GenerateRequest, GenerateResult, RolloutConfig

if TYPE_CHECKING:
    from forage.agent.types import Question
    from forage.rollout.collect import Work
    from forage.rollout.sample import Sample
    from forage.rollout.sync import Synced, WeightSync
    from forage.rollout.trajectory import Trajectory


@app.service(resreq="cpu=1")
class Rollout:
    """A policy with its retriever, warm between calls.

    It takes calls from several threads. Where the engine shares its batch they run together,
    otherwise one after the other.

    Attributes:
        batches: where its samples run.
    """

    def __init__(self, config: RolloutConfig) -> None:
        """Load the model and open the retriever."""
        from forage.model.load import load_tokenizer
        from forage.rollout.opening import open_batches
        from forage.rollout.sample import Limits, TokenText

        self._config = config
        tokenizer = load_tokenizer(config.model)
        self._text = TokenText(tokenizer, config.prompt)
        self._limits = Limits(config.max_searches, config.max_turn_tokens, config.max_tokens)
        self._reward = resolve_reward(config.reward)
        self.batches, self._end_ids = open_batches(
            config, tokenizer, open_retriever(config.retriever)
        )
        self._sync: WeightSync | None = None
        self._order = Lock()
        self._meter = BusyMeter(time.perf_counter)

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answer the request's questions with the policy of its weight version."""
        self._meter.enter()
        try:
            work = [
                each for question in request.questions for each in self._work(request, question)
            ]
            # Weights change between two calls, never between a call's sync and its samples.
            with self._order:
                synced = self._hold(request)
                ended = self.batches.submit(work)
            ended.result()
            trajectories = tuple(self._score(each.sample) for each in work)
        finally:
            busy_s = self._meter.leave()
        return GenerateResult(
            trajectories=trajectories,
            weight_version=request.weight_version,
            sync_s=synced.seconds,
            pause_s=synced.pause_s,
            synced_bytes=synced.nbytes,
            busy_s=busy_s,
        )

    def _hold(self, request: GenerateRequest) -> Synced:
        """Hold exactly the version that the request asks for."""
        from forage.rollout.sync import Synced, WeightSync
        from forage.weights.subscribe import VersionUnavailable

        if request.manifest is None:
            if self._sync is not None:
                raise VersionUnavailable("the model as loaded is asked for, and is held no more")
            return Synced()
        if self._sync is None:
            self._sync = WeightSync(self.batches, request.manifest)
        return self._sync.hold(request.weight_version)

    def _work(self, request: GenerateRequest, question: Question) -> list[Work]:
        """A question's samples."""
        from forage.rollout.collect import Work

        prompt = self._text.prompt(question.text)
        work = []
        for index in range(request.samples):
            draws = stream(self._config.seed, request.purpose, request.step, question.id, index)
            sample = self._sample(question, index, prompt)
            named = None if request.greedy else draws
            work.append(Work(sample, prompt, named, request.weight_version))
        return work

    def _sample(self, question: Question, index: int, prompt: list[int]) -> Sample:
        from forage.rollout.sample import Sample

        return Sample(question, index, prompt, self._text, self._limits, self._end_ids)

    def _score(self, sample: Sample) -> Trajectory:
        question, answer = sample.question, sample.answer
        if sample.failure is not None:
            return sample.trajectory(reward=0.0, exact_match=0.0, f1=0.0)
        return sample.trajectory(
            reward=self._reward(question, answer, sample.transcript),
            exact_match=exact_match(answer or "", question.answers),
            f1=f1(answer or "", question.answers),
        )
