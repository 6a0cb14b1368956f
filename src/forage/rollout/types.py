"""What goes into the rollout service and comes out. Imports no torch: the driver has it too."""

from __future__ import annotations

from dataclasses import dataclass

from forage import app
from forage.agent.types import Question
from forage.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """What a rollout executor needs to know.

    Attributes:
        model: folder in Hugging Face layout, or `.gguf` file.
        retriever: index folder, or URL of a retrieval server.
        prompt: name of a prompt template.
        reward: `em`, `f1` or `module:function`.
        top_k: passages per search.
        max_searches, max_turn_tokens, max_tokens: see `forage.rollout.sample.Limits`.
        temperature: of sampled draws.
        seed: names the draws.
        max_batch: samples generated at once.
        generation: `auto`, `torch` or `vllm`, see `forage.rollout.choice.use_vllm`.
        gpu_memory: share of its GPU's memory that vLLM may use.
    """

    model: str
    retriever: str
    prompt: str
    reward: str
    top_k: int
    max_searches: int
    max_turn_tokens: int
    max_tokens: int
    temperature: float
    seed: int
    max_batch: int
    generation: str
    gpu_memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Questions to answer, and with which policy.

    Attributes:
        purpose: `train` or `eval`; with `step`, part of the name of every draw.
        samples: per question.
        greedy: draw the likeliest token instead of sampling.
        manifest: where the published weights' manifest lies; None for the model as loaded.
        weight_version: the version to answer with, 0 for the model as loaded.
    """

    purpose: str
    step: int
    questions: tuple[Question, ...]
    samples: int
    greedy: bool
    manifest: app.Ref | None
    weight_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult:
    """What came of a call.

    Attributes:
        trajectories: in question order, `samples` each.
        weight_version: that wrote them.
        sync_s: seconds until the executor held that version.
        pause_s: of them, those in which the executor could generate nothing.
        synced_bytes: bytes fetched for it.
        busy_s: seconds that the executor worked since the last result; calls overlap, these don't.
    """

    trajectories: tuple[Trajectory, ...]
    weight_version: int
    sync_s: float
    pause_s: float
    synced_bytes: int
    busy_s: float
