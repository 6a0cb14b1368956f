"""A policy split over ranks: each publishes its own rows, and subscribers hold the whole."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from weights_policies import Policy, blank, follow, moved, nbytes, same_bits

from forage import app
from forage.weights.parts import own_parts
from forage.weights.publish import Publisher
from forage.weights.report import PublishReport
from forage.weights.subscribe import Subscriber

SHAPES = {"a": (5, 3), "row": (1, 4), "bias": (7,), "even": (4, 2, 3), "one": (1,), "b": (40, 9)}
RANKS = 3


def policy() -> Policy:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()
    }


@app.service(resreq="cpu=0.1", autoscale=False, warmup=RANKS)
class Holder:
    """One of the ranks that a policy is split over."""

    def __init__(self) -> None:
        context = app.context()
        self.rank = context.rank
        host, port = context.rendezvous.rsplit(":", 1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://{host}:{port}", rank=context.rank, world_size=context.size
        )
        self.mesh = init_device_mesh("cpu", (context.size,))
        self.publishers: dict[str, Publisher] = {}

    def split(self, whole: Policy, placement: Placement | None = None) -> Policy:
        placed = [placement or Shard(0)]
        return {name: distribute_tensor(t, self.mesh, placed) for name, t in whole.items()}

    def publish(
        self, prefix: str, whole: Policy, version: int, keep: Any = "device"
    ) -> tuple[PublishReport, app.Ref | None]:
        publisher = self.publishers.setdefault(prefix, Publisher(prefix, shard_bytes=99, keep=keep))
        return publisher.publish(self.split(whole), version), publisher.manifest_ref

    def refused(self, prefix: str, whole: Policy, version: int) -> str:
        """What is said where one rank's tensor isn't bf16."""
        tensors = self.split(whole)
        if self.rank == 1:
            tensors["b"] = tensors["b"].float()
        try:
            self.publishers[prefix].publish(tensors, version)
        except ValueError as error:
            return str(error)
        return ""

    def lose(self, prefix: str, whole: Policy, version: int) -> str:
        """What is said where one rank's shards are gone."""
        if self.rank == 2:
            app.delete(f"{prefix}/1/2/")
        try:
            self.publish(prefix, whole, version)
        except app.ObjectLost as error:
            return str(error)
        return ""

    def refuse(self) -> list[str]:
        """What is said of policies that are split in other ways."""
        whole = policy()
        other = DeviceMesh("cpu", list(reversed(range(RANKS))))
        wrong = [
            self.split(whole) | {"b": self.split({"b": whole["b"]}, Shard(1))["b"]},
            self.split(whole) | {"b": self.split({"b": whole["b"]}, Replicate())["b"]},
            self.split(whole) | {"b": whole["b"]},
            self.split(whole) | {"b": distribute_tensor(whole["b"], other, [Shard(0)])},
        ]
        said = []
        for tensors in wrong:
            try:
                Publisher("wrong").publish(tensors, 1)
            except ValueError as error:
                said.append(str(error))
        return said

    def kill_one(self) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def holders() -> Any:
    service: Any = Holder
    with app.init("split", resources="cpu=1"):
        yield service.remote()


@pytest.mark.parametrize("keep", ["device", "cpu"])
def test_a_subscriber_holds_what_all_ranks_published(holders: Any, keep: str) -> None:
    prefix, whole = f"follow-{keep}", policy()
    target = blank(whole)
    subscriber, size = None, nbytes(whole)
    for version in range(1, 6):
        found = holders.publish.broadcast(prefix, whole, version, keep).result(99)
        (report, ref), others = found[0], found[1:]
        assert [manifest for _, manifest in others] == [ref] * (RANKS - 1)
        assert (report.version, report.whole) == (version, version == 1)
        subscriber = subscriber or Subscriber(ref)
        fetched = follow(subscriber, version, target)
        assert same_bits(target, whole)
        assert report.published_bytes == fetched
        if version == 1:
            assert (report.published_bytes, report.changed_fraction) == (size, 1.0)
        else:
            assert 0 < report.published_bytes < size
            assert 0 < report.changed_fraction < 0.3
        late = blank(whole)
        assert follow(Subscriber(ref), version, late) <= 1.5 * size + 99
        assert same_bits(late, whole)
        whole = moved(whole, 0.1, seed=version)


def test_what_one_rank_refuses_no_rank_publishes(holders: Any) -> None:
    whole = policy()
    [(_, ref), *_] = holders.publish.broadcast("refused", whole, 1).result(99)
    said = holders.refused.broadcast("refused", whole, 2).result(99)
    assert said == ["tensor 'b' is torch.float32; round it to bfloat16 first"] * RANKS
    with pytest.raises(ValueError, match="version 1 isn't new"):
        holders.publish.broadcast("refused", whole, 1).result(99)
    changed = moved(whole, 0.1)
    [(report, _), *_] = holders.publish.broadcast("refused", changed, 2).result(99)
    assert not report.whole, "nothing was lost by the refusals"
    target = blank(whole)
    follow(Subscriber(ref), 2, target)
    assert same_bits(target, changed)


def test_where_one_rank_fails_all_do_and_the_next_publication_is_whole(holders: Any) -> None:
    whole = policy()
    [(_, ref), *_] = holders.publish.broadcast("lost", whole, 1).result(99)
    changed = moved(whole, 0.1)
    first, *others = holders.lose.broadcast("lost", changed, 2).result(99)
    assert "lost/1/2/" in first
    assert others == [first] * (RANKS - 1)
    [(report, _), *_] = holders.publish.broadcast("lost", changed, 2).result(99)
    assert report.whole
    target = blank(whole)
    follow(Subscriber(ref), 2, target)
    assert same_bits(target, changed)


def test_policies_split_in_other_ways_are_refused(holders: Any) -> None:
    for said in holders.refuse.broadcast().result(99):
        assert len(said) == 4
        assert all(line.startswith("tensor 'b' ") for line in said)


def test_after_a_rank_was_killed_the_next_ranks_publish_anew(holders: Any) -> None:
    service: Any = Holder
    whole = policy()
    gang = service.remote()
    [(_, ref), *_] = gang.publish.broadcast("killed", whole, 1).result(99)
    with pytest.raises(app.GangBroken):
        gang.kill_one.broadcast().result(99)
    subscriber, target = Subscriber(ref), blank(whole)
    follow(subscriber, 1, target)
    assert same_bits(target, whole), "the version before is still there"
    gang.reform()
    changed = moved(whole, 0.1)
    [(report, _), *_] = gang.publish.broadcast("killed", changed, 2).result(99)
    assert report.whole
    follow(subscriber, 2, target)
    assert same_bits(target, changed)


@given(st.integers(0, 9), st.integers(1, 4))
def test_a_tensor_that_is_not_split_is_held_whole(rows: int, width: int) -> None:
    whole = torch.arange(rows * width).view(rows, width).bfloat16()
    parts = own_parts({"t": whole})
    assert [part.span for part in parts.values()] == [range(rows * width)] * (rows > 0)
