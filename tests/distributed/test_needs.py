"""What workers ask Ray for: refused where there is no such thing, named where none of it is free."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.in_process_engine import InProcessEngine
from alf.distributed.pool import WorkerPool
from alf.distributed.remote_evaluator import RemoteEvaluator

MAKERS: dict[str, Callable[..., Any]] = {
    "WorkerPool": lambda **needs: WorkerPool(InProcessEngine(), 1, 1, "nobody:asks", **needs),
    "EnvironmentPool": lambda **needs: EnvironmentPool(InProcessEngine(), 1, 1, "nobody:asks", **needs),
    "RemoteEvaluator": lambda **needs: RemoteEvaluator(InProcessEngine(), 1, "nobody:asks", {}, **needs),
}


@pytest.mark.parametrize("owner", MAKERS)
@pytest.mark.parametrize("limit", ["5", None, float("nan"), -1.0])
def test_limits_are_numbers(owner: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=rf"{owner}\.heartbeat_timeout_secs must be positive, got {limit!r}"):
        MAKERS[owner](heartbeat_timeout_secs=limit)


@pytest.mark.parametrize(
    ("owner", "count"),
    [
        ("WorkerPool", "requests_in_flight"),
        ("WorkerPool", "max_failures"),
        ("EnvironmentPool", "max_failures"),
        ("RemoteEvaluator", "max_attempts"),
    ],
)
@pytest.mark.parametrize("number", [1.5, "2"])
def test_counts_are_whole(owner: str, count: str, number: Any) -> None:
    with pytest.raises(ValueError, match=rf"{owner}\.{count} must be positive and whole, got {number!r}"):
        MAKERS[owner](**{count: number})


@pytest.mark.parametrize("owner", MAKERS)
@pytest.mark.parametrize("num_cpus", [-1.0, float("nan"), float("inf"), "1"])
def test_processors_are_a_number(owner: str, num_cpus: Any) -> None:
    with pytest.raises(ValueError, match=rf"{owner}\.num_cpus={num_cpus!r} must be a number of processors, 0 or more"):
        MAKERS[owner](num_cpus=num_cpus)


@pytest.mark.parametrize("owner", MAKERS)
@pytest.mark.parametrize("resources", [{"rollout": -1.0}, {"rollout": "x"}, {"GPU": float("nan")}, {1: 1.0}])
def test_resources_are_names_and_numbers(owner: str, resources: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{owner}\.resources=\{{.*\}} must be of names and numbers, 0 or more"):
        MAKERS[owner](resources=resources)


@pytest.mark.parametrize("owner", MAKERS)
@pytest.mark.parametrize("resource", ["CPU", "memory"])
def test_processors_are_no_resource(owner: str, resource: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{owner}\.resources=.* asks for '{resource}'.*processors are {owner}\.num_cpus"
    ):
        MAKERS[owner](resources={resource: 1.0})


def test_fractions_and_gpus_may_be_asked_for() -> None:
    for make in MAKERS.values():
        make(num_cpus=0.5, resources={"GPU": 0.25, "rollout": 1})
        make(num_cpus=0)


@pytest.mark.usefixtures("no_leaked_threads")
def test_resources_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker waits for them until the limit."""
    engine = InProcessEngine()
    monkeypatch.setattr(engine, "call", lambda *args: None)
    monkeypatch.setattr(engine, "wait", lambda calls, timeout: time.sleep(timeout) or [])
    pool = EnvironmentPool(engine, 1, 1, "math:sqrt", start_timeout_secs=0.05, resources={"rollout": 1.0, "GPU": 0.5})
    needed = r"1 free processors and 1 rollout, 0\.5 GPU for each \(EnvironmentPool\.num_cpus and \.resources\)"
    with pytest.raises(RuntimeError, match=needed):
        pool.start()
    pool.stop()
