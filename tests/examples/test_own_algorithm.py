"""The example of an algorithm of one's own is short, and learns."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.data_structures import StepType, TrainingInfo
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "own_algorithm.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("own_algorithm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make(example: Any, env: Any) -> Any:
    specs = tensor_spec.from_spec((env.observation_spec(), env.action_spec()))
    return example.ReinforceAlgorithm(*specs, hidden=(16,), optimizer=tf.keras.optimizers.legacy.Adam(1e-2))


def test_it_fits_on_a_page() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 100


def test_it_learns_in_seconds(example: Any) -> None:
    tf.random.set_seed(0)
    envs = [PolicyUnittestEnv(16, 9, seed=i) for i in range(2)]
    algorithm = _make(example, envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, num_actor_queues=0, unroll_length=16, random_seed=0)
    average_return = driver.get_metrics()[2]
    driver.start()
    try:
        for _ in range(200):
            driver.run_async()
            algorithm.train()
            if average_return.result() > 7.2:
                break
    finally:
        driver.stop()
    assert average_return.result() > 7.2


def test_its_loss_is_what_its_text_says(example: Any) -> None:
    """A plain loop over the steps of one segment with an end in it."""
    algorithm = _make(example, PolicyUnittestEnv(1, 9))
    rs, steps = np.random.RandomState(0), 6
    step_type = np.array([1, 1, 2, 0, 1, 1], np.int32)
    reward, observation = rs.rand(steps).astype(np.float32), rs.rand(steps, 1).astype(np.float32)
    discount = np.where(step_type == StepType.LAST, 0.0, 1.0).astype(np.float32)
    action = rs.randint(0, 2, [steps, 1])
    info = algorithm.rollout(_time_step(observation, step_type), (), None).info
    logits = info.action_distribution.logits.numpy()[:, 0]
    baseline = info.baseline.numpy()
    distribution = type(info.action_distribution)(logits=logits[:, None, None], dtype=tf.int64)
    got = algorithm.calc_loss(
        TrainingInfo(
            action=tf.constant(action[:, None]),
            step_type=tf.constant(step_type[:, None]),
            reward=tf.constant(reward[:, None]),
            discount=tf.constant(discount[:, None]),
            info=example.ReinforceInfo(distribution, tf.constant(baseline[:, None])),
        )
    ).loss.numpy()[:, 0]
    expected = np.zeros(steps)
    later = baseline[-1]
    for t in reversed(range(steps - 1)):
        log_p = logits[t] - np.log(np.exp(logits[t]).sum())
        if step_type[t] == StepType.LAST:
            later = baseline[t]
            continue
        later = reward[t + 1] + 0.99 * discount[t + 1] * later
        surprise = later - baseline[t]
        entropy = -(np.exp(log_p) * log_p).sum()
        expected[t] = -log_p[action[t, 0]] * surprise - 0.01 * entropy + 0.5 * surprise**2
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def _time_step(observation: np.ndarray, step_type: np.ndarray) -> Any:
    from alf.data_structures import ActionTimeStep

    return ActionTimeStep(step_type=tf.constant(step_type), observation=tf.constant(observation))


@pytest.mark.learning
def test_it_solves_cart_pole(example: Any) -> None:
    assert example.train() >= 475.0
