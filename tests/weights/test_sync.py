"""From a publisher to its subscribers, through the real object cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from forage import app
from forage.weights.codec import encode_delta
from forage.weights.manifest import Manifest, ShardBase, ShardPart
from forage.weights.publish import Publisher
from forage.weights.subscribe import DigestMismatch, Subscriber, VersionUnavailable

SPECIAL = [0x7F81, 0xFF81, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001, 0x8001]
Policy = dict[str, Tensor]

_prefixes = (f"policy-{number}" for number in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def running_app() -> Iterator[None]:
    with app.init("weights", resources="cpu=1"):
        yield


def a_policy(rows: int = 40, *, seed: int = 0) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embedding": (rows, 16), "layer.weight": (16, 16), "layer.bias": (16,), "scale": ()}
    return {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()
    }


def moved(policy: Policy, share: float, *, seed: int = 0) -> Policy:
    """The policy with about this share of its values at their neighbour in bf16."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            tensor.view(torch.int16)
            + (torch.rand(tensor.shape, generator=generator) < share).to(torch.int16)
        ).view(torch.bfloat16)
        for name, tensor in policy.items()
    }


def blank(policy: Policy, dtype: torch.dtype = torch.bfloat16) -> Policy:
    return {name: torch.full(tensor.shape, 9.0, dtype=dtype) for name, tensor in policy.items()}


def bits_of(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16)
    return (tensor.view(torch.int32) >> 16).to(torch.int16)


def same_bits(left: Policy, right: Policy) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(bits_of(left[name]), bits_of(right[name])) for name in left
    )


def nbytes(policy: Policy) -> int:
    return sum(tensor.nbytes for tensor in policy.values())


def ref_of(publisher: Publisher) -> app.Ref:
    assert publisher.manifest_ref is not None
    return publisher.manifest_ref


def manifest_of(publisher: Publisher) -> Manifest:
    manifest: Manifest = app.get(ref_of(publisher))
    return manifest


def follow(subscriber: Subscriber, version: int, target: Policy) -> int:
    """Brings the target to the version; returns the bytes fetched."""
    staged = subscriber.fetch(version)
    subscriber.apply(staged, target)
    assert subscriber.version == version
    return staged.nbytes


def published(policy: Policy, *, shard_bytes: int = 600) -> Publisher:
    publisher = Publisher(next(_prefixes), shard_bytes=shard_bytes)
    publisher.publish(policy, 1)
    return publisher


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
    publisher = Publisher(next(_prefixes), shard_bytes=shard_bytes)
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
    assert min(first_reads) == 1, "a rebased policy is read whole, without parts"
    assert first_reads.count(1) <= len(first_reads) / 2, "it is not rebased each time"
    assert parts > 3 * nbytes(policy), "the chain was long enough for several rebases"


# A version exists once its manifest is written.


def leave_unfinished(publisher: Publisher, before: Policy, after: Policy, version: int) -> None:
    """What a publisher leaves that dies between its first append and its manifest."""
    manifest = manifest_of(publisher)
    delta = encode_delta(before["embedding"], after["embedding"])
    assert delta is not None
    app.append(manifest.shards[0], ShardPart(version, {"embedding": delta}))


def test_an_unfinished_version_is_nobodys() -> None:
    policy = a_policy()
    publisher = published(policy)
    holder, held = Subscriber(ref_of(publisher)), blank(policy)
    follow(holder, 1, held)
    leave_unfinished(publisher, policy, moved(policy, 0.2), 2)

    with pytest.raises(VersionUnavailable, match="version 2 was asked for, the published one is 1"):
        holder.fetch(2)
    assert follow(holder, 1, held) == 0
    newcomer, fresh = Subscriber(ref_of(publisher)), blank(policy)
    follow(newcomer, 1, fresh)
    assert same_bits(held, policy)
    assert same_bits(fresh, policy)


def test_a_new_publisher_starts_whole_and_everybody_follows() -> None:
    policy = a_policy()
    first = published(policy)
    holder, held = Subscriber(ref_of(first)), blank(policy)
    follow(holder, 1, held)
    leave_unfinished(first, policy, moved(policy, 0.2), 2)
    old_shards = manifest_of(first).shards

    second = Publisher(first._prefix, shard_bytes=600)
    policy = moved(policy, 0.1, seed=2)
    assert second.publish(policy, 2).whole
    assert follow(holder, 2, held) == nbytes(policy)
    assert same_bits(held, policy)
    for ref in old_shards:
        with pytest.raises(app.ObjectLost):
            app.fetch(ref, since=0)
    policy = moved(policy, 0.1, seed=3)
    assert not second.publish(policy, 3).whole
    follow(holder, 3, held)
    assert same_bits(held, policy)


def test_leftovers_of_a_publisher_that_died_in_its_first_publication_are_replaced() -> None:
    policy = a_policy()
    first = published(policy)
    app.put("half a shard", key=f"{first._prefix}/2/shard-0")
    app.put("no longer needed", key=f"{first._prefix}/2/shard-99")
    second = Publisher(first._prefix)
    second.publish(policy, 2)
    subscriber, target = Subscriber(ref_of(second)), blank(policy)
    follow(subscriber, 2, target)
    assert same_bits(target, policy)


def test_after_a_failed_publication_the_next_is_whole() -> None:
    policy = a_policy()
    publisher = published(policy)
    holder, held = Subscriber(ref_of(publisher)), blank(policy)
    follow(holder, 1, held)
    leave_unfinished(publisher, policy, moved(policy, 0.2), 2)  # a rival's write
    policy = moved(policy, 0.5)
    with pytest.raises(app.VersionConflict):
        publisher.publish(policy, 2)
    assert publisher.version == 1
    assert follow(holder, 1, held) == 0
    assert publisher.publish(policy, 2).whole
    follow(holder, 2, held)
    assert same_bits(held, policy)


def test_a_version_that_was_rebased_away_while_it_was_read_is_named() -> None:
    policy = a_policy()
    publisher = published(policy, shard_bytes=1 << 20)
    [shard] = manifest_of(publisher).shards
    newer = moved(policy, 0.2)
    leave_unfinished(publisher, policy, newer, 2)
    app.rebase(replace(shard, version=2), ShardBase(2, newer))
    with pytest.raises(VersionUnavailable, match="version 1 was replaced by a newer one"):
        Subscriber(ref_of(publisher)).fetch(1)


# Damage.


def publish_by_hand(publisher: Publisher, part: ShardPart) -> None:
    """Publishes a part in the first shard, with the digests of the version before."""
    manifest = manifest_of(publisher)
    first = app.append(manifest.shards[0], part)
    shards = (first, *manifest.shards[1:])
    app.replace(ref_of(publisher), replace(manifest, version=part.weight_version, shards=shards))


def test_a_corrupted_part_is_refused_and_changes_nothing() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    delta = encode_delta(policy["embedding"], moved(policy, 0.1)["embedding"])
    assert delta is not None
    delta.blocks[0].payload[5] ^= 4
    publish_by_hand(publisher, ShardPart(2, {"embedding": delta}))
    with pytest.raises(ValueError, match=r"weight version 2, tensor 'embedding': .*checksum"):
        subscriber.fetch(2)
    assert subscriber.version == 1
    assert same_bits(target, policy)


def test_a_part_for_another_tensor_is_refused() -> None:
    policy = a_policy()
    publisher = published(policy)
    delta = encode_delta(policy["layer.bias"], policy["layer.bias"] + 1)
    assert delta is not None
    publish_by_hand(publisher, ShardPart(2, {"embedding": delta}))
    with pytest.raises(ValueError, match=r"'embedding' of shape \[16\]"):
        Subscriber(ref_of(publisher)).fetch(2)


def test_a_missing_part_is_noticed() -> None:
    policy = a_policy()
    publisher = published(policy)
    manifest = manifest_of(publisher)
    ahead = replace(manifest.shards[0], version=manifest.shards[0].version + 1)
    app.replace(
        ref_of(publisher), replace(manifest, version=2, shards=(ahead, *manifest.shards[1:]))
    )
    with pytest.raises(ValueError, match="leads to its version 1, weight version 2 needs 2"):
        Subscriber(ref_of(publisher)).fetch(2)


def test_a_sound_part_with_wrong_values_fails_its_digest() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    delta = encode_delta(policy["embedding"], moved(policy, 0.1)["embedding"])
    assert delta is not None
    publish_by_hand(publisher, ShardPart(2, {"embedding": delta}))
    staged = subscriber.fetch(2)
    with pytest.raises(DigestMismatch, match="'embedding'") as failure:
        subscriber.apply(staged, target)
    assert failure.value.names == ["embedding"]
    assert subscriber.version is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_after_a_failed_apply_the_next_fetch_is_whole(dtype: torch.dtype) -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy, dtype)
    follow(subscriber, 1, target)
    target["layer.weight"][3, 3] += 1  # somebody else writes into the engine's weights
    policy = moved(policy, 0.02)
    publisher.publish(policy, 2)
    with pytest.raises(DigestMismatch, match="layer.weight"):
        subscriber.apply(subscriber.fetch(2), target)
    assert subscriber.version is None
    assert follow(subscriber, 2, target) >= nbytes(policy)
    assert same_bits(target, policy)


def test_an_engine_whose_weights_are_not_bf16_values_is_refused() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy, torch.float32)
    follow(subscriber, 1, target)
    target["layer.weight"][3, 3] = 0.1
    publisher.publish(moved(policy, 0.001), 2)
    with pytest.raises(DigestMismatch, match="layer.weight"):
        subscriber.apply(subscriber.fetch(2), target)
    assert subscriber.version is None


# Wrong arguments: refused before anything is written.


def test_an_older_version_is_not_published() -> None:
    publisher = published(a_policy())
    for candidate in (publisher, Publisher(publisher._prefix)):
        with pytest.raises(ValueError, match="version 1 isn't new: .* is at 1; publish version 2"):
            candidate.publish(a_policy(), 1)
    assert manifest_of(publisher).version == 1


def test_a_policy_keeps_its_names_and_shapes() -> None:
    policy = a_policy()
    publisher = published(policy)
    with pytest.raises(ValueError, match="'scale' is in one of two"):
        publisher.publish({name: t for name, t in policy.items() if name != "scale"}, 2)
    with pytest.raises(ValueError, match=r"'scale' was published as \[\], now it is \[2\]"):
        publisher.publish(policy | {"scale": torch.zeros(2).bfloat16()}, 2)
    with pytest.raises(ValueError, match="'scale' is torch.float32; round it"):
        publisher.publish(policy | {"scale": torch.zeros(())}, 2)
    assert not publisher.publish(policy, 2).whole, "nothing was lost by the refusals"


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="without tensors"):
        Publisher(next(_prefixes)).publish({}, 1)
    with pytest.raises(ValueError, match="positive, not 0"):
        Publisher("p", shard_bytes=0)


def test_targets_must_be_the_same_model() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber = Subscriber(ref_of(publisher))
    staged = subscriber.fetch(1)
    target = blank(policy)
    with pytest.raises(ValueError, match="'scale' is only published"):
        subscriber.apply(staged, {name: t for name, t in target.items() if name != "scale"})
    with pytest.raises(ValueError, match="'extra' is only among the targets"):
        subscriber.apply(staged, target | {"extra": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"'scale' was published as \[\], the target is \[3\]"):
        subscriber.apply(staged, target | {"scale": torch.zeros(3)})
    with pytest.raises(ValueError, match="float16"):
        subscriber.apply(staged, target | {"scale": torch.zeros((), dtype=torch.float16)})
    assert same_bits(target, blank(policy))
    subscriber.apply(staged, target)
    assert same_bits(target, policy)


def test_a_delta_staged_on_another_version_is_refused() -> None:
    policy = a_policy()
    publisher = published(policy)
    subscriber, target = Subscriber(ref_of(publisher)), blank(policy)
    follow(subscriber, 1, target)
    publisher.publish(moved(policy, 0.02, seed=1), 2)
    stale = subscriber.fetch(2)
    latest = moved(policy, 0.02, seed=2)
    publisher.publish(latest, 3)
    follow(subscriber, 3, target)
    with pytest.raises(ValueError, match="version 2 was staged on 1, the tensors hold 3"):
        subscriber.apply(stale, target)
    assert subscriber.version == 3
    assert same_bits(target, latest)
