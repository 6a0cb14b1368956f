"""An engine that follows a published policy, and one that can't take a version."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from forage import app
from forage.agent.retrieval import open_retriever
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Passage
from forage.rollout.batches import OneByOne
from forage.rollout.collect import Collector
from forage.rollout.sync import Synced, WeightSync
from forage.rollout.torch_engine import TorchEngine
from forage.weights.policy import policy_tensors
from forage.weights.publish import Publisher


class Refusing(TorchEngine):
    """Refuses once to forget what it computed with other weights."""

    refused = 0

    def weights_changed(self) -> None:
        self.refused += 1
        if self.refused == 1:
            raise RuntimeError("requests still use it")
        super().weights_changed()


def test_a_version_is_held_only_once_nothing_of_another_is_left(model, tmp_path) -> None:
    retriever = open_retriever(str(build_index([Passage("a", "b")], tmp_path)))
    engine = Refusing(model, 1.0)
    policy = {name: t.to(torch.bfloat16) + 1 for name, t in policy_tensors(model).items()}
    with app.init("sync"), ThreadPoolExecutor(1) as pool:
        publisher = Publisher("policy")
        publisher.publish(policy, 1)
        batches = OneByOne(lambda: Collector(engine, retriever, pool, top_k=1, max_batch=4))
        sync = WeightSync(batches, publisher.manifest_ref)
        with pytest.raises(RuntimeError, match="still use it"):
            sync.hold(1)
        assert sync.hold(1).nbytes > 0
        assert sync.hold(1) == Synced()
    assert engine.refused == 2
    for name, tensor in engine.tensors().items():
        assert torch.equal(tensor.to(torch.bfloat16), policy[name])
