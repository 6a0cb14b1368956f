"""What executors ask for where nothing is said: everything fits, and no GPU lies idle."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from forage.app.resources import parse_resreq
from forage.loop.config import TrainConfig
from forage.loop.executors import rollout_resources, trainer_resources
from forage.loop.preflight import check_fit


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 16))
def test_a_fair_part_of_the_gpus_always_fits(rollouts: int, trainers: int, gpus: int) -> None:
    assume(trainers <= gpus)  # each member of a gang has a GPU of its own
    config = TrainConfig(
        rollouts=rollouts, trainers=trainers, resources=f"cpu={rollouts + trainers},gpu={gpus}"
    )
    check_fit(config)
    part = parse_resreq(trainer_resources(config)).milligpu
    assert parse_resreq(rollout_resources(config)).milligpu == part
    assert (part == 1000) == (rollouts + trainers <= gpus)


def test_without_a_gpu_a_cpu_is_asked_for() -> None:
    config = TrainConfig(resources="cpu=2,gpu=0")
    assert trainer_resources(config) == rollout_resources(config) == "cpu=1"


def test_what_is_said_is_taken() -> None:
    config = TrainConfig(resources="cpu=2,gpu=1", rollout_resources="cpu=0.5,gpu=0.25")
    assert rollout_resources(config) == "cpu=0.5,gpu=0.25"


def test_who_is_not_there_shares_no_gpu_and_needs_no_resources() -> None:
    evaluation = TrainConfig(rollouts=1, trainers=0, resources="cpu=2,gpu=1")
    assert rollout_resources(evaluation) == "cpu=1,gpu=1.0"
    start = TrainConfig(rollouts=0, trainers=1, resources="cpu=2,gpu=1")
    assert trainer_resources(start) == "cpu=1,gpu=1.0"
    far = TrainConfig(engine="ray", address="head:6379")
    check_fit(replace(far, trainers=0, rollout_resources="cpu=8,gpu=1"))
    check_fit(replace(far, rollouts=0, trainer_resources="cpu=8,gpu=1"))
