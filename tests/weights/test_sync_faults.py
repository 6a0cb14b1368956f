"""Publications that end half-way, damage, and wrong arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from weights_policies import (
    Policy,
    a_policy,
    blank,
    follow,
    manifest_of,
    moved,
    nbytes,
    prefixes,
    published,
    ref_of,
    same_bits,
)

from forage import app
from forage.weights.codec import encode_delta
from forage.weights.manifest import ShardBase, ShardPart
from forage.weights.publish import Publisher
from forage.weights.subscribe import DigestMismatch, Subscriber, VersionUnavailable

pytestmark = pytest.mark.usefixtures("running_app")


def part_of(before: Tensor, after: Tensor, version: int = 2) -> ShardPart:
    """A part for a shard that holds this tensor alone."""
    return ShardPart(version, before.numel(), encode_delta(before.view(-1), after.view(-1)))


# A version exists once its manifest is written.


def leave_unfinished(publisher: Publisher, before: Policy, after: Policy, version: int) -> None:
    """What a publisher leaves that dies between its first append and its manifest."""
    manifest = manifest_of(publisher)
    app.append(manifest.shards[0], part_of(before["embedding"], after["embedding"], version))


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
    app.put("half a shard", key=f"{first._prefix}/2/0/shard-0")
    app.put("no longer needed", key=f"{first._prefix}/2/0/shard-99")
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
    stretch, after = (torch.cat([t.view(-1) for t in p.values()]) for p in (policy, newer))
    newest = app.append(shard, part_of(stretch, after))
    app.rebase(newest, ShardBase(2, after))
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
    part = part_of(policy["embedding"], moved(policy, 0.1)["embedding"])
    part.blocks[0].payload[5] ^= 4
    publish_by_hand(publisher, part)
    with pytest.raises(ValueError, match=r"weight version 2, tensor 'embedding': .*checksum"):
        subscriber.fetch(2)
    assert subscriber.version == 1
    assert same_bits(target, policy)


def test_a_part_for_another_tensor_is_refused() -> None:
    policy = a_policy()
    publisher = published(policy)
    publish_by_hand(publisher, part_of(policy["layer.bias"], policy["layer.bias"] + 1))
    with pytest.raises(ValueError, match="'embedding': 16 elements, where the manifest lists 640"):
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
    publish_by_hand(publisher, part_of(policy["embedding"], moved(policy, 0.1)["embedding"]))
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


def test_a_policy_on_several_devices_is_refused() -> None:
    policy = a_policy() | {"scale": torch.zeros((), dtype=torch.bfloat16, device="meta")}
    with pytest.raises(ValueError, match="one device; .* on cpu, 'scale' on"):
        Publisher(next(prefixes)).publish(policy, 1)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="without tensors"):
        Publisher(next(prefixes)).publish({}, 1)
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
