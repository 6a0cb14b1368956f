"""bm25s, imported so that it leaves the GPU to the model.

Where jax is installed bm25s runs it once at import, and jax takes most of a GPU's memory for
itself. Nothing here needs jax; it is told to stay on the CPU before bm25s can start it.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import bm25s

__all__ = ["bm25s"]
