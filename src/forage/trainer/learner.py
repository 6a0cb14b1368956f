"""One update: this rank's share of a batch to gradients, over all ranks to the next policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forage.trainer.algorithms import Algorithm, LossSettings, Tokens
from forage.trainer.algorithms.tokens import k3
from forage.trainer.batch import TrainBatch
from forage.trainer.packing import NOTHING, Packed, pack
from forage.trainer.policy import Policy
from forage.trainer.ranks import Ranks
from forage.trainer.scorer import Scorer


@dataclass(slots=True)
class Tally:
    """What was seen of sampled tokens, for the report; it stays on the device until read."""

    tokens: int = 0
    _sums: list[Tensor] = field(default_factory=list)
    _mismatches: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def add(self, tokens: Tokens, entropy: Tensor, clip: float) -> None:
        """Count one micro-batch."""
        ratio = (tokens.logprobs - tokens.old).exp()
        clipped = ((ratio < 1 - clip) | (ratio > 1 + clip)).double().sum()
        kl = torch.zeros_like(clipped)
        if tokens.reference is not None:
            kl = k3(tokens.logprobs, tokens.reference).double().sum()
        self.tokens += len(ratio)
        self._sums.append(torch.stack([kl, entropy.double().sum(), clipped]))
        self._mismatches.append((tokens.old - tokens.engine).abs())

    def sums(self) -> tuple[float, float, float]:
        """KL and entropy in nats, and how many ratios were clipped, each over all tokens."""
        if not self._sums:
            return 0.0, 0.0, 0.0
        kl, entropy, clipped = torch.stack(self._sums).sum(dim=0).tolist()
        return kl, entropy, clipped

    def mismatch(self) -> NDArray[np.float32]:
        """|log p(trainer) - log p(engine)| of each token, float32 [tokens]."""
        if not self._mismatches:
            return np.empty(0, np.float32)
        found: NDArray[np.float32] = torch.cat(self._mismatches).cpu().numpy()
        return found


class Learner:
    """Applies an algorithm to a policy, alike on every rank."""

    def __init__(
        self,
        policy: Policy,
        scorer: Scorer,
        reference: Scorer | None,
        algorithm: Algorithm,
        settings: LossSettings,
        ranks: Ranks,
        *,
        temperature: float,
        micro_batch_tokens: int,
    ) -> None:
        """`scorer` runs the policy's model, `reference` the frozen one (None at KL 0)."""
        self.policy = policy
        self._scorer = scorer
        self._reference = reference
        self._algorithm = algorithm
        self._settings = settings
        self._ranks = ranks
        self._temperature = temperature
        self._micro_batch_tokens = micro_batch_tokens

    def update(self, batch: TrainBatch, minibatches: int, max_norm: float) -> tuple[Tally, float]:
        """Take `minibatches` optimizer steps over the whole batch, each on another part of it.

        Returns:
            What was seen of this rank's share, and the largest unclipped gradient norm; one that
            isn't finite ends the update, and moves nothing.
        """
        parts = [batch.take(range(i, len(batch), minibatches)) for i in range(minibatches)]
        shares = [part.share(self._ranks.rank, self._ranks.size) for part in parts]
        # With one step the policy is its own old self; else its probabilities are taken first.
        olds = [self._old(share) for share in shares] if minibatches > 1 else [None]
        tally, norm = Tally(), 0.0
        for share, old in zip(shares, olds, strict=True):
            if self.accumulate(share, tally, old):
                found = self.policy.step(max_norm)
                if not math.isfinite(found):
                    return tally, found
                norm = max(norm, found)
        return tally, norm

    def accumulate(self, share: TrainBatch, tally: Tally, old: list[Tensor] | None = None) -> float:
        """Leave the gradient over all ranks' shares in `policy.gradient`, on every rank.

        Returns:
            What the summed losses were divided by; 0 if no rank had anything to train on.
        """
        (denominator,) = self._ranks.sums([self._algorithm.denominator(share)])
        if denominator == 0:
            return 0.0
        for index, packed in enumerate(self._packed(share)):
            logprobs, entropy = self._scorer(packed, self._temperature)
            tokens = Tokens(
                logprobs=logprobs,
                old=logprobs.detach() if old is None else old[index],
                engine=packed.engine,
                reference=self._score_reference(packed),
                advantages=packed.advantages,
            )
            tally.add(tokens, entropy, self._settings.clip)
            loss = self._algorithm.loss(tokens, self._settings) / denominator
            loss.backward()  # type: ignore[no-untyped-call]
        self._ranks.sum_copies_(self.policy.gradient)
        return denominator

    def _packed(self, share: TrainBatch) -> list[Packed]:
        """The micro-batches, all on the device before the first is computed.

        Ranks that hold one copy together gather its layers together, so that they need equally
        many.
        """
        device = self.policy.device
        packs = [pack(micro, device) for micro in share.micro_batches(self._micro_batch_tokens)]
        if self._ranks.shard > 1:
            missing = self._ranks.most(len(packs)) - len(packs)
            packs += [pack(NOTHING, device)] * missing
        return packs

    @torch.no_grad()
    def _score_reference(self, packed: Packed) -> Tensor | None:
        if self._reference is None:
            return None
        logprobs: Tensor = self._reference(packed, self._temperature)[0]
        return logprobs

    @torch.no_grad()
    def _old(self, share: TrainBatch) -> list[Tensor]:
        """The policy's log-probabilities now, by micro-batch."""
        return [self._scorer(packed, self._temperature)[0] for packed in self._packed(share)]
