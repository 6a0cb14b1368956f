"""Load a policy and its tokenizer from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from forage.errors import UserError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


def compute_dtype(device: torch.device) -> torch.dtype:
    """bf16 on a GPU. On a CPU fp32, whose values are still those of the bf16 policy."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def default_device() -> torch.device:
    """The GPU that this executor was given, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the weights.

    Raises:
        UserError: if there is none that transformers can read.
    """
    try:
        return AutoTokenizer.from_pretrained(**_source(model))
    except KeyError as error:
        raise UserError(f"model {model}: its tokenizer's files lack {error}") from error
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"model {model}: no tokenizer could be loaded ({_first(error)})") from error


def model_config(model: str) -> dict[str, Any]:
    """The model's configuration, of a model of several kinds the text model's.

    Raises:
        UserError: if transformers can't read it.
    """
    try:
        config = AutoConfig.from_pretrained(**_source(model))
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"model {model}: cannot be loaded ({_first(error)})") from error
    found: dict[str, Any] = config.get_text_config().to_dict()
    return found


def load_policy(model: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The causal language model in evaluation mode, its weights rounded to bf16.

    Args:
        model: a folder in Hugging Face layout, or a `.gguf` file.
        dtype: fp32 keeps the bf16 values in fp32 storage; bf16 stores them as they are.
        device: where the parameters lie.

    Raises:
        UserError: if transformers can't load it.
    """
    try:
        policy, report = AutoModelForCausalLM.from_pretrained(
            **_source(model),
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(f"model {model}: cannot be loaded ({_first(error)})") from error
    _check_whole(model, report)
    if Path(model).suffix == ".gguf":
        _forget_quantization(policy)
    round_to_bf16(policy)
    # The dtype stays as loaded: buffers, such as rotary frequencies, are fp32 in every policy.
    return policy.to(device).eval()


def _check_whole(model: str, report: Mapping[str, Any]) -> None:
    """Refuse a model some of whose weights transformers would replace by random numbers."""
    if lacking := sorted(report["missing_keys"]):
        raise UserError(
            f"model {model}: {len(lacking)} of its weights are missing ({lacking[0]}, ...); get "
            "the files again"
        )
    if others := sorted(report["mismatched_keys"], key=str):
        name, found, wanted = others[0]
        raise UserError(
            f"model {model}: {len(others)} of its weights don't have the sizes that config.json "
            f"tells ({name}: {[*found]}, not {[*wanted]}); get the files again"
        )


@torch.no_grad()
def round_to_bf16(policy: torch.nn.Module) -> None:
    """Round every parameter to its nearest bf16 value, in place."""
    for parameter in policy.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def end_token_ids(
    generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Ids that end a turn; all that a model's generation config is used for."""
    named = generation.eos_token_id if generation else None
    ids = [] if named is None else [named] if isinstance(named, int) else list(named)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def save_policy(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights (bf16), configuration and tokenizer in Hugging Face layout.

    `tensors` take the place of the policy's own, which of a sharded policy are parts only.
    """
    own = policy.state_dict() if tensors is None else tensors
    state = {name: tensor.to(torch.bfloat16) for name, tensor in own.items()}
    policy.save_pretrained(folder, state_dict=state)
    # transformers writes down the dtype that the model computes in.
    config = copy.deepcopy(policy.config)
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _forget_quantization(policy: PreTrainedModel) -> None:
    """Loading a GGUF file leaves plain weights, but a mark that forbids saving them."""
    policy.hf_quantizer = None
    policy.is_quantized = False
    del policy.config.quantization_config


def _source(model: str) -> dict[str, Any]:
    """Arguments of `from_pretrained`; never a download."""
    path = Path(model)
    if path.suffix == ".gguf":
        return {
            "pretrained_model_name_or_path": str(path.parent),
            "gguf_file": path.name,
            "local_files_only": True,
        }
    return {"pretrained_model_name_or_path": model, "local_files_only": True}


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
