"""Which engine generates. Imports neither torch nor vLLM: the driver asks it too."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from forage.errors import UserError

OLDEST_VLLM = (0, 25)
"""The oldest vLLM whose interfaces are those that are used."""


def use_vllm(generation: str, *, gpu: bool) -> bool:
    """Whether vLLM generates here, rather than PyTorch.

    Args:
        generation: `torch`, `vllm`, or `auto`: vLLM where there is a GPU and it is installed.
        gpu: whether there is a GPU.

    Raises:
        UserError: if vLLM is to generate but can't, or is too old.
    """
    if generation == "torch" or (generation == "auto" and not gpu):
        return False
    if not gpu:
        raise UserError(
            "--generation vllm needs a GPU in every rollout executor; give them one with "
            "--rollout-resources cpu=8,gpu=1, or use --generation torch"
        )
    installed = vllm_version()
    if installed is None:
        if generation == "auto":
            return False
        raise UserError(
            "--generation vllm: vLLM is not installed; pip install 'forage-rl[vllm]', or use "
            "--generation torch"
        )
    if _numbers(installed) < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        raise UserError(
            f"vLLM {installed} is too old; pip install 'vllm>={oldest}', or use --generation torch"
        )
    return True


def vllm_version() -> str | None:
    """The version of the installed vLLM, if any."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
