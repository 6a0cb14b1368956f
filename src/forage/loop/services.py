"""The executors of a run: opened from the configuration, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from forage import app
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import DataSet
from forage.app import Session
from forage.app.services import ServiceClass
from forage.loop.config import TrainConfig
from forage.loop.executors import gpu_share, rollout_resources, trainer_resources
from forage.loop.files import absolute
from forage.loop.generating import calls_at_once, generation_share
from forage.rollout.service import Rollout
from forage.rollout.types import RolloutConfig
from forage.trainer.service import Trainer, TrainerConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The sessions of a training run."""

    rollouts: Session
    trainers: Session

    def rollout_executors(self) -> int:
        """Rollout executors alive now, at least one."""
        return max(1, len(self._standing()["executors"]))

    def calls_retried(self) -> int:
        """Rollout calls that ran again because their executor was lost, so far."""
        return int(self._standing()["retried"])

    def _standing(self) -> dict[str, Any]:
        sessions = app.status()["sessions"]
        return next(session for session in sessions if session["session"] == self.rollouts.id)


def open_rollouts(config: TrainConfig, model: str, retriever: str) -> Session:
    """An elastic session of rollout executors."""
    service = _service(Rollout).options(**rollout_options(config))
    return service.remote(rollout_config(config, model, retriever))


def rollout_options(config: TrainConfig) -> dict[str, Any]:
    """How a session of rollout executors is opened."""
    return {
        "resreq": rollout_resources(config),
        "warmup": config.rollouts,
        "max_executors": config.max_rollouts and max(config.rollouts, config.max_rollouts),
        "threads": threads_each(config.rollout_threads, config.rollouts),
        "concurrency": calls_at_once(config),
    }


def rollout_config(config: TrainConfig, model: str, retriever: str) -> RolloutConfig:
    """What a rollout executor needs to know."""
    return RolloutConfig(
        model=absolute(model),
        retriever=absolute(retriever),
        prompt=config.prompt,
        reward=config.reward,
        top_k=config.top_k,
        max_searches=config.max_searches,
        max_turn_tokens=config.max_turn_tokens,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        seed=config.seed,
        max_batch=config.max_batch,
        generation=config.generation,
        gpu_memory=generation_share(config),
    )


def open_trainers(config: TrainConfig, model: str) -> Session:
    """A gang of trainers that start from the model."""
    return (
        _service(Trainer)
        .options(
            resreq=trainer_resources(config),
            warmup=config.trainers,
            threads=threads_each(config.trainer_threads, config.trainers),
        )
        .remote(
            TrainerConfig(
                model=absolute(model),
                algorithm=config.algorithm,
                learning_rate=config.learning_rate,
                weight_decay=config.weight_decay,
                clip=config.clip,
                kl=config.kl,
                grad_clip=config.grad_clip,
                temperature=config.temperature,
                micro_batch_tokens=config.micro_batch_tokens,
                longest=config.max_tokens,
                shard=config.shard,
                gpu_share=gpu_share(trainer_resources(config)),
                minibatches=config.minibatches,
            )
        )
    )


def retriever_of(config: TrainConfig, data: DataSet, folder: Path) -> str:
    """What rollouts search with: the configured retriever, else an index built in `folder`."""
    if config.retriever is not None:
        return config.retriever
    return str(build_index(data.corpus, folder))


def threads_each(threads: int | None, executors: int) -> int | None:
    """One executor's part of the threads of all."""
    return threads and max(1, threads // executors)


def _service(declared: type[T]) -> ServiceClass[T]:
    """What `@app.service` makes of a class; type checkers don't follow class decorators."""
    return cast(ServiceClass[T], declared)
