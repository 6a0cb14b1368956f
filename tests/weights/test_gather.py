"""A policy split over ranks is published as one that isn't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from forage import app
from forage.weights.gather import gather_policy

SHAPES = {"a": (5, 3), "row": (1, 4), "bias": (7,), "even": (4, 2, 3), "one": (1,), "b": (40, 9)}


def masters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


@app.service(resreq="cpu=0.1", autoscale=False, warmup=2)
class Ranks:
    """Two ranks with a policy split between them, or one copy each."""

    def __init__(self) -> None:
        context = app.context()
        host, port = context.rendezvous.rsplit(":", 1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://{host}:{port}", rank=context.rank, world_size=context.size
        )

    def gather(self, replicate: int, shard: int, message_bytes: int) -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (replicate, shard))
        split = {
            name: distribute_tensor(tensor, mesh, [Replicate(), Shard(0)])
            for name, tensor in masters().items()
        }
        return gather_policy(split, message_bytes=message_bytes)

    def refuse(self) -> str:
        mesh = init_device_mesh("cpu", (2,))
        columns = distribute_tensor(masters()["b"], mesh, [Shard(1)])
        try:
            gather_policy({"b": columns})
        except ValueError as error:
            return str(error)
        return ""


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return list(left) == list(right) and all(
        torch.equal(left[name].view(torch.int16), right[name].view(torch.int16)) for name in left
    )


def test_the_first_rank_gets_the_whole_policy_rounded() -> None:
    service: Any = Ranks
    with app.init("gather", resources="cpu=1"):
        ranks = service.remote()
        for replicate, shard in ((1, 2), (2, 1)):
            for message_bytes in (1, 60, 1 << 20):
                first, second = ranks.gather.broadcast(replicate, shard, message_bytes).result(99)
                assert same(first, rounded(masters()))
                assert second == {}
        assert "'b' can't be gathered" in ranks.refuse.broadcast().result(99)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_policy_that_is_not_split_is_rounded(dtype: torch.dtype) -> None:
    policy = {name: tensor.to(dtype) for name, tensor in masters().items()}
    assert same(gather_policy(policy), rounded(policy))
