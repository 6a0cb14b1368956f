"""From a publisher to its subscribers, through the real object cache: exact, and few bytes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from weights_policies import (
    Policy,
    a_policy,
    blank,
    follow,
    moved,
    nbytes,
    prefixes,
    published,
    ref_of,
    same_bits,
)

from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

pytestmark = pytest.mark.usefixtures("running_app")

SPECIAL = [0x7F81, 0xFF81, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001, 0x8001]

# Exactness, over chains of versions.

patterns = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 0xFFFF))


def tensor_of(bits: list[int], shape: tuple[int, ...]) -> Tensor:
    flat = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return flat.view(shape)


@st.composite
def chains(draw: st.DrawFn) -> list[Policy]:
    """Versions of a random model; each changes any bits of any elements, or nothing."""
    shapes = draw(
        st.dictionaries(
            st.sampled_from("abcd"),
            st.sampled_from([(), (1,), (7,), (3, 4), (2, 3, 2), (0, 5), (30,)]),
            min_size=1,
        )
    )
    bits = {
        name: draw(st.lists(patterns, min_size=n, max_size=n))
        for name, n in ((name, torch.Size(shape).numel()) for name, shape in shapes.items())
    }
    versions = []
    for _ in range(draw(st.integers(1, 6))):
        versions.append({name: tensor_of(bits[name], shapes[name]) for name in shapes})
        for name in draw(st.sets(st.sampled_from(sorted(shapes)))):
            bits[name] = [draw(st.one_of(st.just(b), patterns)) for b in bits[name]]
    return versions


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.integers(1, 200), st.data())
def test_every_subscriber_holds_every_version_bit_for_bit(
    versions: list[Policy], shard_bytes: int, data: st.DataObject
) -> None:
    publisher = Publisher(next(prefixes), shard_bytes=shard_bytes)
    followers: list[tuple[Subscriber, Policy]] = []
    for version, policy in enumerate(versions, start=1):
        report = publisher.publish(policy, version)
        assert report.version == version
        assert report.whole == (version == 1)
        dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
        followers.append((Subscriber(ref_of(publisher)), blank(policy, dtype)))
        for subscriber, target in followers:
            if data.draw(st.booleans()) or version == len(versions):
                follow(subscriber, version, target)
                assert same_bits(target, policy)


def test_subscribers_may_skip_versions() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    for version in range(2, 6):
        policy = moved(policy, 0.05, seed=version)
        publisher.publish(policy, version)
    fetched = follow(subscriber, 5, target)
    assert same_bits(target, policy)
    assert 0 < fetched < nbytes(policy) / 2


def test_a_trainer_may_change_its_tensors_in_place() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    for tensor in policy.values():
        tensor.view(torch.int16).add_(1)
    assert publisher.publish(policy, 2).changed_fraction == 1
    follow(subscriber, 2, target)
    assert same_bits(target, policy)


def test_targets_may_be_views_of_fused_parameters() -> None:
    policy = {"q": a_policy()["layer.weight"], "k": a_policy(seed=1)["layer.weight"]}
    publisher = published(policy)
    fused = torch.zeros(32, 20).bfloat16()
    target = {"q": fused[:16, :16], "k": fused[16:, 2:18]}
    subscriber = Subscriber(ref_of(publisher))
    follow(subscriber, 1, target)
    policy = moved(policy, 0.1)
    publisher.publish(policy, 2)
    follow(subscriber, 2, target)
    assert same_bits({name: view.clone() for name, view in target.items()}, policy)
    assert not fused[:16, 16:].any()
    assert not fused[16:, :2].any()


# How much moves.


def test_bytes_follow_what_changed() -> None:
    policy = a_policy(4000)
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    assert follow(subscriber, 1, target) == nbytes(policy)
    policy = moved(policy, 0.01)
    report = publisher.publish(policy, 2)
    assert 0.008 < report.changed_fraction < 0.012
    assert report.published_bytes < 0.02 * nbytes(policy)
    assert follow(subscriber, 2, target) == report.published_bytes
    assert subscriber.bytes_fetched == nbytes(policy) + report.published_bytes


def test_a_version_without_changes_moves_nothing() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    report = publisher.publish(policy, 2)
    assert (report.published_bytes, report.changed_fraction, report.whole) == (0, 0.0, False)
    assert follow(subscriber, 2, target) == 0
    assert follow(subscriber, 2, target) == 0


def test_a_newcomer_reads_a_bounded_amount_and_rebasing_moves_nobody_else() -> None:
    policy = a_policy(400)
    publisher = published(policy, shard_bytes=4000)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    parts, first_reads = 0, []
    for version in range(2, 14):
        policy = moved(policy, 0.3, seed=version)
        report = publisher.publish(policy, version)
        parts += report.published_bytes
        assert follow(subscriber, version, target) == report.published_bytes
        newcomer, fresh = Subscriber(ref_of(publisher)), blank(policy)
        first_reads.append(follow(newcomer, version, fresh) / nbytes(policy))
        assert same_bits(fresh, policy)
    assert max(first_reads) <= 1.5
    assert parts > 3 * nbytes(policy), "the chain was long enough for several rebases"


def test_rebasing_is_spread_over_publications() -> None:
    policy = {str(index): a_policy()["embedding"] for index in range(12)}
    publisher = published(policy, shard_bytes=1)
    first_reads = []
    for version in range(2, 20):
        policy = moved(policy, 0.1, seed=version)
        publisher.publish(policy, version)
        newcomer, fresh = Subscriber(ref_of(publisher)), blank(policy)
        first_reads.append(follow(newcomer, version, fresh) / nbytes(policy))
        assert same_bits(fresh, policy)
    assert max(first_reads) <= 1.5
    assert min(first_reads[8:]) > 1.3, "no publication rebases everything at once"


@pytest.mark.parametrize("keep", ["device", "cpu"])
def test_the_publishers_copy_may_lie_in_cpu_memory(keep: Literal["device", "cpu"]) -> None:
    policy = a_policy()
    publisher = Publisher(next(prefixes), keep=keep)
    publisher.publish(policy, 1)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    for version in (2, 3):
        policy = moved(policy, 0.1, seed=version)
        assert not publisher.publish(policy, version).whole
    follow(subscriber, 3, target)
    assert same_bits(target, policy)
