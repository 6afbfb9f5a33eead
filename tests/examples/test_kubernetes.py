"""The manifests fit together, and to the commands and versions that there are, as far as that shows without a cluster."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import shlex
import tomllib
from typing import Any

import pytest
from absl import flags
from absl.testing import flagsaver
from packaging.requirements import Requirement

from alf.bin import command_line, train
from alf.distributed.pool import WorkerPool
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS = ("rayjob.yaml", "raycluster.yaml")
PAGE = (ROOT / "docs" / "distributed.md").read_text()

assert train


def _objects(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _cluster(name: str) -> dict[str, Any]:
    spec = _objects(name)[-1]["spec"]
    return spec.get("rayClusterSpec", spec)


def _submitted() -> list[str]:
    """The words of the `ray job submit` of raycluster.yaml."""
    (line,) = [x for x in (FOLDER / "raycluster.yaml").read_text().splitlines() if "ray job submit --" in x]
    return shlex.split(line.lstrip("# "))


def _after(words: list[str]) -> list[str]:
    begin = words.index("python")
    assert words[begin : begin + 3] == ["python", "-m", "alf.bin.train"]
    return words[begin + 3 :]


def _check_command(arguments: list[str]) -> dict[str, Any]:
    """The flags of a train command, all of which exist, as do its gin file and what it binds."""
    with flagsaver.flagsaver():
        assert flags.FLAGS(["alf.bin.train", *arguments]) == ["alf.bin.train"]
        gin_utils.parse_gin(command_line.GIN_FILE.value, command_line.bindings())
        return flags.FLAGS.flag_values_dict()


def _commands() -> dict[str, list[str]]:
    found = {"raycluster.yaml": _after(_submitted())}
    text = PAGE.replace("\\\n", " ")
    for i, line in enumerate(re.findall(r"python -m alf\.bin\.train .*", text)):
        found[f"distributed.md, {i}"] = _after(shlex.split(line))
    return found


@pytest.mark.parametrize("arguments", _commands().values(), ids=_commands().keys())
def test_commands_have_flags_that_exist(arguments):
    assert _check_command(arguments)["num_workers"] >= 2


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_cluster_has_room_for_the_workers_of_its_run_and_a_volume_for_its_files(name):
    cluster = _cluster(name)
    if name == "rayjob.yaml":
        given = _check_command(_after(shlex.split(_objects(name)[-1]["spec"]["entrypoint"])))
    else:
        given = _check_command(_after(_submitted()))
    assert given["ray_address"] == "auto"
    room = 0.0
    for group in cluster["workerGroupSpecs"]:
        processors = float(group["rayStartParams"]["num-cpus"])
        (container,) = group["template"]["spec"]["containers"]
        assert processors == float(container["resources"]["requests"]["cpu"])
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        room += group["replicas"] * processors
    each = inspect.signature(WorkerPool).parameters["num_cpus"].default
    assert given["num_workers"] * each <= room
    head = cluster["headGroupSpec"]["template"]["spec"]
    (container,) = head["containers"]
    mounted = [pathlib.PurePosixPath(v["mountPath"]) for v in container["volumeMounts"]]
    assert any(pathlib.PurePosixPath(given["root_dir"]).is_relative_to(place) for place in mounted)
    claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in head["volumes"]}
    assert {v["name"] for v in container["volumeMounts"]} == set(claims)
    assert set(claims.values()) == {o["metadata"]["name"] for o in _objects(name) if o["kind"].endswith("Claim")}


def test_all_pods_have_the_image_and_the_ray_of_the_dockerfile():
    dockerfile = (FOLDER / "Dockerfile").read_text()
    (version,) = re.findall(r"ray\[default\]==([\d.]+)", dockerfile)
    (image,) = set(re.findall(r"-t (\S+)", dockerfile))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [Requirement(r) for r in extras["distributed"]]
    assert version in wanted.specifier
    assert image in PAGE
    for name in MANIFESTS:
        cluster = _cluster(name)
        assert cluster["rayVersion"] == version
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            assert [c["image"] for c in group["template"]["spec"]["containers"]] == [image]


def test_the_job_is_submitted_by_options_that_ray_has():
    pytest.importorskip("ray")
    click = pytest.importorskip("click")
    submit = importlib.import_module("ray.dashboard.modules.job.cli").submit
    words = _submitted()
    assert shlex.join(words) in PAGE
    assert words[:3] == ["ray", "job", "submit"]
    with click.Context(submit) as context:
        submit.parse_args(context, words[3:])
        assert context.params["address"] == "http://127.0.0.1:8265"
        assert list(context.params["entrypoint"]) == words[words.index("python") :]
