"""Deltas: exact to the bit, near the entropy in size, and refused when damaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forage.weights import codec
from forage.weights.bitpack import pack_positions, unpack_positions
from forage.weights.codec import (
    BlockDelta,
    apply_patch,
    checksum,
    decode_block,
    encode_delta,
    payload_sum,
)
from forage.weights.layout import Layout

# Signalling and quiet NaNs of both signs, infinities, zeros, subnormals, the largest values.
SPECIAL = [0x7F81, 0xFF81, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001, 0x8001, 0x7F7F]
patterns = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 0xFFFF))


def tensor_of(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


def apply_delta(target: torch.Tensor, delta: Sequence[BlockDelta]) -> None:
    patches = [decode_block(block, target.numel()) for block in delta]
    for patch in patches:
        apply_patch(target, patch)


def nbytes(delta: Sequence[BlockDelta]) -> int:
    return sum(len(block.payload) for block in delta)


def changed_at(positions: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors that differ in exactly these positions."""
    generator = torch.Generator().manual_seed(1)
    before = torch.randint(-(1 << 15), 1 << 15, (size,), generator=generator).to(torch.int16)
    after = before.clone()
    after[positions] ^= 1
    return before.view(torch.bfloat16), after.view(torch.bfloat16)


def random_positions(size: int, fraction: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(fraction * 1e6))
    return (torch.rand(size, generator=generator) < fraction).nonzero().squeeze(1)


@st.composite
def versions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    before = draw(st.lists(patterns, max_size=60))
    after = [draw(st.one_of(st.just(bits), patterns)) for bits in before]
    return tensor_of(before), tensor_of(after)


@given(versions())
def test_apply_gives_the_current_version_bit_for_bit(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    before, after = pair
    delta = encode_delta(before, after)
    assert bool(delta) != same_bits(before, after)
    target = before.clone()
    apply_delta(target, delta)
    assert same_bits(target, after)
    apply_delta(target, delta)
    assert same_bits(target, after), "applying twice must be harmless"


@given(versions())
def test_fp32_targets_hold_the_same_bits(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    before, after = pair
    delta = encode_delta(before, after)
    target = (before.view(torch.int16).to(torch.int32) << 16).view(torch.float32)
    apply_delta(target, delta)
    assert torch.equal((target.view(torch.int32) >> 16).to(torch.int16), after.view(torch.int16))


@given(st.sets(st.integers(0, 4000), min_size=1, max_size=300), st.integers(0, 5000))
def test_positions_round_trip(chosen: set[int], slack: int) -> None:
    positions = torch.tensor(sorted(chosen))
    length = int(positions[-1]) + 1 + slack
    packed = pack_positions(positions, length)
    assert torch.equal(unpack_positions(packed, length), positions)


@pytest.mark.parametrize("percent", [0.1, 0.3, 1, 3, 6, 10, 20, 30])
def test_positions_take_at_most_a_tenth_more_than_their_entropy(percent: float) -> None:
    size = 1_000_000
    positions = random_positions(size, percent / 100)
    delta = encode_delta(*changed_at(positions, size))
    p = len(positions) / size
    entropy_bytes = size * -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) / 8
    assert nbytes(delta) - 2 * len(positions) <= 1.1 * entropy_bytes + 16


def test_whole_blocks_where_they_are_smaller() -> None:
    delta = encode_delta(*changed_at(random_positions(10_000, 0.99), 10_000))
    assert nbytes(delta) == 20_000
    assert all(block.whole for block in delta)


@pytest.mark.parametrize("positions", [[0], [9_999], [0, 9_999], [5_000, 5_001, 5_002]])
def test_few_positions_take_few_bytes(positions: list[int]) -> None:
    before, after = changed_at(torch.tensor(positions), 10_000)
    delta = encode_delta(before, after)
    assert nbytes(delta) <= 6 * len(positions)


def test_blocks_without_changes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BLOCK", 64)
    before, after = changed_at(torch.tensor([3, 130, 131, 999]), 1000)
    delta = encode_delta(before, after)
    assert [block.start for block in delta] == [0, 128, 960]
    target = before.view(10, 100).clone()
    apply_delta(target, delta)
    assert same_bits(target.view(-1), after)


def test_unchanged_is_none_even_where_values_compare_unequal() -> None:
    nans = tensor_of([0x7FC1, 0xFF81])
    assert encode_delta(nans, nans.clone()) == ()
    assert encode_delta(torch.empty(0).bfloat16(), torch.empty(0).bfloat16()) == ()


def test_scalars_change_too() -> None:
    target = torch.tensor(1.0).bfloat16()
    delta = encode_delta(target.view(1), torch.tensor([2.0]).bfloat16())
    apply_delta(target, delta)
    assert target.item() == 2.0


@pytest.mark.parametrize("fraction", [0.05, 1.0])
def test_views_of_fused_parameters_are_patched_in_place(fraction: float) -> None:
    before, after = changed_at(random_positions(300, fraction), 300)
    delta = encode_delta(before, after)
    for cut in ((slice(10, 30), slice(0, 15)), (slice(3, 23), slice(4, 19))):
        fused = torch.full((40, 20), 7.0).bfloat16()
        fused[cut] = before.view(20, 15)
        expected = fused.clone()
        expected[cut] = after.view(20, 15)
        apply_delta(fused[cut], delta)
        assert same_bits(fused, expected)


@given(st.data())
def test_a_patch_of_a_stretch_is_cut_into_its_tensors(data: st.DataObject) -> None:
    shapes = data.draw(
        st.lists(st.sampled_from([(), (1,), (5,), (3, 4), (0, 7), (60,)]), min_size=1, max_size=8)
    )
    starts = [data.draw(st.integers(0, 3)) for _ in shapes]
    spans = [range(at, at + math.prod(shape)) for at, shape in zip(starts, shapes, strict=True)]
    layout = Layout.of({f"t{index}": span for index, span in enumerate(spans)})
    before = torch.zeros(layout.size).bfloat16()
    after = tensor_of(data.draw(st.lists(patterns, min_size=layout.size, max_size=layout.size)))
    if data.draw(st.booleans()):
        after[:: data.draw(st.integers(2, 9))] = 0
    wholes = {f"t{i}": torch.zeros(span.stop).bfloat16() for i, span in enumerate(spans)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(codec, "BLOCK", data.draw(st.integers(1, 50)))
        delta = encode_delta(before, after)
    for block in delta:
        for name, patch in layout.cut(decode_block(block, layout.size)):
            apply_patch(wholes[name], patch)
    held = {f"t{i}": wholes[f"t{i}"][span.start :] for i, span in enumerate(spans)}
    assert same_bits(layout.flatten(held), after)


def test_refuses_what_it_cannot_encode() -> None:
    bf16 = torch.zeros(6).bfloat16()
    with pytest.raises(ValueError, match="6 became 3"):
        encode_delta(bf16, torch.zeros(3).bfloat16())
    with pytest.raises(ValueError, match="float32"):
        encode_delta(torch.zeros(6), bf16)
    with pytest.raises(ValueError, match=r"flat bfloat16; got torch.bfloat16 \[2, 3\]"):
        encode_delta(bf16, torch.zeros(2, 3).bfloat16())
    with pytest.raises(ValueError, match="flat"):
        encode_delta(bf16, torch.zeros(12).bfloat16()[::2])


# Damage. Every case must be refused with the target untouched.


def refused(delta: Sequence[BlockDelta], size: int) -> None:
    target = torch.full((size,), 3.0).bfloat16()
    with pytest.raises(ValueError):  # noqa: PT011
        apply_delta(target, delta)
    assert same_bits(target, torch.full((size,), 3.0).bfloat16())


def resealed(block: BlockDelta, **changes: object) -> BlockDelta:
    """The block with other fields and a checksum that fits them."""
    block = replace(block, **changes)  # type: ignore[arg-type]
    even = block.payload[: len(block.payload) // 2 * 2].clone()
    fields = (block.start, block.length, block.count, block.low_bits, len(block.payload))
    return replace(block, checksum=checksum(*fields, int(payload_sum(even))))


def sparse_delta(size: int = 500) -> tuple[BlockDelta, ...]:
    delta = encode_delta(*changed_at(torch.arange(3, size, 37), size))
    return delta


@given(st.data())
def test_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    delta = sparse_delta()
    [block] = delta
    payload = block.payload.clone()
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused([replace(block, payload=payload)], 500)


def test_truncation_is_refused_at_every_length() -> None:
    delta = sparse_delta()
    [block] = delta
    for length in range(len(block.payload)):
        cut = block.payload[:length].clone()
        refused([replace(block, payload=cut)], 500)
        refused([resealed(block, payload=cut)], 500)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": -1},
        {"start": 1},
        {"length": 400},
        {"length": 501},
        {"count": 0},
        {"count": 13},
        {"count": 15},
        {"count": 500},
        {"low_bits": 0},
        {"low_bits": -1},
        {"low_bits": 60},
    ],
)
def test_impossible_fields_are_refused_though_the_checksum_fits(changes: dict[str, int]) -> None:
    refused([resealed(sparse_delta()[0], **changes)], 500)


@given(st.binary(max_size=80), st.integers(1, 30), st.integers(0, 12))
def test_random_bytes_never_write_out_of_range(junk: bytes, count: int, low_bits: int) -> None:
    payload = torch.tensor(list(junk), dtype=torch.uint8)
    block = resealed(sparse_delta()[0], payload=payload, count=count, low_bits=low_bits)
    try:
        patch = decode_block(block, 500)
    except ValueError:
        return
    assert patch.positions is not None
    assert len(patch.positions) == len(patch.bits) == count
    assert int(patch.positions.min()) >= 0
    assert int(patch.positions.max()) < 500


def test_a_late_damaged_block_keeps_the_earlier_ones_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "BLOCK", 100)
    delta = sparse_delta()
    assert len(delta) == 5
    damaged = replace(delta[-1], checksum=delta[-1].checksum ^ 1)
    refused([*delta[:-1], damaged], 500)
