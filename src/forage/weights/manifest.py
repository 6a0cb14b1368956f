"""What a published policy looks like in the object cache.

    PREFIX/manifest              a `Manifest`, replaced by each publication, last
    PREFIX/GENERATION/shard-N    a `ShardBase`, then one `ShardPart` per version that changed it

A weight version exists once its manifest is written. Bases and parts name the weight version that
they lead to, so that a reader takes exactly those up to the manifest's and leaves what a newer or
unfinished publication has added. A publisher that starts anew writes a generation of its own,
named by its first version: until its manifest is written the old one stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from forage import app
from forage.weights.codec import BlockDelta
from forage.weights.layout import Layout


@dataclass(frozen=True, slots=True)
class ShardBase:
    """Some of the policy's tensors at a weight version: bf16, one after another, flat."""

    weight_version: int
    stretch: Tensor


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What a weight version changed in a shard's stretch; blocks without changes are left out.

    Attributes:
        size: elements of the stretch.
    """

    weight_version: int
    size: int
    blocks: tuple[BlockDelta, ...]

    @property
    def nbytes(self) -> int:
        """Size of the payloads, in bytes."""
        return sum(len(block.payload) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Shape, digest and shard of a tensor; the digest is `tensor_digest` of it."""

    shape: tuple[int, ...]
    digest: int
    shard: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One weight version.

    Attributes:
        version: the weight version.
        generation: the first version of the publisher that wrote it.
        shards: a reference to each shard, at the cache version that holds this weight version.
        tensors: the policy's tensors by name, in the order in which they lie in their shards.
    """

    version: int
    generation: int
    shards: tuple[app.Ref, ...]
    tensors: dict[str, TensorEntry]

    def layouts(self) -> list[Layout]:
        """How the tensors of each shard lie in it."""
        shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in self.shards]
        for name, entry in self.tensors.items():
            shapes[entry.shard][name] = entry.shape
        return [Layout.of(named) for named in shapes]
