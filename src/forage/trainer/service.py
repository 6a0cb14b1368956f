"""The trainer as a service. Importing it is cheap: the driver does, and it imports no torch."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forage import app
from forage.errors import UserError
from forage.trainer.batch import TrainBatch

if TYPE_CHECKING:
    from forage.trainer.learner import Tally
    from forage.weights import PublishReport

WEIGHTS = "weights"
"""Prefix of the published policy's keys in the object cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What a trainer needs to know.

    Attributes:
        model: the starting policy and the reference of the KL term.
        algorithm: name in `forage.trainer.algorithms.ALGORITHMS`.
        learning_rate, weight_decay: of AdamW.
        clip: ratios are clipped to 1 ± clip.
        kl: coefficient of the KL term; 0 keeps no reference model.
        grad_clip: largest gradient norm.
        temperature: that samples are drawn at.
        micro_batch_tokens: tokens per forward pass, padding included.
        minibatches: optimizer steps per batch.
        restore: checkpoint folder to continue from.
        weight_version: that was published last; the next publication is one higher.
    """

    model: str
    algorithm: str
    learning_rate: float
    weight_decay: float
    clip: float
    kl: float
    grad_clip: float
    temperature: float
    micro_batch_tokens: int
    minibatches: int
    restore: str | None
    weight_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one update did, over all ranks.

    Attributes:
        updated: false if nothing carried loss; then policy and optimizer are untouched.
        kl, entropy: mean per trained token, in nats.
        clip_fraction: share of trained tokens whose ratio left 1 ± clip.
        mismatch_mean, mismatch_p99: of |log p(trainer) - log p(engine)| over trained tokens.
        grad_norm: before clipping.
        update_s: seconds.
    """

    tokens_trained: int = 0
    samples_trained: int = 0
    updated: bool = False
    kl: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    mismatch_mean: float = 0.0
    mismatch_p99: float = 0.0
    grad_norm: float = 0.0
    lr: float
    update_s: float = 0.0


@app.service(resreq="cpu=1", autoscale=False, warmup=1)
class Trainer:
    """One rank of the gang that holds the policy, its masters and its optimizer."""

    def __init__(self, config: TrainerConfig) -> None:
        """Load the model, join the other ranks, restore a checkpoint if there is one."""
        from forage.model.load import compute_dtype, default_device, load_policy, load_tokenizer
        from forage.trainer.algorithms import ALGORITHMS, LossSettings
        from forage.trainer.learner import Learner
        from forage.trainer.logprobs import check_head
        from forage.trainer.policy import Policy
        from forage.trainer.ranks import Ranks
        from forage.weights.publish import Publisher

        context = app.context()
        device = default_device()
        self._config = config
        self._ranks = Ranks(context.rank, context.size, context.rendezvous, device)
        self._tokenizer = load_tokenizer(config.model)
        model = load_policy(config.model, compute_dtype(device), device)
        check_head(model)
        reference = None
        if config.kl > 0:
            reference = load_policy(config.model, compute_dtype(device), device).requires_grad_(
                False
            )
        self._policy = Policy(model, config.learning_rate, config.weight_decay)
        self._start_digest = self._digest()
        if config.restore is not None:
            self._restore(Path(config.restore))
        self._learner = Learner(
            self._policy,
            reference,
            ALGORITHMS[config.algorithm],
            LossSettings(config.clip, config.kl),
            self._ranks,
            temperature=config.temperature,
            micro_batch_tokens=config.micro_batch_tokens,
        )
        self._publisher = Publisher(WEIGHTS)
        self._version = config.weight_version

    def update(self, batch: TrainBatch | app.Ref) -> UpdateReport:
        """Train on a batch; every rank takes its share. Called as a broadcast."""
        started = time.perf_counter()
        whole = batch if isinstance(batch, TrainBatch) else app.get(batch)
        config = self._config
        if not whole.mask.any():
            return UpdateReport(lr=config.learning_rate)
        tally, norm = self._learner.update(whole, config.minibatches, config.grad_clip)
        return self._report(whole, tally, norm, time.perf_counter() - started)

    def publish(self) -> tuple[PublishReport, app.Ref]:
        """Publish the policy under the next version; returns where its manifest lies."""
        self._version += 1
        report = self._publisher.publish(self._policy.tensors(), self._version)
        assert self._publisher.manifest_ref is not None
        return report, self._publisher.manifest_ref

    def save(self, folder: str) -> None:
        """Rank 0 writes policy (Hugging Face layout), masters, optimizer and `trainer.json`."""
        from forage.model.load import save_policy

        if self._ranks.rank != 0:
            return
        out = Path(folder)
        save_policy(self._policy.model, self._tokenizer, out / "policy")
        self._policy.save(out)
        facts = {"weight_version": self._version, "reference_digest": self._start_digest}
        (out / "trainer.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    def _restore(self, folder: Path) -> None:
        saved = json.loads((folder / "trainer.json").read_text(encoding="utf-8"))
        if saved["reference_digest"] != self._start_digest:
            raise UserError(
                f"model {self._config.model}: is not the model that the run in {folder} started "
                "from; put that model back or start a new run"
            )
        self._policy.restore(folder)

    def _digest(self) -> str:
        """One number for the whole policy, as hexadecimal."""
        from forage.weights.digest import tensor_digest

        digests = {name: tensor_digest(tensor) for name, tensor in self._policy.tensors().items()}
        total = sum(digest * (2 * index + 1) for index, digest in enumerate(digests.values()))
        return f"{total % 2**64:016x}"

    def _report(self, whole: TrainBatch, tally: Tally, norm: float, seconds: float) -> UpdateReport:
        sums = [tally.tokens, tally.kl, tally.entropy, tally.clipped]
        tokens, kl, entropy, clipped = self._ranks.sums(sums)
        own = np.concatenate(tally.mismatch) if tally.mismatch else np.empty(0, np.float32)
        mismatch = self._ranks.gather(own)
        return UpdateReport(
            tokens_trained=int(tokens),
            samples_trained=len(whole),
            updated=True,
            kl=kl / tokens,
            entropy=entropy / tokens,
            clip_fraction=clipped / tokens,
            mismatch_mean=float(mismatch.mean()),
            mismatch_p99=float(np.quantile(mismatch, 0.99)),
            grad_norm=norm,
            lr=self._config.learning_rate,
            update_s=seconds,
        )
