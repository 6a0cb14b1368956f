"""The training loop: it holds no model, imports no torch and needs no GPU."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from forage import app
from forage.agent.types import DataSet
from forage.errors import UserError
from forage.loop import files
from forage.loop.checkpoint import Checkpoint, Counters, rewind, save_checkpoint
from forage.loop.config import TrainConfig
from forage.loop.draws import QuestionOrder
from forage.loop.evaluate import EvalRecord, evaluate, summarize
from forage.loop.files import absolute
from forage.loop.generation import Policy
from forage.loop.metrics import StepMetrics
from forage.loop.rundir import RunDir
from forage.loop.services import Services
from forage.loop.step import train_step
from forage.loop.store import read_trajectories, write_trajectories

LOSSES = 3
"""Times that trainers may be lost before a further step is done."""


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

    def trouble(self, text: str) -> None:
        """Something went wrong that the run makes good."""


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

    def run(self, checkpoint: Checkpoint | None) -> None:
        """Do all steps that are left since `checkpoint`, with their evaluations and checkpoints.

        Trainers that are lost are replaced, and the run goes on from its newest checkpoint.

        Raises:
            UserError: if they are lost again and again before a further step is done.
        """
        furthest, losses = checkpoint.counters.step if checkpoint else 0, 0
        while True:
            try:
                if losses:
                    self._replace_trainers()
                elif checkpoint:
                    self._restore(checkpoint)
                return self._do_steps()
            except app.GangBroken as error:
                losses = 1 if self._counters.step > furthest else losses + 1
                furthest = max(furthest, self._counters.step)
                self._observer.trouble(
                    f"trainers were lost: {_end_of(error)}\n{error.log}".rstrip()
                )
                if losses > LOSSES:
                    raise UserError(
                        f"trainers were lost {losses} times before step {furthest + 1} was done, "
                        f"last {_end_of(error)}; mend the cause and go on with --resume"
                    ) from error

    def _replace_trainers(self) -> None:
        self._services.trainers.reform()
        checkpoint = rewind(self._run)
        if checkpoint:
            self._restore(checkpoint)
        else:
            self._observer.phase("starting again from the model")
            self._stand_at(Counters())
            self._at_start = None

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Stand where the checkpoint was saved, with trainers that have done nothing yet."""
        self._observer.phase(f"restoring the checkpoint of step {checkpoint.counters.step}")
        folder = absolute(str(checkpoint.path))
        self._services.trainers.restore.broadcast(folder).result()
        self._stand_at(checkpoint.counters)
        self._at_start = {
            record["question_id"]: record["exact_match"]
            for record in read_trajectories(self._run.eval_trajectories(0, "greedy"))
            if record["failure"] is None
        }

    def _stand_at(self, counters: Counters) -> None:
        """Take the place that `counters` name, and have rollouts hold the trainers' policy."""
        self._counters = dataclasses.replace(counters)
        if counters.weight_version or self._policy.version:
            self._policy = self._publish(counters.weight_version)
            self._counters.weight_version = self._policy.version

    def _publish(self, version: int) -> Policy:
        published, manifest = self._services.trainers.publish.broadcast(version).result()[0]
        return Policy(published.version, manifest)

    def _do_steps(self) -> None:
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


def _end_of(error: app.GangBroken) -> str:
    """Which trainer ended, and how, where that is known."""
    return str(error).splitlines()[0] if error.rank is None else f"rank {error.rank}, {error.exit}"
