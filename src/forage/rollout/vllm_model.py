"""What vLLM is given of a model: a folder with safetensors files, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import snapshot_download

from forage.model.facts import ModelFacts, check_length
from forage.model.load import load_policy, load_tokenizer, model_config, save_policy
from forage.rollout.memory import Need, step_tokens


@contextmanager
def served_folder(model: str) -> Iterator[Path]:
    """A folder of `model` in Hugging Face layout with safetensors files.

    A model without such files (GGUF, or pickled weights) is written into a temporary one.
    """
    path = Path(model)
    if not path.exists():
        path = Path(snapshot_download(model, local_files_only=True))
    if path.is_dir() and any(path.glob("*.safetensors")):
        yield path
        return
    with TemporaryDirectory(prefix="forage-model-") as folder:
        policy = load_policy(model, torch.bfloat16, torch.device("cpu"))
        save_policy(policy, load_tokenizer(model), Path(folder))
        del policy
        yield Path(folder)


def need_of(folder: Path, *, max_batch: int, max_tokens: int, total: int) -> Need:
    """What generation with the model in `folder` needs on a GPU of `total` bytes.

    Raises:
        UserError: if the model can't read so many tokens, or is none that is known.
    """
    config = model_config(str(folder))
    check_length(config, max_tokens)
    return Need(
        facts=ModelFacts.from_config(config),
        max_batch=max_batch,
        max_tokens=max_tokens,
        step_tokens=step_tokens(total),
    )
