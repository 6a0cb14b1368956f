"""The trainer as a service. Importing it is cheap: the driver does, and it imports no torch."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forage import app
from forage.errors import UserError
from forage.trainer.batch import TrainBatch
from forage.trainer.memory import training_fits

if TYPE_CHECKING:
    import torch

    from forage.trainer.learner import Tally
    from forage.trainer.memory import MemoryPlan
    from forage.trainer.scorer import Scorer
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
        micro_batch_tokens: tokens per forward pass, at most (fewer where memory is short).
        longest: tokens of the longest sample that there may be.
        shard: trainers that hold one copy of the model together.
        gpu_share: of a GPU's memory that this trainer may use.
        minibatches: optimizer steps per batch.
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
    longest: int
    shard: int
    gpu_share: float
    minibatches: int


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

    @training_fits()
    def __init__(self, config: TrainerConfig) -> None:
        """Load the model and join the other ranks."""
        import torch

        from forage.model.load import default_device, load_tokenizer
        from forage.trainer.algorithms import ALGORITHMS, LossSettings
        from forage.trainer.learner import Learner
        from forage.trainer.memory import let_blocks_grow
        from forage.trainer.policy import Policy
        from forage.trainer.ranks import Ranks
        from forage.weights.policy import policy_digest
        from forage.weights.publish import Publisher

        let_blocks_grow()
        context = app.context()
        device = default_device()
        self._config = config
        plan = self._plan(device)
        self._ranks = Ranks(context.rank, context.size, context.rendezvous, device, config.shard)
        self._tokenizer = load_tokenizer(config.model)
        scorer = self._scorer(device, plan, frozen=False)
        self._policy = Policy(
            scorer.model,
            config.learning_rate,
            config.weight_decay,
            optimizer_device=torch.device("cpu") if plan and plan.optimizer_on_cpu else None,
        )
        self._start_digest = f"{policy_digest(self._policy.tensors()):016x}"
        self._learner = Learner(
            self._policy,
            scorer,
            self._scorer(device, plan, frozen=True) if config.kl > 0 else None,
            ALGORITHMS[config.algorithm],
            LossSettings(config.clip, config.kl),
            self._ranks,
            temperature=config.temperature,
            micro_batch_tokens=plan.micro_batch_tokens if plan else config.micro_batch_tokens,
        )
        self._publisher = Publisher(WEIGHTS, keep="cpu" if plan and plan.copy_on_cpu else "device")

    def _plan(self, device: torch.device) -> MemoryPlan | None:
        """How this trainer fits on its GPU, before anything is loaded; None on a CPU."""
        import torch

        from forage.model.facts import ModelFacts
        from forage.model.load import model_config
        from forage.trainer.memory import Workload, plan_memory

        if device.type != "cuda":
            return None
        config = self._config
        work = Workload(
            micro_batch_tokens=config.micro_batch_tokens,
            longest=config.longest,
            reference=config.kl > 0,
            shard=config.shard,
        )
        budget = config.gpu_share * torch.cuda.get_device_properties(device).total_memory
        plan = plan_memory(ModelFacts.from_config(model_config(config.model)), work, budget)
        sys.stderr.write(f"trainer memory in GiB: {plan}\n")
        return plan

    def _scorer(self, device: torch.device, plan: MemoryPlan | None, *, frozen: bool) -> Scorer:
        """The model, loaded and made ready for its device."""
        import torch

        from forage.model.load import compute_dtype, load_policy
        from forage.trainer.scorer import Scorer

        shards = self._ranks.shards
        # To be sharded it lies on the CPU: a GPU may not have room for all of it.
        whole_on = device if shards is None else torch.device("cpu")
        model = load_policy(self._config.model, compute_dtype(device), whole_on)
        scorer = Scorer(model.requires_grad_(not frozen), shards)
        if plan is not None:
            scorer.compile_layers()
            scorer.recompute(0 if frozen else plan.recompute)
        return scorer

    @training_fits()
    def restore(self, folder: str) -> None:
        """Go on from a checkpoint of this model. Called as a broadcast, before any other call.

        Raises:
            UserError: if the checkpoint is of another model.
        """
        saved = json.loads((Path(folder) / "trainer.json").read_text(encoding="utf-8"))
        if saved["reference_digest"] != self._start_digest:
            raise UserError(
                f"model {self._config.model}: is not the model that the run in {folder} started "
                "from; put that model back or start a new run"
            )
        self._policy.restore(Path(folder))

    @training_fits()
    def update(self, batch: TrainBatch | app.Ref) -> UpdateReport:
        """Train on a batch; every rank takes its share. Called as a broadcast."""
        started = time.perf_counter()
        whole = batch if isinstance(batch, TrainBatch) else app.get(batch)
        config = self._config
        if not whole.mask.any():
            return UpdateReport(lr=config.learning_rate)
        tally, norm = self._learner.update(whole, config.minibatches, config.grad_clip)
        return self._report(whole, tally, norm, time.perf_counter() - started)

    @training_fits()
    def publish(self, version: int) -> tuple[PublishReport, app.Ref] | None:
        """Publish the policy. Called as a broadcast.

        Args:
            version: that it gets, unless trainers that were lost have published as high a one:
                then one higher than theirs.

        Returns:
            The report and where the manifest lies; None on ranks other than 0. Those that hold a
            part of the first copy publish it, the others do nothing.
        """
        if self._ranks.copy > 0:
            return None
        standing = self._publisher.standing() or 0
        report = self._publisher.publish(self._policy.tensors(), max(version, standing + 1))
        assert self._publisher.manifest_ref is not None
        return (report, self._publisher.manifest_ref) if self._ranks.rank == 0 else None

    @training_fits()
    def save(self, folder: str) -> None:
        """Rank 0 writes policy (Hugging Face layout), masters, optimizer and `trainer.json`."""
        from forage.model.load import save_policy

        out, writes = Path(folder), self._ranks.rank == 0
        tensors = self._policy.whole(keep=writes)
        if writes:
            save_policy(self._policy.model, self._tokenizer, out / "policy", tensors)
        self._policy.save(out, write=writes)
        if not writes:
            return
        facts = {"reference_digest": self._start_digest}
        (out / "trainer.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    def _report(self, whole: TrainBatch, tally: Tally, norm: float, seconds: float) -> UpdateReport:
        tokens, kl, entropy, clipped = self._ranks.sums([tally.tokens, *tally.sums()])
        mismatch = self._ranks.gather(tally.mismatch())
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
