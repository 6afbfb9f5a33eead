"""The asynchronous driver acts at random as long as it is asked to, in every mode, and by the policy before and after."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import PolicyStep
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from tests.drivers.counting import CountingAlgorithm, make_envs

SEGMENT = 16


class Stubborn(CountingAlgorithm):
    """Its policy takes action 0, whatever it is asked."""

    def rollout(self, time_step, state, mode):
        step = super().rollout(time_step, state, mode)
        return PolicyStep(tf.zeros_like(step.action), step.state, step.info)


def _driver(mode, actors, **kwargs):
    envs = make_envs(2, 2)
    algorithm = Stubborn(envs[0])
    sizes = {"unroll_length": SEGMENT, "learn_queue_cap": 2, "actor_queue_cap": 2 if actors else 1}
    return algorithm, AsyncOffPolicyDriver(envs, algorithm, actors, mode=mode, random_seed=3, **sizes, **kwargs)


def _kinds(batch):
    """Of each segment of a batch, whether it was collected at random."""
    actions = batch.action.numpy()
    assert np.all((actions >= 0) & (actions < 5))
    return [bool(np.any(segment)) for segment in actions]


def _collect(algorithm, driver, plan):
    """Runs the driver, at random where `plan` says so, with an update in between; the kinds of all segments."""
    try:
        for i, at_random in enumerate(plan):
            driver.act_at_random(at_random)
            if not i:
                driver.start()
            driver.run_async()
            algorithm.train()
    finally:
        driver.stop()
    return [_kinds(batch) for batch in algorithm.batches]


PLAN = [True, True, True, False, False, False, True, True]


@pytest.mark.parametrize("actors", [0, 1])
@pytest.mark.parametrize(
    ("mode", "batches"),
    [
        ("sync", PLAN),
        # Each batch but the first was asked for one request before.
        ("lockstep", [True, *PLAN[:-1]]),
    ],
)
def test_a_batch_acts_as_was_said_when_it_was_asked_for(mode, batches, actors):
    algorithm, driver = _driver(mode, actors)
    assert _collect(algorithm, driver, PLAN) == [[at_random] * 2 for at_random in batches]


@pytest.mark.parametrize("actors", [0, 1])
def test_asynchronous_segments_change_after_those_on_their_way(actors):
    algorithm, driver = _driver("async", actors)
    kinds = _collect(algorithm, driver, [True] * 3 + [False] * 8 + [True] * 8)
    by_segment = [kind for batch in kinds for kind in batch]
    assert by_segment[:6] == [True] * 6, "all are random that are made before the switch"
    # After a switch come Q = 2 that are in the queue and N = 2 in the making; a slow thread's may come late.
    assert by_segment[6:22].count(True) <= 4
    assert by_segment[22:].count(False) <= 4


def test_what_else_is_recorded_is_the_policy_s_and_streams_go_on():
    from tests.drivers.counting import check_batches

    envs = make_envs(2, 2)
    algorithm = CountingAlgorithm(envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, 0, 5, 2, mode="lockstep", random_seed=3)
    _collect(algorithm, driver, PLAN)
    steps = check_batches(algorithm.batches, recurrent=True)
    assert steps == dict.fromkeys(range(4), 5 * len(PLAN))


def test_random_acting_is_traced_when_it_is_asked_for():
    algorithm, driver = _driver("sync", 0)
    driver.start()
    try:
        driver.run_async()
        assert list(driver._collection.unrollers) == [False]
        driver.act_at_random()
        driver.run_async()
        assert sorted(driver._collection.unrollers) == [False, True]
        traced = driver._collection.unrollers[True]
        driver.act_at_random(False)
        driver.act_at_random()
        assert driver._collection.unrollers[True] is traced
    finally:
        driver.stop()
    assert [_kinds(batch)[0] for batch in algorithm.batches] == [False, True]


def test_the_seed_decides_what_is_random():
    def actions(seed):
        envs = make_envs(2, 2)
        algorithm = CountingAlgorithm(envs[0])
        driver = AsyncOffPolicyDriver(envs, algorithm, 0, 5, 2, mode="lockstep", random_seed=seed)
        _collect(algorithm, driver, [True] * 3)
        return np.stack([batch.action.numpy() for batch in algorithm.batches])

    np.testing.assert_array_equal(actions(1), actions(1))
    assert np.any(actions(1) != actions(2))
