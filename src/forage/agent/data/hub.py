"""Data sets of the Hugging Face Hub, through the library `datasets`."""

from __future__ import annotations

from collections.abc import Iterator

from forage.agent.data.records import Record
from forage.errors import UserError

PREFIX = "hf:"


def read_hub(spec: str) -> Iterator[Record]:
    """The rows of `hf:NAME`, `hf:NAME:CONFIG` or `hf:NAME:CONFIG:SPLIT`; the split is `train`.

    Raises:
        UserError: if `datasets` is not installed, or can't load the data set (with its reason).
    """
    try:
        import datasets
    except ImportError:
        raise UserError(f"{spec!r} needs datasets: pip install 'forage-rl[hub]'") from None
    name, config, split, *rest = (*spec.removeprefix(PREFIX).split(":"), "", "")
    if not name or any(rest):
        raise UserError(f"{spec!r} must look like hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train")
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"can't load {spec!r}: {reason}") from error
    for number, row in enumerate(rows, 1):
        yield Record(f"{spec} row {number}", row)
