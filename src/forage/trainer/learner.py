"""One update: this rank's share of a batch to gradients, over all ranks to the next policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from forage.trainer.algorithms import Algorithm, LossSettings, Tokens
from forage.trainer.algorithms.tokens import k3
from forage.trainer.batch import TrainBatch
from forage.trainer.logprobs import score
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks


@dataclass(slots=True)
class Tally:
    """Sums over sampled tokens, for the report."""

    tokens: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    mismatch: list[NDArray[np.float32]] = field(default_factory=list)

    @torch.no_grad()
    def add(self, tokens: Tokens, entropy: Tensor, clip: float) -> None:
        """Count one micro-batch."""
        ratio = (tokens.logprobs - tokens.old).exp()
        self.tokens += len(ratio)
        self.entropy += float(entropy.sum())
        self.clipped += float(((ratio < 1 - clip) | (ratio > 1 + clip)).sum())
        if tokens.reference is not None:
            self.kl += float(k3(tokens.logprobs, tokens.reference).sum())
        self.mismatch.append((tokens.old - tokens.engine).abs().cpu().numpy())


class Learner:
    """Applies an algorithm to a policy, alike on every rank."""

    def __init__(
        self,
        policy: Policy,
        reference: PreTrainedModel | None,
        algorithm: Algorithm,
        settings: LossSettings,
        ranks: Ranks,
        *,
        temperature: float,
        micro_batch_tokens: int,
    ) -> None:
        """`reference` is the frozen model of the KL term, None at coefficient 0."""
        self.policy = policy
        self._reference = reference
        self._algorithm = algorithm
        self._settings = settings
        self._ranks = ranks
        self._temperature = temperature
        self._micro_batch_tokens = micro_batch_tokens

    def update(self, batch: TrainBatch, minibatches: int, max_norm: float) -> tuple[Tally, float]:
        """Take `minibatches` optimizer steps over the whole batch, each on another part of it.

        Returns:
            What was seen of this rank's share, and the largest unclipped gradient norm.
        """
        parts = [batch.take(range(i, len(batch), minibatches)) for i in range(minibatches)]
        shares = [part.share(self._ranks.rank, self._ranks.size) for part in parts]
        # With one step the policy is its own old self; else its probabilities are taken first.
        olds = [self._old(share) for share in shares] if minibatches > 1 else [None]
        tally, norm = Tally(), 0.0
        for share, old in zip(shares, olds, strict=True):
            if self.accumulate(share, tally, old):
                norm = max(norm, self.policy.step(max_norm))
        return tally, norm

    def accumulate(self, share: TrainBatch, tally: Tally, old: list[Tensor] | None = None) -> float:
        """Leave the gradient over all ranks' shares in `policy.gradient`, on every rank.

        Returns:
            What the summed losses were divided by; 0 if no rank had anything to train on.
        """
        (denominator,) = self._ranks.sums([self._algorithm.denominator(share)])
        for index, micro in enumerate(share.micro_batches(self._micro_batch_tokens)):
            scores = score(self.policy.model, micro, self._temperature)
            tokens = self._tokens(micro, scores.logprobs, old[index] if old else None)
            tally.add(tokens, scores.entropy, self._settings.clip)
            loss = self._algorithm.loss(tokens, self._settings) / denominator
            loss.backward()  # type: ignore[no-untyped-call]
            self.policy.collect_gradients()
        self._ranks.sum_(self.policy.gradient)
        return denominator

    def _tokens(self, micro: TrainBatch, logprobs: Tensor, old: Tensor | None) -> Tokens:
        device = logprobs.device
        sampled = micro.mask.astype(bool)
        per_token = np.repeat(micro.advantages, micro.lengths)[sampled]
        return Tokens(
            logprobs=logprobs,
            old=logprobs.detach() if old is None else old,
            engine=torch.from_numpy(micro.logprobs[sampled]).to(device),
            reference=self._score_reference(micro),
            advantages=torch.from_numpy(per_token).to(device),
        )

    @torch.no_grad()
    def _score_reference(self, micro: TrainBatch) -> Tensor | None:
        if self._reference is None:
            return None
        return score(self._reference, micro, self._temperature).logprobs

    @torch.no_grad()
    def _old(self, share: TrainBatch) -> list[Tensor]:
        """The policy's log-probabilities now, by micro-batch."""
        return [
            score(self.policy.model, micro, self._temperature).logprobs
            for micro in share.micro_batches(self._micro_batch_tokens)
        ]
