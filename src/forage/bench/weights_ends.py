"""The two ends of `forage bench weights`: one process publishes a policy, one follows it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from forage import app
from forage.bench.shapes import build, shape_of
from forage.model.load import default_device
from forage.weights import PublishReport
from forage.weights.policy import policy_tensors
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""Projections that vLLM keeps as rows of one parameter."""

DEVIATION = 0.02
"""Of random weights."""


@dataclass(frozen=True, slots=True)
class Published:
    """A publication, and the time of day when it began."""

    report: PublishReport
    manifest: app.Ref
    began: float


@dataclass(frozen=True, slots=True)
class Followed:
    """A version fetched and applied: seconds of each, bytes, and the time of day when it was held.

    Attributes:
        pause_s: seconds in which an engine couldn't have generated.
    """

    stage_s: float
    pause_s: float
    nbytes: int
    held: float


@app.service(resreq="cpu=1", warmup=1, max_executors=1)
class Source:
    """A trainer's side: random weights, and the publisher."""

    def __init__(self, shape: str, seed: int) -> None:
        device = default_device()
        torch.manual_seed(seed)
        self._policy = {
            name: torch.randn(size, dtype=torch.bfloat16, device=device).mul_(DEVIATION)
            for name, size in shapes_of(shape).items()
        }
        self._publisher = Publisher("bench")

    def publish(self, version: int, whole: bool) -> Published:
        """Publish the next version, whole as a new publisher does or else as a delta."""
        if whole:
            self._publisher = Publisher("bench")
        _synchronize()
        began = time.time()
        report = self._publisher.publish(self._policy, version)
        assert self._publisher.manifest_ref is not None
        return Published(report, self._publisher.manifest_ref, began)

    def change(self, share: float) -> None:
        """Move a random share of the weights to a neighbour in bf16, as small updates do."""
        for tensor in self._policy.values():
            chosen = torch.rand(tensor.shape, device=tensor.device) < share
            tensor.view(torch.int16).bitwise_xor_(chosen.to(torch.int16))

    def save(self, folder: str) -> None:
        """Write the weights, past publisher and object cache."""
        save_file(self._policy, Path(folder) / "policy.safetensors")

    def copy(self) -> float:
        """Seconds that a plain copy of all weights takes on their device, the best of five."""
        times = []
        for _ in range(5):
            _synchronize()
            began = time.perf_counter()
            for tensor in self._policy.values():
                tensor.clone()
            _synchronize()
            times.append(time.perf_counter() - began)
        return min(times)


@app.service(resreq="cpu=1", warmup=1, max_executors=1)
class Sink:
    """A rollout's side: parameters fused as in vLLM, or vLLM itself, and the subscriber."""

    def __init__(self, shape: str, vllm: bool, gpu_memory: float) -> None:
        self._device = default_device()
        self._engine = None
        if vllm:
            from forage.rollout.vllm_engine import VllmEngine

            with TemporaryDirectory() as folder:
                self._engine = VllmEngine(
                    build(shape, Path(folder), seed=1),
                    temperature=1.0,
                    max_tokens=2048,
                    max_batch=64,
                    gpu_memory=gpu_memory,
                    seed=0,
                    eager=True,
                )
            self._tensors = self._engine.tensors()
        else:
            self._tensors = fused_views(shapes_of(shape), self._device)
        self._subscriber: Subscriber | None = None

    def follow(self, manifest: app.Ref, version: int) -> Followed:
        """Hold the version."""
        if self._subscriber is None:
            self._subscriber = Subscriber(manifest, device=self._device)
        began = time.perf_counter()
        staged = self._subscriber.fetch(version)
        pause = time.perf_counter()
        self._subscriber.apply(staged, self._tensors)
        if self._engine is not None:
            self._engine.weights_changed()
        _synchronize()
        ended = time.perf_counter()
        return Followed(pause - began, ended - pause, staged.nbytes, time.time())

    def equals(self, folder: str) -> bool:
        """Whether every tensor equals the file that `Source.save` wrote, bit for bit."""
        with safe_open(Path(folder) / "policy.safetensors", "pt") as saved:
            return set(saved.keys()) == set(self._tensors) and all(
                torch.equal(
                    saved.get_tensor(name).to(self._device).view(torch.int16),
                    tensor.view(torch.int16),
                )
                for name, tensor in self._tensors.items()
            )


def shapes_of(shape: str) -> dict[str, torch.Size]:
    """The policy's tensors of a named shape."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_of(shape).config())
    return {name: tensor.shape for name, tensor in policy_tensors(model).items()}


def fused_views(shapes: dict[str, torch.Size], device: torch.device) -> dict[str, Tensor]:
    """bf16 zeros by checkpoint name: row slices of parameters that are fused as in vLLM."""
    rows: dict[str, int] = {}
    places = {}
    for name, size in shapes.items():
        fused = ".".join(FUSED.get(word, word) for word in name.split("."))
        places[name] = (fused, rows.get(fused, 0))
        rows[fused] = rows.get(fused, 0) + size[0]
    tails = {fused: shapes[name][1:] for name, (fused, _) in places.items()}
    parameters = {
        fused: torch.zeros((count, *tails[fused]), dtype=torch.bfloat16, device=device)
        for fused, count in rows.items()
    }
    return {
        name: parameters[fused][first : first + shapes[name][0]]
        for name, (fused, first) in places.items()
    }


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
