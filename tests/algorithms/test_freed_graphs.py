"""An algorithm that nobody holds any more takes with it what its updates were traced as."""

from __future__ import annotations

import gc

import pytest
import tensorflow as tf

from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from tests.algorithms.networks import ppo, specs_of
from tests.algorithms.off_policy import make
from tests.algorithms.test_off_policy_algorithms import driver_of, environment, train


def _ppo() -> None:
    env = environment("dqn")
    algorithm = ppo(env)
    driver = SyncOffPolicyDriver(env, algorithm, 4, random_seed=0)
    driver.run()
    algorithm.train(1, 8, 1)
    driver.stop()


def _off_policy(name: str) -> None:
    algorithm = make(name, *specs_of(environment(name)))
    driver = driver_of(name, algorithm)
    train(algorithm)
    driver.stop()


def _graphs() -> int:
    gc.collect()
    return sum(isinstance(o, tf.Graph) for o in gc.get_objects())


@pytest.mark.parametrize("name", ["ppo", "td3", "discrete_sac"])
def test_graphs_of_updates_are_freed(name: str) -> None:
    counts = []
    for _ in range(3):
        if name == "ppo":
            _ppo()
        else:
            _off_policy(name)
        counts.append(_graphs())
    # The first one makes what the process has once.
    assert counts[2] == counts[1]
