"""A training run from its configuration to its last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from forage import app
from forage.loop.checkpoint import rewind
from forage.loop.config import TrainConfig
from forage.loop.driver import Driver, Observer
from forage.loop.executors import trainer_resources
from forage.loop.modelfiles import fetch_model
from forage.loop.preflight import check_training
from forage.loop.rundir import RunDir, check_out
from forage.loop.services import Services, open_rollouts, open_trainers, retriever_of
from forage.trainer.warmstart import WarmStartConfig, warm_start


def train(config: TrainConfig, observer: Observer, *, resume: bool = False) -> RunDir:
    """Train as configured, or go on with the run in `config.out` from its newest checkpoint.

    On a CPU with one trainer, a run that was interrupted and resumed leaves the same metrics
    and weights, bit for bit, as one that was not.

    Raises:
        UserError: for mistakes in the configuration or the data, before any process starts.
    """
    observer.phase("reading the data")
    data = check_training(config, resume=resume)
    run = RunDir(Path(config.out))
    with run.locked():
        check_out(config, resume)
        run.create(config)
        checkpoint = rewind(run) if resume else None
        observer.phase("indexing the passages")
        retriever = retriever_of(config, data, run.index)
        if config.model is not None:
            fetch_model(config.model)
        with app.init(
            "forage-train",
            engine=config.engine,
            address=config.address,
            resources=config.resources,
            run_dir=run.path,
        ):
            model = config.model or _warm_started(config, run, observer)
            observer.phase("starting executors")
            services = Services(
                trainers=open_trainers(config, model),
                rollouts=open_rollouts(config, model, retriever),
            )
            driver = Driver(config, data, run, services, observer)
            driver.run(checkpoint)
    return run


def _warm_started(config: TrainConfig, run: RunDir, observer: Observer) -> str:
    """The small model of this run, built unless it is there already."""
    if not run.warm_start.exists():
        observer.phase(f"building a small model, {config.warm_start_steps} steps of warm start")
        part = run.warm_start.with_name(".warmstart.part")
        shutil.rmtree(part, ignore_errors=True)
        service = warm_start.options(
            resreq=trainer_resources(config), threads=config.trainer_threads
        )
        service.remote(
            WarmStartConfig(
                out=str(part.absolute()),
                steps=config.warm_start_steps,
                seed=config.seed,
                prompt=config.prompt,
                top_k=config.top_k,
            )
        ).result()
        part.rename(run.warm_start)
    return str(run.warm_start)
