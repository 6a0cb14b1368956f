"""The digest against arithmetic in plain Python integers, and its additivity."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forage.weights import digest as digest_module
from forage.weights.digest import digest_moves, tensor_digest, tensor_digests

MASK = (1 << 64) - 1


def mix64(position: int) -> int:
    """SplitMix64's output for the state `position`, made odd."""
    z = (position + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) | 1


def oracle(bits: list[int], positions: list[int]) -> int:
    """The digest of bits, given as unsigned numbers."""
    signed = [b - (1 << 16) if b >> 15 else b for b in bits]
    return sum(mix64(p) * b for p, b in zip(positions, signed, strict=True)) & MASK


def tensor_of(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def random_bits(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 15), 1 << 15, shape, generator=generator).to(torch.int16)


patterns = st.integers(0, 0xFFFF)


def test_mix_is_the_published_splitmix64() -> None:
    # First outputs of SplitMix64 seeded with 0 and 1234567, as in the reference implementation.
    assert mix64(0) == 0xE220A8397B1DCDAF | 1
    assert mix64(1234567) == 6457827717110365317 | 1


@given(st.lists(patterns, max_size=50), st.integers(0, 2**40))
def test_equals_the_oracle(bits: list[int], offset: int) -> None:
    positions = list(range(offset, offset + len(bits)))
    assert tensor_digest(tensor_of(bits), offset=offset) == oracle(bits, positions)


def test_large_tensors_are_summed_over_many_chunks() -> None:
    count = 2 * digest_module._CPU_CHUNK + 17
    bits = random_bits(count)
    expected = oracle([b & 0xFFFF for b in bits.tolist()], list(range(count)))
    assert tensor_digest(bits.view(torch.bfloat16)) == expected


@given(st.lists(patterns, min_size=1, max_size=40), st.data())
def test_shards_add_up(bits: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(bits)))
    whole = tensor_of(bits)
    parts = tensor_digest(whole[:cut]) + tensor_digest(whole[cut:], offset=cut)
    assert parts & MASK == tensor_digest(whole)


@pytest.mark.parametrize("shape", [(6, 10), (4, 3, 5), (1, 7)])
def test_column_shards_add_up(shape: tuple[int, ...]) -> None:
    whole = random_bits(*shape).view(torch.bfloat16)
    left, right = whole[..., :2], whole[..., 2:]
    total = tensor_digest(left, strides=whole.stride())
    total += tensor_digest(right, offset=2, strides=whole.stride())
    assert total & MASK == tensor_digest(whole)


def test_strided_views_are_read_in_their_own_order() -> None:
    fused = random_bits(12, 8).view(torch.bfloat16)
    for view in (fused[3:7], fused[:, 2:5], fused.T, fused[::2, ::3]):
        assert tensor_digest(view) == tensor_digest(
            view.clone(memory_format=torch.contiguous_format)
        )


def test_scalars_and_empty_tensors() -> None:
    assert tensor_digest(torch.tensor(1.0, dtype=torch.bfloat16)) == oracle([0x3F80], [0])
    assert tensor_digest(torch.empty(0, 3, dtype=torch.bfloat16)) == 0


@given(st.lists(patterns, min_size=1, max_size=40), st.data())
def test_any_single_change_shows(bits: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(bits) - 1))
    changed = list(bits)
    changed[index] = data.draw(patterns.filter(lambda b: b != bits[index]))
    assert tensor_digest(tensor_of(bits)) != tensor_digest(tensor_of(changed))


def test_equal_values_of_different_bits_differ() -> None:
    assert tensor_digest(torch.tensor([0.0]).bfloat16()) != tensor_digest(
        torch.tensor([-0.0]).bfloat16()
    )


@given(st.lists(st.lists(st.tuples(patterns, patterns), max_size=20), min_size=1, max_size=5))
def test_digests_move_by_the_changed_elements(tensors: list[list[tuple[int, int]]]) -> None:
    old, new = ([tensor_of([pair[side] for pair in pairs]) for pairs in tensors] for side in (0, 1))
    bounds = torch.tensor([0, *itertools.accumulate(map(len, tensors))])
    starts = torch.arange(len(tensors)) * 5
    before, after = torch.cat(old).view(torch.int16), torch.cat(new).view(torch.int16)
    changed = (before != after).nonzero().squeeze(1)
    moves = digest_moves(changed, before[changed], after[changed], bounds, starts).tolist()
    befores = [tensor_digest(t, offset=5 * index) for index, t in enumerate(old)]
    assert [(digest + move) & MASK for digest, move in zip(befores, moves, strict=True)] == [
        tensor_digest(t, offset=5 * index) for index, t in enumerate(new)
    ]


def test_tensors_are_digested_side_by_side() -> None:
    chunk = digest_module._CPU_CHUNK
    sizes = [0, 1, 700, chunk, chunk + 1, 3 * chunk - 5]
    tensors = {f"bf16-{n}": random_bits(n, seed=n).view(torch.bfloat16) for n in sizes}
    held = random_bits(2 * chunk + 3).to(torch.int32) << 16
    tensors["fp32"] = held.view(torch.float32)
    tensors["view"] = random_bits(300, 200).view(torch.bfloat16)[:, 20:170]
    tensors["scalar"] = torch.tensor(3.0).bfloat16()
    digests = tensor_digests(tensors)
    assert digests == {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    offsets = {"bf16-700": 11, "fp32": chunk - 1, "view": 5}
    assert tensor_digests(tensors, offsets) == {
        name: tensor_digest(tensor, offset=offsets.get(name, 0)) for name, tensor in tensors.items()
    }
    tensors["fp32"][chunk] = 0.1
    assert tensor_digests(tensors) == digests | {"fp32": None}
    assert tensor_digests({}) == {}


@given(st.lists(patterns, min_size=1, max_size=40))
def test_fp32_that_holds_bf16_has_the_same_digest(bits: list[int]) -> None:
    words = torch.tensor(bits, dtype=torch.int64) << 16
    held = words.to(torch.int32).view(torch.float32)
    assert tensor_digest(held) == tensor_digest(tensor_of(bits))


def test_refuses_what_is_not_bf16() -> None:
    with pytest.raises(ValueError, match="isn't a bfloat16 value"):
        tensor_digest(torch.tensor([1.0, 0.1]))
    with pytest.raises(ValueError, match="float16"):
        tensor_digest(torch.zeros(3, dtype=torch.float16))
    with pytest.raises(ValueError, match="1 strides for a tensor of 2"):
        tensor_digest(torch.zeros(2, 2, dtype=torch.bfloat16), strides=(1,))
