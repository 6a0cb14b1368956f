"""Files as memory, without a descriptor for each.

Python's `mmap` keeps a duplicate of the descriptor for the life of the mapping (until 3.13's
`trackfd=False`), so a process that holds many values would run out of them. Calling the C
library's `mmap` lets the descriptor be closed at once.

The mapping is private: the file can't be changed through it. A tensor, which knows no read-only
flag, may still be written to; the kernel then copies that page for this process alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

# The kernel allows a process 65,530 mappings (vm.max_map_count) and the interpreter needs some.
MAX_MAPPINGS = 32_768

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value

_live: set[int] = set()


def room_for_mapping() -> bool:
    """Whether this process may map one more file; past `MAX_MAPPINGS` files are to be read."""
    return len(_live) < MAX_MAPPINGS


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """Map the first `nbytes` (> 0) of an open file; the caller may close it afterwards.

    The mapping ends when the last view of the returned memory is gone.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, nbytes, protection, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"can't map {nbytes} bytes: {os.strerror(code)}")
    _live.add(address)
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _unmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


def _unmap(address: int, nbytes: int) -> None:
    _live.discard(address)  # first: once unmapped, another thread may get the same address
    _libc.munmap(address, nbytes)
