"""An engine that follows a published policy, and one that can't take a version."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from forage import app
from forage.agent.retrieval import open_retriever
from forage.agent.retrieval.bm25 import build_index
from forage.agent.types import Passage
from forage.errors import UserError
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_running_out_of_memory_is_one_line_and_the_version_can_be_taken_in_later(
    tmp_path: Path,
) -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = LlamaConfig(vocab_size=200_000, hidden_size=128, tie_word_embeddings=True, **small)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    policy = {name: tensor.cpu() for name, tensor in policy_tensors(model).items()}
    moved = {name: a_third_moved(tensor) for name, tensor in policy.items()}
    retriever = open_retriever(str(build_index([Passage("a", "b")], tmp_path)))
    with app.init("sync-full", resources="cpu=1"), ThreadPoolExecutor(1) as pool:
        publisher = Publisher("policy")
        publisher.publish(policy, 1)
        engine = TorchEngine(model, 1.0)
        batches = OneByOne(lambda: Collector(engine, retriever, pool, top_k=1, max_batch=4))
        sync = WeightSync(batches, publisher.manifest_ref)
        sync.hold(1)
        publisher.publish(moved, 2)
        torch.cuda.empty_cache()
        held, (_, total) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(held / total)
        try:
            with pytest.raises(UserError, match="weight version 2 ran out of GPU memory") as told:
                sync.hold(2)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert "\n" not in str(told.value)
        sync.hold(2)
    for name, tensor in engine.tensors().items():
        assert torch.equal(tensor.cpu(), moved[name])


def a_third_moved(tensor: Tensor) -> Tensor:
    chosen = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    return torch.where(chosen, tensor + 1, tensor)
