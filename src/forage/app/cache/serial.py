"""Values as bytes, with the memory of arrays and tensors kept apart.

A payload is one frame, the same in a file and in a message:

    magic, length of the pickle, number of buffers, length of each buffer    (little-endian)
    the pickle (cloudpickle, protocol 5)
    the buffers, each starting at a multiple of 64 bytes

so that a reader who maps the file gets arrays and tensors that lie in the mapping: nothing is
copied but the pickle. Neither numpy nor torch is imported here; a value that holds an array or
a tensor has already imported its library, and its dtype does so where it is read.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle

from forage.app.cache.blame import explain_unpicklable

INLINE_LIMIT = 128 * 1024
"""Bytes up to which a value travels inside a message instead of through a file."""

_MAGIC = b"FORAGE\x01\x00"
_HEAD = struct.Struct("<8sQQ")
_ALIGNMENT = 64
_PLAIN_KINDS = "biufcSUVMm"  # numpy dtypes whose elements are their bytes


class Pieces(NamedTuple):
    """A value's pickle and buffers where they don't lie in one frame; each buffer is aligned."""

    pickled: memoryview
    buffers: Sequence[memoryview]


Frame = bytes | bytearray | memoryview | Pieces


class Payload:
    """A serialised value whose buffers still lie in the value itself; write it out soon."""

    def __init__(self, pickled: memoryview, buffers: Sequence[pickle.PickleBuffer]) -> None:
        self._pickled = pickled
        self._buffers = [buffer.raw() for buffer in buffers]
        sizes = [len(buffer) for buffer in self._buffers]
        self._head = _HEAD.pack(_MAGIC, len(pickled), len(sizes)) + struct.pack(
            f"<{len(sizes)}Q", *sizes
        )
        end = len(self._head) + len(pickled)
        for size in sizes:
            end = _aligned(end) + size
        self.nbytes = end
        """Length of the whole frame in bytes."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the frame piece by piece, without copying it together."""
        yield self._head
        yield self._pickled
        end = len(self._head) + len(self._pickled)
        for buffer in self._buffers:
            yield bytes(_aligned(end) - end)
            yield buffer
            end = _aligned(end) + len(buffer)

    def pieces(self) -> Pieces:
        """Return what a frame holds, apart and not copied."""
        return Pieces(self._pickled, self._buffers)

    def to_bytes(self) -> bytes:
        """Return the frame as one bytes object, for a message."""
        return b"".join(self.chunks())


def dumps(value: Any, name: str = "value") -> Payload:
    """Serialise `value`; `name` is what error messages call it.

    Raises `TypeError` naming the part that can't be pickled (`value[2].lock`) and why.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    except MemoryError:
        raise
    except Exception as error:
        raise explain_unpicklable(value, name, error, _try_pickle) from error
    return Payload(stream.getbuffer(), buffers)


def loads(frame: Frame) -> Any:
    """Rebuild the value of a frame; arrays and tensors keep lying in the frame's memory.

    Arrays are read-only. Raises `ValueError` where `frame` isn't a whole frame.
    """
    pickled, buffers = frame if isinstance(frame, Pieces) else _split(memoryview(frame))
    return pickle.loads(pickled, buffers=buffers)


def _split(view: memoryview) -> tuple[memoryview, list[memoryview]]:
    if len(view) < _HEAD.size or view[:8] != _MAGIC:
        raise ValueError(f"not a value of the object cache: {len(view)} bytes without its header")
    _, length, count = _HEAD.unpack_from(view)
    start = _HEAD.size + 8 * count
    if start + length > len(view):
        raise ValueError(f"a torn value: {len(view)} bytes of at least {start + length}")
    sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    end = start + length
    pickled, buffers = view[start:end], []
    for size in sizes:
        start = _aligned(end)
        end = start + size
        buffers.append(view[start:end])
    if end != len(view):
        raise ValueError(f"a torn value: {len(view)} bytes of {end}")
    return pickled, buffers


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _try_pickle(value: Any) -> None:
    _Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Takes arrays and CPU tensors out of band whatever their layout and dtype."""

    def reducer_override(self, obj: Any) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and type(obj) in (numpy.ndarray, numpy.memmap):
            reduced = _reduce_array(numpy, obj)
        elif torch is not None and type(obj) is getattr(torch, "Tensor", None):
            reduced = _reduce_tensor(torch, obj)
        else:
            reduced = NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _reduce_array(numpy: Any, array: Any) -> Any:
    dtype = array.dtype
    if dtype.hasobject or dtype.kind not in _PLAIN_KINDS or not dtype.itemsize:
        return NotImplemented
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = numpy.asarray(array).ravel(order).view(numpy.uint8)
    return _rebuild_array, (pickle.PickleBuffer(flat), dtype, array.shape, order)


def _rebuild_array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    numpy = sys.modules["numpy"]  # imported by the dtype
    return numpy.ndarray(shape, dtype, memoryview(buffer).toreadonly(), order=order)


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_nested:
        return NotImplemented
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
    attributes = dict(tensor.__dict__)
    return _rebuild_tensor, (
        buffer,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.requires_grad,
        attributes,
    )


def _rebuild_tensor(
    buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool, attributes: dict[str, Any]
) -> Any:
    torch = sys.modules["torch"]  # imported by the dtype
    memory = memoryview(buffer)
    if not memory.nbytes:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        # Tensors can't be marked read-only, so torch objects to read-only memory. Such memory
        # comes from messages only, and is small; a mapped file is private, writable memory.
        owned = bytearray(memory) if memory.readonly else memory
        tensor = torch.frombuffer(owned, dtype=torch.uint8).view(dtype).reshape(shape)
    tensor.__dict__.update(attributes)
    return tensor.requires_grad_(requires_grad)
