"""Learning from written traces: next-token prediction on what a policy should have written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from forage.agent.data.atlas.facts import Country, passages
from forage.agent.data.atlas.traces import TraceWriter, imagine
from forage.agent.information import PartEncoder
from forage.agent.prompts import PROMPTS, prompt_parts
from forage.agent.protocol import EMPTY_QUERY, information_parts, notice_parts
from forage.agent.retrieval.bm25 import BM25Index, build_index
from forage.agent.traces import Trace

BATCH = 16
WORLD = 512
"""Traces written about one set of made-up facts."""
BUCKET = 16
"""Batches that are sorted by length together."""
CONTEXT_WEIGHT = 0.3
"""Of the loss over all tokens, beside the loss over the policy's own."""
MATRIX_RATE, OTHER_RATE = 0.01, 4e-3


def fit(
    model: LlamaForCausalLM, batches: Iterator[tuple[Tensor, Tensor]], steps: int
) -> list[float]:
    """Minimise the loss for `steps` batches; returns the loss over sampled tokens of each."""
    optimizers = _optimizers(model)
    losses = []
    for step in range(steps):
        ids, sampled = next(batches)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1)
        targets = ids[:, 1:].flatten()
        each = cross_entropy(logits, targets, reduction="none")
        own = each[sampled[:, 1:].flatten()].mean()
        loss = own + CONTEXT_WEIGHT * each[targets != model.config.pad_token_id].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        decay = min(1.0, 4 * (1 - step / steps))
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * decay
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(own.detach()))
    return losses


def _optimizers(model: LlamaForCausalLM) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the hidden matrices, AdamW for the rest, each with its learning rate."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed_tokens" not in name
        (matrices if hidden else others).append(parameter)
    return [
        (torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.0), MATRIX_RATE),
        (torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.0, fused=True), OTHER_RATE),
    ]


def trace_batches(
    countries: Sequence[Country],
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    prompt: str,
    top_k: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless padded batches of traces: token ids, and whether the policy writes each."""
    encode = PartEncoder(tokenizer).piece
    rng = random.Random(seed)
    traces = _traces(countries, top_k, rng)
    while True:
        pool = [_encode(next(traces), prompt, encode) for _ in range(BUCKET * BATCH)]
        pool.sort(key=lambda encoded: len(encoded[0]))
        groups = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
        rng.shuffle(groups)
        for group in groups:
            yield _pad(group, int(tokenizer.pad_token_id))


def _traces(countries: Sequence[Country], top_k: int, rng: random.Random) -> Iterator[Trace]:
    """Endless traces, each `WORLD` of them about facts of their own."""
    while True:
        world = imagine(countries, rng)
        with TemporaryDirectory(prefix="forage-world-") as folder:
            index = BM25Index.open(build_index(passages(world), folder))
        writer = TraceWriter(world, partial(index.search, k=top_k), rng)
        for _ in range(WORLD):
            yield writer.write()


def _encode(
    trace: Trace, prompt: str, encode: Callable[[str, bool], tuple[int, ...]]
) -> tuple[list[int], list[bool]]:
    """Token ids of a trace, and whether the policy wrote each."""
    before, question, after = prompt_parts(prompt, trace.question)
    ids: list[int] = []
    written: list[bool] = []
    asked = ((before, True, False), (question, False, False), (after, True, False))
    for text, trusted, own in (*asked, *trace.parts):
        piece = encode(text, trusted)
        ids += piece
        written += [own] * len(piece)
    return ids, written


def _pad(group: Sequence[tuple[list[int], list[bool]]], pad: int) -> tuple[Tensor, Tensor]:
    width = max(len(ids) for ids, _ in group)
    ids = torch.full((len(group), width), pad)
    sampled = torch.zeros(len(group), width, dtype=torch.bool)
    for line, (tokens, own) in enumerate(group):
        ids[line, : len(tokens)] = torch.tensor(tokens)
        sampled[line, : len(own)] = torch.tensor(own)
    return ids, sampled


def vocabulary(countries: Sequence[Country], prompt: str, top_k: int) -> Iterator[str]:
    """Every text that the model may have to read or write."""
    found = passages(countries)
    yield from (passage.text for passage in found)
    yield "".join(text for text, _ in information_parts(found[:top_k]))
    yield "".join(text for text, _ in notice_parts(EMPTY_QUERY))
    yield "".join(text for text, _ in information_parts([]))
    yield PROMPTS[prompt]
    yield "In which country is the city? What is the of the? Find, then its. It may be."
    yield "<think></think><search></search><answer></answer>"
