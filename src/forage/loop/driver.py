"""The training loop: it holds no model, imports no torch and needs no GPU."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from forage.agent.types import DataSet
from forage.loop import files
from forage.loop.checkpoint import Checkpoint, Counters, save_checkpoint
from forage.loop.config import TrainConfig
from forage.loop.draws import QuestionOrder
from forage.loop.evaluate import EvalRecord, evaluate, summarize
from forage.loop.generation import Policy
from forage.loop.metrics import StepMetrics
from forage.loop.rundir import RunDir
from forage.loop.services import Services
from forage.loop.step import train_step
from forage.loop.store import read_trajectories, write_trajectories


class Observer(Protocol):
    """Whoever watches a run."""

    def phase(self, text: str) -> None:
        """Something begins that takes a while."""

    def stepped(self, metrics: StepMetrics, steps: int) -> None:
        """A step, of `steps` in all, is done."""

    def evaluated(self, record: EvalRecord) -> None:
        """An evaluation is done."""

    def saved(self, path: str) -> None:
        """A checkpoint is on disk."""


class Driver:
    """One run in progress, from its start or a checkpoint to its last step."""

    def __init__(
        self,
        config: TrainConfig,
        data: DataSet,
        run: RunDir,
        services: Services,
        observer: Observer,
    ) -> None:
        """Stand before step 1 with the model as loaded."""
        self._config = config
        self._data = data
        self._run = run
        self._services = services
        self._observer = observer
        self._order = QuestionOrder(len(data.train), config.prompts_per_step, config.seed)
        self._counters = Counters()
        self._policy = Policy()
        self._at_start: dict[str, float] | None = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where the checkpoint was saved; the trainers were started from it."""
        self._counters = dataclasses.replace(checkpoint.counters)
        if self._counters.weight_version > 0:
            self._observer.phase("publishing the restored policy")
            published, manifest = self._services.trainers.publish.broadcast().result()[0]
            assert published.version == self._counters.weight_version
            self._policy = Policy(published.version, manifest)
        self._at_start = {
            record["question_id"]: record["exact_match"]
            for record in read_trajectories(self._run.eval_trajectories(0, "greedy"))
            if record["failure"] is None
        }

    def run(self) -> None:
        """Do all steps that are left, with their evaluations and checkpoints."""
        if self._counters.step == 0:
            self._evaluate(0)
        for step in range(self._counters.step + 1, self._config.steps + 1):
            self._step(step)
            if self._due(self._config.eval_every, step):
                self._evaluate(step)
            if self._due(self._config.checkpoint_every, step):
                self._save(step)

    def _due(self, every: int, step: int) -> bool:
        return step == self._config.steps or (every > 0 and step % every == 0)

    def _step(self, step: int) -> None:
        counters = self._counters
        questions = [self._data.train[i] for i in self._order.take(counters.position)]
        metrics, self._policy = train_step(
            step, questions, self._policy, self._config, self._services, self._run
        )
        counters.step = step
        counters.position += len(questions)
        counters.weight_version = self._policy.version
        counters.samples_failed += metrics.samples_failed
        counters.calls_retried += metrics.calls_retried
        files.append_json(self._run.metrics, dataclasses.asdict(metrics))
        self._observer.stepped(metrics, self._config.steps)

    def _evaluate(self, step: int) -> None:
        questions = self._data.heldout
        self._observer.phase(f"evaluating on {len(questions)} held-out questions")
        result = evaluate(self._services.rollouts, questions, self._policy, self._config, step)
        for mode, samples in (("greedy", result.greedy), ("sampled", result.sampled)):
            if samples:
                write_trajectories(self._run.eval_trajectories(step, mode), samples, questions)
        record = summarize(result, questions, step, self._policy.version, self._at_start)
        if step == 0:
            self._at_start = result.correct()
        files.append_json(self._run.evals, dataclasses.asdict(record))
        self._observer.evaluated(record)

    def _save(self, step: int) -> None:
        self._observer.phase(f"saving a checkpoint of step {step}")
        path = save_checkpoint(
            self._run,
            self._counters,
            lambda folder: self._services.trainers.save.broadcast(folder).result(),
            self._config.keep_checkpoints,
        )
        self._observer.saved(str(path))
