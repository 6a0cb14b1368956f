"""Generation with vLLM, in this process and on its one GPU.

Each turn of a row is one request that begins with all its tokens so far; vLLM's prefix cache has
most of them. Token ids go in, token ids come out, with their log-probabilities under the
distribution that they were drawn from (at temperature 0: under the model's own). vLLM draws one
token ahead of what its caller has seen; what it drew for a row after the last token wanted is
dropped.

Draws are seeded by the sample's stream where that costs nothing, but which rows share a pass
changes the last bits of a GPU's results: draws are not promised to repeat.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forage.errors import UserError
from forage.model.memory import clear_when_full
from forage.rollout.choice import vllm_version
from forage.rollout.engine import Draw
from forage.rollout.memory import Need, cache_bytes, check_free
from forage.rollout.vllm_model import need_of
from forage.rollout.vllm_views import (
    checkpoint_shapes,
    checkpoint_views,
    differing,
    whole_tensors,
)

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: its parameters are patched here
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # for top-k and top-p alone, compiled on first use
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Environment that vLLM reads when it is imported."""

STEPS_AHEAD = 4
"""More passes than vLLM ever has under way."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Row:
    """One sequence: its tokens, and the request that draws for it, if any."""

    stream: np.uint64 | None
    ids: list[int]
    request: str | None = None


class VllmEngine:
    """An `Engine` over vLLM; construct and use it in one thread.

    Attributes:
        llm: vLLM's engine.
    """

    reproducible = False

    def __init__(
        self,
        folder: Path,
        *,
        temperature: float,
        max_tokens: int,
        max_batch: int,
        gpu_memory: float,
        seed: int,
        eager: bool = False,
    ) -> None:
        """Load a model and prove that its weights can be patched in place.

        Args:
            folder: the model in Hugging Face layout, with safetensors files.
            temperature: of sampled draws, > 0.
            max_tokens: of a row.
            max_batch: rows at once.
            gpu_memory: share of the GPU's memory that may be used.
            seed: of draws without a seed of their own.
            eager: start at once and run slower: nothing is compiled or captured.

        Raises:
            UserError: if the model doesn't fit, or vLLM can't load it.
        """
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._rows: dict[int, Row] = {}
        self._drawing: dict[str, Row] = {}
        self._row_of: dict[str, int] = {}
        self._ended: list[str] = []
        self._names = itertools.count()
        free, total = torch.cuda.mem_get_info()
        need = need_of(folder, max_batch=max_batch, max_tokens=max_tokens, total=total)
        cache = cache_bytes(need, total, gpu_memory)
        check_free(need, cache, free)
        with _clear_errors(folder):
            self.llm = _start(folder, need, cache, seed, eager)
        self._core: Any = self.llm.engine_core
        self._seeded = bool(getattr(self.llm.vllm_config, "use_v2_model_runner", False))
        self._model: torch.nn.Module = self.llm.apply_model(lambda model: model)[0]
        self._tensors, self._copies = _provable(self._model, folder)

    def start(self, row: int, prompt: Sequence[int], stream: np.uint64 | None) -> None:
        """See `Engine.start`."""
        self._rows[row] = Row(stream, list(prompt))
        self._request(row)

    def extend(self, row: int, ids: Sequence[int]) -> None:
        """See `Engine.extend`."""
        self._rows[row].ids += ids
        self._request(row)

    def pause(self, row: int) -> None:
        """See `Engine.pause`."""
        state = self._rows[row]
        if state.request is not None:
            del self._drawing[state.request], self._row_of[state.request]
            self._ended.append(state.request)
            state.request = None

    def finish(self, row: int) -> None:
        """See `Engine.finish`."""
        self.pause(row)
        del self._rows[row]

    def step(self) -> list[Draw]:
        """See `Engine.step`: every row that has been read draws.

        Raises:
            UserError: if the GPU's memory runs out.
        """
        self._end_requests()
        if not self._drawing:
            return []
        draws = []
        with _clear_errors(None):
            outputs = self._core.get_output().outputs
        for output in outputs:
            request = output.request_id
            state = self._drawing.get(request)
            if state is None:
                continue
            if not output.new_token_ids:
                raise RuntimeError(f"vLLM ended a request without a token: {output.finish_reason}")
            token = output.new_token_ids[0]
            state.ids.append(token)
            draws.append(
                Draw(self._row_of[request], token, float(output.new_logprobs.logprobs[0][0]))
            )
        return draws

    def tensors(self) -> dict[str, Tensor]:
        """See `Engine.tensors`: views of vLLM's parameters, whole copies where that can't be."""
        return self._tensors

    def weights_changed(self) -> None:
        """See `Engine.weights_changed`: loads what isn't a view, and empties the prefix cache."""
        self._end_requests()
        for _ in range(STEPS_AHEAD):
            self._core.get_output()
        if self._copies:
            load: Any = self._model.load_weights
            load((name, self._tensors[name]) for name in self._copies)
        torch.cuda.synchronize()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM refused to empty its prefix cache: requests still use it")

    def _request(self, row: int) -> None:
        """Ask vLLM for the tokens that follow a row's."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        state = self._rows[row]
        greedy = state.stream is None
        params = SamplingParams(
            temperature=0.0 if greedy else self._temperature,
            seed=int(state.stream) >> 1 if self._seeded and state.stream is not None else None,
            max_tokens=self._max_tokens - len(state.ids),
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
        prompt = {"type": "token", "prompt_token_ids": list(state.ids)}
        state.request = self.llm.add_request(str(next(self._names)), prompt, params)
        self._drawing[state.request] = state
        self._row_of[state.request] = row

    def _end_requests(self) -> None:
        if self._ended:
            self.llm.abort_request(self._ended, internal=True)
            self._ended = []


def _start(folder: Path, need: Need, cache: int, seed: int, eager: bool) -> Any:
    """VLLM's engine, in this process."""
    os.environ |= SETTINGS
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=seed % (1 << 32),
        max_model_len=need.max_tokens,
        max_num_seqs=_with_graph(need.max_batch),
        max_num_batched_tokens=need.step_tokens,
        kv_cache_memory_bytes=cache,
        # Only the cache is sized by it, and that is given; but as much has to be free.
        gpu_memory_utilization=0.01,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=True,
        enforce_eager=eager,
    )
    return LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)


def _with_graph(rows: int) -> int:
    """`rows`, and as many more as it takes to reach a batch that vLLM captures a CUDA graph of.

    It captures one for every 8 rows, above 256 for every 16, up to `max_num_seqs` and to 512. A
    larger batch is launched layer by layer, which takes longer than the GPU does.
    """
    step = 8 if rows <= 256 else 16
    return -(-rows // step) * step


def _provable(model: torch.nn.Module, folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by checkpoint name, and the names of those that are copies and no views.

    Raises:
        UserError: if none of vLLM's parameters is as the checkpoint has it.
    """
    shapes = checkpoint_shapes(folder)
    views = checkpoint_views(model, shapes)
    for name in differing(views, folder):
        del views[name]
    if not views:
        raise UserError(
            f"vLLM {vllm_version()} keeps the weights of {folder} in a layout of its own, which "
            "can't be updated; use another version, or --generation torch"
        )
    copies = sorted(shapes.keys() - views.keys())
    if copies:
        _log.warning(
            "%d of %d tensors can't be patched in vLLM's memory and are loaded whole: %s",
            len(copies),
            len(shapes),
            ", ".join(copies[:5]),
        )
    device = next(iter(views.values())).device
    return views | whole_tensors(folder, copies, device), copies


@contextmanager
def _clear_errors(folder: Path | None) -> Iterator[None]:
    """Turn what can go wrong in vLLM by a user's choices into one line."""
    try:
        with clear_when_full("generation", "lower --gpu-memory, --max-batch or --max-tokens"):
            yield
    except (ValueError, NotImplementedError) as error:
        if folder is None:
            raise
        raise UserError(
            f"vLLM {vllm_version()} can't load {folder}: {_reason(error)}; use --generation torch"
        ) from error


def _reason(error: Exception) -> str:
    """The first line that says something; vLLM's configurations are checked by pydantic."""
    found: list[dict[str, Any]] = getattr(error, "errors", list)()
    text = found[0]["msg"] if found else str(error).strip() or type(error).__name__
    return str(text).splitlines()[0]
