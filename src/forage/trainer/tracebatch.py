"""Written traces as a training batch: the tokens that a rollout would have left behind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from forage.agent.information import PartEncoder
from forage.agent.prompts import ChatTokenizer, PromptEncoder
from forage.agent.traces import Trace
from forage.trainer.batch import TrainBatch

Tokens = tuple[list[int], list[int]]
"""Token ids, and 1 for each that the policy writes, else 0."""


class TraceEncoder:
    """Turns traces into tokens under one tokenizer and prompt."""

    def __init__(self, tokenizer: ChatTokenizer, prompt: str) -> None:
        """`prompt` is the name of a prompt, as in rollouts."""
        self._prompt = PromptEncoder(tokenizer, prompt)
        self._special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self._encode = PartEncoder(tokenizer)

    def encode(self, trace: Trace) -> Tokens | None:
        """The tokens of a trace behind its prompt.

        None if what the policy writes holds a special token: a quotation of one can't be told
        from the thing itself.
        """
        ids = self._prompt(trace.question)
        mask = [0] * len(ids)
        for text, trusted, own in trace.parts:
            piece = self._encode.piece(text, trusted)
            if own and not self._special.isdisjoint(piece):
                return None
            ids += piece
            mask += [int(own)] * len(piece)
        return ids, mask


def trace_batch(traces: Iterable[Tokens]) -> TrainBatch:
    """Traces end to end, every written token to be made likelier: all advantages are 1."""
    listed = list(traces)
    ids, masks = ([token for pair in listed for token in pair[side]] for side in (0, 1))
    return TrainBatch(
        token_ids=np.array(ids, np.int32),
        mask=np.array(masks, np.uint8),
        logprobs=np.zeros(len(ids), np.float32),
        offsets=np.cumsum([0, *(len(tokens) for tokens, _ in listed)]).astype(np.int64),
        advantages=np.ones(len(listed), np.float32),
    )
