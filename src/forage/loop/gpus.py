"""The memory of this machine's GPUs, asked of the driver's own tool: no CUDA library is loaded."""

from __future__ import annotations

import os
import subprocess


def gpu_memories() -> list[int]:
    """Bytes of each GPU that this process may use; none where there is no NVIDIA driver."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        command += ["--id", visible]
    if visible == "":
        return []
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return [int(line) << 20 for line in told.stdout.split()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
