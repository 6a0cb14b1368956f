"""A sharded policy, whole on one rank, for publishing.

What `fully_shard` leaves on each rank are fp32 rows of every parameter. Each rank rounds its own
to bf16, the first one gets them: no rank holds another's fp32 values. Tensors travel many at once,
in messages large enough for the links between GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard


def gather_policy(
    tensors: Mapping[str, Tensor], *, message_bytes: int = 512 << 20
) -> dict[str, Tensor]:
    """The whole policy in bf16 on the first rank of the tensors' mesh; nothing on other ranks.

    Every rank of the mesh has to call it, with the same names in the same order.

    Args:
        tensors: fp32 or bf16 by name; `DTensor`s replicated or split along their first axis, on
            one mesh. Where none is a `DTensor`, this rank has the whole policy: it is rounded.
        message_bytes: tensors are sent together up to this size.

    Raises:
        ValueError: a tensor is split in another way, or lies on another mesh.
    """
    mesh, axis = _mesh_and_axis(tensors)
    if mesh is None:
        return {name: tensor.detach().to(torch.bfloat16) for name, tensor in tensors.items()}
    place = mesh.get_coordinate()
    if place is None or any(index for dim, index in enumerate(place) if dim != axis):
        return {}  # another replica, whose first one publishes
    whole: dict[str, Tensor] = {}
    for names in _messages(tensors, message_bytes):
        whole |= _gather({name: tensors[name] for name in names}, mesh, axis)
    return whole


def _mesh_and_axis(tensors: Mapping[str, Tensor]) -> tuple[DeviceMesh | None, int]:
    """The mesh, and its axis over which the ranks of one replica lie."""
    mesh, axis = None, 0
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            continue
        split = [dim for dim, placed in enumerate(tensor.placements) if placed != Replicate()]
        if any(tensor.placements[dim] != Shard(0) for dim in split) or len(split) > 1:
            raise ValueError(f"tensor {name!r} can't be gathered from {tensor.placements}")
        if mesh is not None and tensor.device_mesh != mesh:
            raise ValueError(f"tensor {name!r} lies on {tensor.device_mesh}, others on {mesh}")
        mesh = tensor.device_mesh
        axis = split[0] if split else axis
    return mesh, axis


def _gather(tensors: Mapping[str, Tensor], mesh: DeviceMesh, axis: int) -> dict[str, Tensor]:
    """Some of the tensors, whole, on the first rank of the axis."""
    whole: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        split = isinstance(tensor, DTensor) and Shard(0) in tensor.placements
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        (rows if split else whole)[name] = local.detach().to(torch.bfloat16)
    first = mesh.get_local_rank(axis) == 0
    if rows:
        shares = _share_sizes({name: tensors[name] for name in rows}, mesh.size(axis))
        received = _send(rows, max(map(sum, shares)), mesh.get_group(axis), first)
        if first:
            whole |= _join({name: tensors[name] for name in rows}, received, shares)
    return {name: whole[name] for name in tensors} if first else {}


def _send(
    rows: Mapping[str, Tensor], size: int, group: dist.ProcessGroup, first: bool
) -> list[Tensor]:
    """Each rank's rows one after another, bf16 [size], on the first rank; elsewhere nothing."""
    own = torch.cat([tensor.reshape(-1) for tensor in rows.values()])
    own = torch.nn.functional.pad(own, (0, size - len(own)))
    received = [torch.empty_like(own) for _ in range(group.size())] if first else []
    # As bytes, which every backend knows.
    targets = [tensor.view(torch.uint8) for tensor in received] or None
    dist.gather(own.view(torch.uint8), targets, group=group, group_dst=0)
    return received


def _join(
    tensors: Mapping[str, Tensor], received: list[Tensor], shares: list[list[int]]
) -> dict[str, Tensor]:
    pieces = [
        torch.split_with_sizes(flat[: sum(sizes)], sizes)
        for flat, sizes in zip(received, shares, strict=True)
    ]
    return {
        name: torch.cat(parts).view(tensor.shape)
        for (name, tensor), parts in zip(tensors.items(), zip(*pieces, strict=True), strict=True)
    }


def _share_sizes(tensors: Mapping[str, Tensor], ranks: int) -> list[list[int]]:
    """For each rank, how many elements of each tensor it holds: equal rows, the last ones fewer."""
    shares: list[list[int]] = []
    for rank in range(ranks):
        sizes = []
        for tensor in tensors.values():
            rows = tensor.shape[0]
            step = -(-rows // ranks)
            held = max(0, min(step, rows - rank * step))
            sizes.append(held * prod(tensor.shape[1:]))
        shares.append(sizes)
    return shares


def _messages(tensors: Mapping[str, Tensor], message_bytes: int) -> Iterator[list[str]]:
    """Names in their order, cut where their bf16 values would pass `message_bytes`."""
    names: list[str] = []
    room = message_bytes
    for name, tensor in tensors.items():
        nbytes = 2 * tensor.numel()
        if names and nbytes > room:
            yield names
            names, room = [], message_bytes
        names.append(name)
        room -= nbytes
    if names:
        yield names
