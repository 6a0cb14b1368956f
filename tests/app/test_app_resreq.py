"""resreq's syntax, and what a process may use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from app_services import Rank, Worker
from hypothesis import given
from hypothesis import strategies as st

from forage import app
from forage.app.capacity import local_node
from forage.app.resources import Resources, format_size, parse_resreq, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Resources(1000)),
        ("cpu=2", Resources(2000)),
        ("cpu=0.5,gpu=0.25", Resources(500, 0, 250)),
        ("gpu=2,mem=1k", Resources(0, 1024, 2000)),
        (" cpu = 1 , mem = 1.5g ", Resources(1000, 3 << 29)),
        ("cpu=.5", Resources(500)),
    ],
)
def test_amounts(text: str | None, expected: Resources) -> None:
    assert parse_resreq(text) == expected


@pytest.mark.parametrize("suffix", ["g", "gb", "gib", "G", "GB", "GiB"])
def test_sizes_are_binary(suffix: str) -> None:
    assert parse_resreq(f"mem=64{suffix}").mem == 64 << 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "cpu=",
        "cpu=2,",
        ",cpu=2",
        "cpu=-1",
        "cpu=1e3",
        "cpu=nan",
        "cpu=inf",
        "cpu=two",
        "cpu=1;gpu=1",
        "mem=4x",
        "mem=g",
        "mem=1gg",
        "tpu=1",
        "CPU=1",
        "cpu=1,cpu=2",
        "gpu=1.5",
    ],
)
def test_malformed_text_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_resreq(text)


@given(st.integers(0, 10**6), st.sampled_from("kmgt"), st.sampled_from(["", "b", "ib"]))
def test_sizes_against_arithmetic(count: int, unit: str, suffix: str) -> None:
    assert parse_size(f"{count}{unit}{suffix}") == count * 1024 ** ("kmgt".index(unit) + 1)


@given(st.integers(1, 2**50))
def test_printed_sizes_are_near_what_they_print(size: int) -> None:
    printed = parse_size(format_size(size))
    assert printed is not None
    assert abs(printed - size) <= size * 1e-3 + 1


def test_capacity_is_what_this_process_may_use() -> None:
    node = local_node(None)
    assert 0 < node.millicpu <= 1000 * len(os.sched_getaffinity(0))
    assert 0 < node.mem <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_capacity_follows_affinity() -> None:
    code = (
        "import os; from forage.app.capacity import local_node\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "assert local_node(None).millicpu <= 1000"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", ()), ("-1", ()), ("3", ("3",)), ("2,0", ("2", "0")), ("1,-1,0", ("1",))],
)
def test_capacity_follows_visible_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_node(None).gpus == expected
    assert local_node("cpu=1").gpus == expected


def test_named_resources_override_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    node = local_node("cpu=2.5,mem=1g,gpu=2")
    assert (node.millicpu, node.mem, node.gpus) == (2500, 1 << 30, ("7", "0"))
    with pytest.raises(ValueError, match="whole"):
        local_node("gpu=0.5")


def test_executors_see_their_gpus_and_threads(start: Callable[..., app.App]) -> None:
    start("cpu=8,gpu=4")
    one = Worker.options(resreq="cpu=2,gpu=1").remote()
    names = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"
    assert one.environment.remote(*names).result() == ["0", "2"]
    two = Worker.options(resreq="cpu=0.5,gpu=2", threads=5).remote()
    assert two.environment.remote(*names).result() == ["1,2", "5"]
    assert two.place.remote().result().gpus == ("1", "2")
    none = Worker.remote()
    assert none.environment.remote(*names).result() == ["", "1"]


def test_gang_members_get_distinct_gpus(start: Callable[..., app.App], engine: str) -> None:
    start("cpu=8,gpu=2")
    share = "gpu=1" if engine == "ray" else "gpu=0.5"  # on Ray they need whole ones
    gang = Rank.options(resreq=f"cpu=1,{share}", autoscale=False, warmup=2).remote()
    assert sorted(gang.visible.broadcast().result()) == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "arithmetic"),
    [
        ({"resreq": "cpu=9"}, r"1 x \(cpu=9\) = cpu=9.*cpu=8"),
        ({"resreq": "gpu=1"}, r"gpu=1"),
        ({"resreq": "cpu=3", "warmup": 3}, r"3 x \(cpu=3\) = cpu=9"),
        ({"resreq": "cpu=4", "warmup": 3, "autoscale": False}, r"3 x \(cpu=4\) = cpu=12"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(
    running: app.App, options: dict[str, object], arithmetic: str
) -> None:
    with pytest.raises(app.Infeasible, match=arithmetic):
        Worker.options(**options).remote()


def test_memory_is_enforced_where_given(start: Callable[..., app.App]) -> None:
    start()
    worker = Worker.options(resreq="cpu=1,mem=128m", retries=0).remote()
    assert worker.add.remote(2).result() == 2
    with pytest.raises(app.ExecutorLost, match="out of memory: it held .* of mem=128m"):
        worker.allocate.remote(256).result()
