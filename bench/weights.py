"""Publishes and applies weights in the shape of a 135M-parameter model, whole and as deltas.

Each row is one version on its way: encoded and published by one side, fetched and decoded by the
other (which a rollout does while it generates), then patched and verified in place (which it has
to pause for). Run `python bench/weights.py --help` for other devices, sizes and shares.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from forage import app
from forage.weights.publish import Publisher
from forage.weights.subscribe import Subscriber

HIDDEN, INTERMEDIATE, KEY_VALUE, LAYERS, VOCABULARY = 576, 1536, 192, 30, 49152


@dataclass(frozen=True, slots=True)
class Row:
    """One version: megabytes and seconds; `bits` per changed value, `floor` its entropy + 16."""

    name: str
    megabytes: float
    bits: float
    floor: float
    publish: float
    fetch: float
    apply: float


def random_policy(layers: int, device: str) -> dict[str, Tensor]:
    """bf16 tensors of a llama-like model with tied embeddings."""
    shapes = {"embed": (VOCABULARY, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(layers):
        shapes |= {
            f"{layer}.q": (HIDDEN, HIDDEN),
            f"{layer}.k": (KEY_VALUE, HIDDEN),
            f"{layer}.v": (KEY_VALUE, HIDDEN),
            f"{layer}.o": (HIDDEN, HIDDEN),
            f"{layer}.gate": (INTERMEDIATE, HIDDEN),
            f"{layer}.up": (INTERMEDIATE, HIDDEN),
            f"{layer}.down": (HIDDEN, INTERMEDIATE),
            f"{layer}.norm": (2, HIDDEN),
        }
    return {
        name: torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
        for name, shape in shapes.items()
    }


def change(tensors: dict[str, Tensor], share: float) -> None:
    """Moves a random share of the values to their neighbour in bf16."""
    for tensor in tensors.values():
        chosen = torch.rand(tensor.shape, device=tensor.device) < share
        tensor.view(torch.int16).add_(chosen)


def sync(
    name: str,
    publisher: Publisher,
    subscriber: Subscriber | None,
    policy: dict[str, Tensor],
    held: dict[str, Tensor],
) -> tuple[Row, Subscriber]:
    """One version from the policy to the tensors held elsewhere."""
    version = (publisher.version or 0) + 1
    report = publisher.publish(policy, version)
    assert publisher.manifest_ref is not None
    subscriber = subscriber or Subscriber(publisher.manifest_ref)
    fetched, applied = subscriber.fetch_seconds, subscriber.apply_seconds
    subscriber.apply(subscriber.fetch(version), held)
    assert all(
        torch.equal(policy[key].view(torch.int16), held[key].view(torch.int16)) for key in held
    )
    p = report.changed_fraction
    entropy = 0.0 if p in (0, 1) else -math.log2(p) - (1 - p) / p * math.log2(1 - p)
    elements = sum(tensor.numel() for tensor in policy.values())
    row = Row(
        name=name,
        megabytes=report.published_bytes / 1e6,
        bits=8 * report.published_bytes / (p * elements),
        floor=16 + entropy,
        publish=report.seconds,
        fetch=subscriber.fetch_seconds - fetched,
        apply=subscriber.apply_seconds - applied,
    )
    return row, subscriber


COLUMNS = (
    "version", "MB", "of whole", "bits/change", "entropy + 16",
    "publish s", "fetch s", "apply s", "time of whole",
)  # fmt: skip


def print_table(rows: list[Row], elements: int, device: str) -> None:
    """The rows, each beside the whole publication."""
    whole = rows[0]
    print(f"{elements / 1e6:.1f} M bf16 weights on {device}, {torch.get_num_threads()} threads\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print("| --- " * len(COLUMNS) + "|")
    for row in rows:
        total = (row.publish + row.fetch + row.apply) / (whole.publish + whole.fetch + whole.apply)
        print(
            f"| {row.name} | {row.megabytes:.2f} | {row.megabytes / whole.megabytes:.3f}"
            f" | {row.bits:.2f} | {row.floor:.2f} | {row.publish:.2f} | {row.fetch:.2f}"
            f" | {row.apply:.2f} | {total:.2f} |"
        )


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="where both sides keep their weights")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--changed", type=float, nargs="+", default=[1, 3], help="percent")
    options = parser.parse_args()
    torch.manual_seed(0)
    policy = random_policy(options.layers, options.device)
    held = {name: torch.zeros_like(tensor) for name, tensor in policy.items()}
    with app.init("bench-weights"):
        publisher = Publisher("bench")
        row, subscriber = sync("whole", publisher, None, policy, held)
        rows = [row]
        for percent in options.changed:
            change(policy, percent / 100)
            row, _ = sync(f"{percent:g} % changed", publisher, subscriber, policy, held)
            rows.append(row)
    print_table(rows, sum(tensor.numel() for tensor in policy.values()), options.device)


if __name__ == "__main__":
    main()
