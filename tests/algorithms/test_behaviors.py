"""Behaviors: a single agent as on the plain path, bit for bit; frozen and trained ones; rows, seeds, settings."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.grouped_rows import GroupedRows
from alf.environments.utils import create_environment
from tests.trainers.small_run import make_algorithm


def _cart_poles(rows):
    return create_environment("CartPole-v1", num_parallel_environments=rows, seed=7)


def _algorithm(env, ctor):
    tf.keras.utils.set_random_seed(3)
    return ctor(tensor_spec.from_spec(env.observation_spec()), tensor_spec.from_spec(env.action_spec()))


def _all_for_one(observation_spec, action_spec, debug_summaries=False):
    return Behaviors(observation_spec, action_spec, {"*": Behavior(make_algorithm)}, debug_summaries)


def _run(env, ctor, mode):
    algorithm = _algorithm(env, ctor)
    driver = AsyncOffPolicyDriver(
        [env], algorithm, num_actor_queues=0, unroll_length=5, mode=mode, random_seed=11, stepping="graph"
    )
    driver.start()
    try:
        for _ in range(6):
            driver.run_async()
            algorithm.train(num_updates=2, mini_batch_size=4)
    finally:
        driver.stop()
    return algorithm


@pytest.mark.parametrize("mode", ["sync", "lockstep"])
def test_a_single_agent_is_trained_bit_for_bit_as_on_the_plain_path(mode):
    plain = _run(_cart_poles(8), make_algorithm, mode)
    composed = _run(GroupedRows(_cart_poles(8)), _all_for_one, mode).by_name["agent"]
    assert len(plain.variables) == len(composed.variables)
    for mine, theirs in zip(plain.variables, composed.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.name)


def test_agents_that_share_a_behavior_are_rows_of_one_batch():
    """Eight rows in groups of four: the same steps, the same rewards, the same weights as the plain batch."""
    plain = _run(_cart_poles(8), make_algorithm, "sync")
    composed = _run(GroupedRows(_cart_poles(8), 4), _all_for_one, "sync").by_name["agent"]
    for mine, theirs in zip(plain.variables, composed.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.name)
