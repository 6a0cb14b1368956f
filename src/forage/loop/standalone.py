"""An evaluation without a training run around it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from forage import app
from forage.loop.config import TrainConfig
from forage.loop.evaluate import EvalRecord, evaluate, summarize
from forage.loop.generation import Policy
from forage.loop.modelfiles import check_model, fetch_model
from forage.loop.preflight import check_agent, check_fit, check_memory, load_data
from forage.loop.services import open_rollouts, retriever_of
from forage.loop.targets import Target


def evaluate_target(target: Target, config: TrainConfig) -> EvalRecord:
    """Answer the held-out questions of `config` with the policy of `target`.

    The draws are those of the run's own evaluation at the target's step, so that the same
    configuration gives the same record.

    Raises:
        UserError: for mistakes in the configuration, before any process starts.
    """
    # There are no trainers to share a GPU with.
    config = replace(config, model=target.model, trainers=0)
    check_model(target.model)
    check_agent(config)
    check_fit(config)
    check_memory(config)
    data = load_data(config)
    fetch_model(target.model)
    with (
        tempfile.TemporaryDirectory(prefix="forage-") as folder,
        app.init(
            "forage-eval",
            engine=config.engine,
            address=config.address,
            resources=config.resources,
        ),
    ):
        retriever = retriever_of(config, data, Path(folder))
        rollouts = open_rollouts(config, target.model, retriever)
        result = evaluate(rollouts, data.heldout, Policy(), config, target.step)
    return summarize(result, data.heldout, target.step, target.weight_version, None)
