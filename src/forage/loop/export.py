"""A trained policy as a folder of its own, for any program that reads Hugging Face models."""

from __future__ import annotations

import shutil
from pathlib import Path

from forage.errors import UserError
from forage.loop.targets import find_target


def export(source: str, out: str) -> Path:
    """Copy the policy of a run or checkpoint to the new folder `out`; returns it.

    Raises:
        UserError: if there is no policy to export, or `out` exists.
    """
    target, folder = find_target(source), Path(out)
    if target.config is None:
        raise UserError(f"{source}: neither a run nor a checkpoint; give one of the two")
    if folder.exists():
        raise UserError(f"--out {out}: exists already; choose a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(target.model, part)
    part.rename(folder)
    return folder
