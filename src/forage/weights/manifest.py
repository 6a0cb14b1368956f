"""What a published policy looks like in the object cache.

    PREFIX/manifest                 a `Manifest`, replaced by each publication, last
    PREFIX/GENERATION/RANK/shard-N  a `ShardBase`, then a `ShardPart` per version that changed it

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
    """Tensors, or rows of them, at a weight version: bf16, end to end, flat."""

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
    """Shape and digest of a tensor; the digest is `tensor_digest` of it."""

    shape: tuple[int, ...]
    digest: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One weight version.

    Attributes:
        version: the weight version.
        generation: the first version of the publisher that wrote it.
        shards: a reference to each shard, at the cache version that holds this weight version.
        layouts: of each shard's stretch; together they hold every element of every tensor once.
        tensors: the policy's tensors by name.
    """

    version: int
    generation: int
    shards: tuple[app.Ref, ...]
    layouts: tuple[Layout, ...]
    tensors: dict[str, TensorEntry]


def generation_prefix(prefix: str, generation: int) -> str:
    """Of the keys of a generation's shards."""
    return f"{prefix}/{generation}/"
