"""Ensembles find the best policy of the old unit-test environment, whichever way they decide."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from alf.algorithms.ensemble_algorithm import EnsembleAlgorithm
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import make
from tests.learning.test_off_policy_learns import NOISE, check_learning, environment

MEMBERS = {
    "single": ("dqn", "c51"),
    "round_robin": ("dqn", "c51"),
    "majority": ("dqn", "dqn", "dqn"),
    "mean": ("sac", "sac"),
}


def ensemble_of(decision: str, seed: int) -> Any:
    tf.random.set_seed(seed)
    names = MEMBERS[decision]

    def member(name: str) -> Any:
        return lambda observation_spec, action_spec, debug_summaries: make(
            name, observation_spec, action_spec, gamma=0.5, lr=5e-3, **NOISE.get(name, {})
        )

    members = [member(name) for name in names]
    specs = specs_of(environment(names[0], 2, 0))
    algorithm = EnsembleAlgorithm(*specs, members=members, decision=decision, decider=len(members) - 1)
    algorithm.build_optimizers()
    return algorithm


@pytest.mark.slow
@pytest.mark.parametrize("decision", MEMBERS)
def test_in_turns(decision: str) -> None:
    name = MEMBERS[decision][0]
    algorithm = ensemble_of(decision, 0)
    driver = SyncOffPolicyDriver(environment(name, 32, 0), algorithm, 8, exp_replayer="uniform", random_seed=1)
    try:
        check_learning(name, algorithm, driver.run, lambda _, seed: ensemble_of(decision, seed))
    finally:
        driver.stop()
