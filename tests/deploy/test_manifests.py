"""The Kubernetes manifests: their structure, and that their numbers fit each other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from forage.app.placement import Node, Room
from forage.app.resources import Resources, parse_resreq, parse_size

ROOT = Path(__file__).resolve().parents[2]
KUBERAY = ROOT / "deploy" / "kuberay"

Object = dict[str, Any]


def _load(name: str) -> Object:
    (manifest,) = yaml.safe_load_all((KUBERAY / name).read_text(encoding="utf-8"))
    return dict(manifest)


CLUSTER, JOB, CLAIM = _load("raycluster.yaml"), _load("rayjob.yaml"), _load("storage.yaml")
SPEC: Object = CLUSTER["spec"]
HEAD: Object = SPEC["headGroupSpec"]
(WORKERS,) = SPEC["workerGroupSpecs"]
GROUPS = {"head": HEAD, "workers": WORKERS}


def _container(group: Object) -> Object:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def _flags() -> dict[str, str]:
    """What the job's entrypoint says to `forage train`."""
    _, _, command = JOB["spec"]["entrypoint"].partition(" && ")
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("forage", "train")
    return dict(zip(words[::2], words[1::2], strict=True))


def _bytes(quantity: str) -> int:
    size = parse_size(f"{quantity.lower()}b")  # Kubernetes writes Gi for GiB
    assert size is not None, quantity
    return size


def test_kinds_and_versions() -> None:
    assert (CLUSTER["apiVersion"], CLUSTER["kind"]) == ("ray.io/v1", "RayCluster")
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert (CLAIM["apiVersion"], CLAIM["kind"]) == ("v1", "PersistentVolumeClaim")
    for manifest in (CLUSTER, JOB, CLAIM):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])


def test_the_job_runs_on_the_same_cluster() -> None:
    assert JOB["spec"]["rayClusterSpec"] == SPEC
    assert JOB["metadata"]["annotations"] == CLUSTER["metadata"]["annotations"]


def test_required_fields() -> None:
    assert {"rayVersion", "headGroupSpec", "workerGroupSpecs"} <= set(SPEC)
    assert {"rayStartParams", "template"} <= set(HEAD)
    assert {"groupName", "replicas", "minReplicas", "maxReplicas"} <= set(WORKERS)
    assert {"entrypoint", "shutdownAfterJobFinishes", "rayClusterSpec"} <= set(JOB["spec"])
    for group in GROUPS.values():
        # KubeRay turns parameters into flags, and takes text only.
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_ray_has_the_tested_version() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"ray=={SPEC['rayVersion']}" in pins
    assert f"ARG RAY={SPEC['rayVersion']}" in dockerfile


def test_every_pod_joins_with_the_clusters_token() -> None:
    assert SPEC["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_the_object_store_lies_in_memory(group: Object) -> None:
    container, pod = _container(group), group["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts.values()) == set(volumes)
    store = volumes[mounts["/dev/shm"]]["emptyDir"]
    assert store["medium"] == "Memory"
    assert int(group["rayStartParams"]["object-store-memory"]) == _bytes(store["sizeLimit"])


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_memory_adds_up(group: Object) -> None:
    parameters, limits = group["rayStartParams"], _container(group)["resources"]["limits"]
    used = int(parameters["object-store-memory"]) + int(parameters.get("memory", 0))
    assert used + _bytes("32gi") <= _bytes(limits["memory"])
    assert _container(group)["resources"]["requests"] == limits


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_the_open_file_limit_is_raised_before_ray_starts(group: Object) -> None:
    assert CLUSTER["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    (script,) = _container(group)["args"]
    assert re.match(r"ulimit -n \d{6,}", script)
    assert script.endswith("$KUBERAY_GEN_RAY_START_CMD")


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_run_directories_lie_on_the_claimed_volume(group: Object) -> None:
    volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
    claim = volumes["runs"]["persistentVolumeClaim"]["claimName"]
    assert claim == CLAIM["metadata"]["name"]
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    assert _flags()["--out"].startswith("/runs/")


def test_executors_stay_off_the_head() -> None:
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in _container(HEAD)["resources"]["limits"]


def test_the_layout_is_the_references() -> None:
    flags = _flags()
    rollout = parse_resreq(flags["--rollout-resources"])
    trainer = parse_resreq(flags["--trainer-resources"])
    assert (flags["--rollouts"], str(rollout)) == ("14", "cpu=8,mem=64g,gpu=1")
    assert (flags["--trainers"], str(trainer)) == ("2", "cpu=16,mem=128g,gpu=1")
    assert int(WORKERS["replicas"]) * int(WORKERS["rayStartParams"]["num-gpus"]) == 14 + 2
    assert WORKERS["replicas"] == WORKERS["minReplicas"] == WORKERS["maxReplicas"]


@pytest.mark.parametrize("first", ["rollouts", "trainers"])
def test_everything_fits_whoever_comes_first(first: str) -> None:
    flags, room = _flags(), Room.of(_nodes())
    wishes = [
        (parse_resreq(flags[f"--{name}-resources"]), int(flags[f"--{name}s"]))
        for name in ("rollout", "trainer")
    ]
    for need, count in wishes if first == "rollouts" else reversed(wishes):
        assert room.place_all(need, count) is not None
    assert room.total().milligpu == 0


def test_containers_hold_what_ray_offers() -> None:
    parameters, limits = WORKERS["rayStartParams"], _container(WORKERS)["resources"]["limits"]
    assert int(limits["cpu"]) >= int(parameters["num-cpus"])
    assert limits["nvidia.com/gpu"] == parameters["num-gpus"]


def test_the_entrypoint_is_a_sound_command_line() -> None:
    from forage.loop.config import KEYS, flag, parse_value

    keys = {flag(key): key for key in KEYS}
    given = _flags()
    assert set(given) <= set(keys)
    parsed = {name: parse_value(keys[name], text) for name, text in given.items()}
    assert (parsed["--engine"], parsed["--address"]) == ("ray", "auto")
    assert parsed["--prompts-per-step"] % parsed["--prompts-per-task"] == 0


def _nodes() -> list[Node]:
    parameters = WORKERS["rayStartParams"]
    offered = Resources(1000 * int(parameters["num-cpus"]), int(parameters["memory"]))
    gpus = tuple(str(index) for index in range(int(parameters["num-gpus"])))
    return [
        Node(f"node-{index}", offered.millicpu, offered.mem, gpus)
        for index in range(WORKERS["replicas"])
    ]
