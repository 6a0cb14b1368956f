"""Whether a model can be loaded, found out from its files: the driver never loads it."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forage.errors import UserError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def check_model(model: str) -> None:
    """Raise `UserError` unless `model` is a model folder, a GGUF file or a name on the hub."""
    path = Path(model)
    if path.is_dir():
        _check_folder(path)
    elif path.suffix == ".gguf":
        _check_gguf(path)
    elif path.exists():
        raise UserError(f"--model {model}: neither a folder nor a .gguf file")
    elif HUB_NAME.fullmatch(model):
        _fetch(model, ["config.json"])
    else:
        raise UserError(
            f"--model {model}: does not exist; give a folder, a .gguf file or a hub name"
        )


def model_config(model: str) -> dict[str, Any] | None:
    """The language model's `config.json`, of a model that `check_model` accepts.

    None for a GGUF file, which keeps its configuration elsewhere.

    Raises:
        UserError: if the file can't be read.
    """
    path = Path(model)
    if path.suffix == ".gguf":
        return None
    file = (path if path.is_dir() else _fetch(model, ["config.json"])) / "config.json"
    found = _read_config(file, model)
    text: dict[str, Any] = found.get("text_config", found)
    return text


def fetch_model(model: str) -> None:
    """Have the files of a hub model on this machine; nothing to do for a model that is here."""
    if not Path(model).exists():
        _fetch(model, HUB_FILES)


def _read_config(file: Path, model: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"--model {model}: {file} can't be read as JSON") from None
    if not isinstance(found, dict):
        raise UserError(f"--model {model}: {file} holds no JSON object; get the file again")
    return found


def _check_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise UserError(f"--model {path}: the folder has no config.json; give a model's folder")
    if "model_type" not in _read_config(path / "config.json", str(path)):
        raise UserError(f"--model {path}: config.json names no model_type; get the file again")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"--model {path}: the folder has no tokenizer ({', '.join(TOKENIZER_FILES)}); "
            "save the model's tokenizer beside it"
        )
    if not any(any(path.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        raise UserError(f"--model {path}: the folder has no weights ({', '.join(WEIGHT_PATTERNS)})")
    for file in sorted(path.glob("*.safetensors")):
        if not _is_whole(file):
            raise UserError(f"--model {file}: the file is cut short or damaged; get it again")


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says, which a broken download is not.

    The layout: 8 bytes of header length, little-endian, the header as JSON, the data.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            return False
        try:
            header = json.loads(file.read(length))
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            ends = [entry["data_offsets"][1] for entry in entries]
        except (ValueError, AttributeError, KeyError, TypeError, IndexError):
            return False
    return bool(size == 8 + length + max(ends, default=0))


def _check_gguf(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"--model {path}: there is no such file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"--model {path}: not a GGUF file (it starts with something else)")
    if find_spec("gguf") is None:
        raise UserError(f"--model {path}: reading it needs pip install 'forage-rl[gguf]'")


def _fetch(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        found = snapshot_download(name, allow_patterns=patterns)
    except (OSError, HFValidationError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"--model {name}: no such folder, and the Hugging Face hub did not give it: {reason}"
        ) from error
    if not (Path(found) / "config.json").is_file():
        raise UserError(f"--model {name}: holds no config.json; give a transformers model")
    return Path(found)
