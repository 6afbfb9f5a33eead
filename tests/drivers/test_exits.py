"""Code of others that calls sys.exit() ends a run as an error, not as if all were done."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.crash_isolation import RestartingEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from tests.drivers.counting import CountingAlgorithm

SAID = r"asked the program to end, by sys\.exit\(3\): have it raise"


def leave(*args: Any) -> Any:
    sys.exit(3)


def leaving(at: int) -> FaultyEnvironment:
    return FaultyEnvironment(CountingEnvironment(2), raise_at=range(at, 10**6), error=SystemExit(3))


def driver_of(kind: str, env: Any, **settings: Any) -> Any:
    algorithm = CountingAlgorithm(env)
    if kind == "sync":
        return SyncOffPolicyDriver(env, algorithm, 4, **settings)
    return AsyncOffPolicyDriver([env], algorithm, 0, 4, 1, **settings)


def collect(driver: Any) -> None:
    driver.start()
    try:
        for _ in range(50):
            driver.run_async() if isinstance(driver, AsyncOffPolicyDriver) else driver.run()
            driver.algorithm.train()
    finally:
        driver.stop()


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_environment(kind: str, stepping: str) -> None:
    with pytest.raises(RuntimeError, match=f"Environment 0 {SAID}") as caught:
        collect(driver_of(kind, leaving(30), stepping=stepping))
    assert isinstance(caught.value.__cause__, SystemExit)


@pytest.mark.parametrize("listens", ["observers", "metrics"])
def test_who_listens(listens: str) -> None:
    with pytest.raises(RuntimeError, match=f"An observer or metric {SAID}"):
        collect(driver_of("async", CountingEnvironment(2), **{listens: [leave]}))


@pytest.mark.parametrize("stepping", ["graph", "host"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_teacher(kind: str, stepping: str) -> None:
    with pytest.raises(RuntimeError, match=f"The teacher {SAID}"):
        collect(driver_of(kind, CountingEnvironment(2), stepping=stepping, teacher=leave))


@pytest.mark.parametrize("step_timeout", [None, 60.0])
def test_an_environment_that_is_rebuilt(step_timeout: float | None) -> None:
    counter = StepCounter()

    def make(seed: Any) -> FaultyEnvironment:
        return FaultyEnvironment(CountingEnvironment(2), raise_at=[4, 9], error=SystemExit(3), counter=counter)

    env = RestartingEnvironment(make, step_timeout_secs=step_timeout, max_restarts=1)
    env.reset()
    with pytest.raises(RuntimeError, match=f"The environment {SAID}"):
        for _ in range(30):
            env.step(np.zeros(2, np.int64))
    assert env.restarts == 1
    env.close()


def test_an_environment_that_cannot_be_made() -> None:
    with pytest.raises(RuntimeError, match=f"The environment {SAID}"):
        RestartingEnvironment(leave)
