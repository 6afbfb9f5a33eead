"""Acting with convolutions: by the operations that are quick for them, and otherwise as without."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tf_agents.specs import array_spec

from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.data_structures import Experience
from alf.drivers import policy_driver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.batch_wrappers import BatchWrapper
from alf.utils.common import image_scale_transformer
from tests.algorithms import networks
from tests.drivers.test_stepping import check_identical, segments


class Pictures(BatchWrapper):
    """Shows the four numbers of a state as a picture 16x16x4."""

    def observation_spec(self) -> Any:
        """Of bytes."""
        return array_spec.BoundedArraySpec((16, 16, 4), np.uint8, 0, 255)

    def _reset(self) -> Any:
        return self._drawn(self._env.reset())

    def _step(self, action: Any) -> Any:
        return self._drawn(self._env.step(action))

    def _drawn(self, time_step: Any) -> Any:
        shades = (128 + 100 * np.tanh(time_step.observation)).astype(np.uint8)
        squares = np.arange(16)[:, None, None] // 2 * (np.arange(16)[:, None] // 2) % 2 == 0
        return time_step._replace(observation=np.where(squares, shades[:, None, None], np.uint8(0)))


def _environment() -> Any:
    return Pictures(create_environment("CartPole-v1", num_parallel_environments=12, seed=7))


def _algorithm(env: Any) -> PPOAlgorithm:
    tf.keras.utils.set_random_seed(3)
    obs, act = networks.specs_of(env)
    scaled = tf.TensorSpec(obs.shape, tf.float32)
    actor, value = networks.feed_forward(scaled, act, conv_layer_params=((8, 4, 2), (8, 3, 1)))
    return PPOAlgorithm(
        obs,
        act,
        actor,
        value,
        loss=networks.PPOLoss(act),
        optimizer=tf.keras.optimizers.legacy.Adam(3e-3),
        observation_transformer=image_scale_transformer,
    )


def _segments(stepping: str) -> list[Experience]:
    env = _environment()
    return segments(env, _algorithm(env), stepping)


def test_what_is_recorded_is_bit_identical_inside_the_graph_and_outside():
    inside, outside = _segments("graph"), _segments("host")
    assert len(np.unique(inside[-1].action)) == 2
    check_identical(inside, outside)


def _played(monkeypatch: pytest.MonkeyPatch, limit: float) -> list[Any]:
    monkeypatch.setattr(policy_driver, "SLOW_STEP_SECS", limit)
    env = _environment()
    steps: list[Any] = []
    PolicyDriver(env, _algorithm(env), [steps.append], mode=PolicyDriver.OFF_POLICY_TRAINING, random_seed=5).run(720)
    return steps


def test_what_is_played_is_bit_identical_inside_the_graph_and_outside(monkeypatch):
    outside, inside = _played(monkeypatch, -1.0), _played(monkeypatch, math.inf)
    assert len(inside) == 60
    for mine, theirs in zip(inside, outside, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's operations have these names on such processors")
@pytest.mark.parametrize("kind", ["segments", "evaluation"])
def test_convolutions_inside_of_loops_are_those_of_onednn(monkeypatch, kind):
    """Operations by their own names are Eigen's, which take longer."""
    monkeypatch.setattr(policy_driver, "SLOW_STEP_SECS", math.inf)
    env = _environment()
    if kind == "segments":
        driver: Any = SyncOffPolicyDriver(env, _algorithm(env), unroll_length=4, random_seed=1, stepping="graph")
        run = driver.run
    else:
        driver = PolicyDriver(env, _algorithm(env), random_seed=1)
        run = lambda: driver.run(720)  # noqa: E731
    tensorflow = context.context()
    tensorflow.enable_run_metadata()
    try:
        run()
        graphs = tensorflow.export_run_metadata().partition_graphs
    finally:
        tensorflow.disable_run_metadata()
        getattr(driver, "stop", env.close)()
    # A loop that TensorFlow leaves alone is a function, beside the operations of the graph itself.
    nodes = [node for g in graphs for node in (*g.node, *(n for f in g.library.function for n in f.node_def))]
    convolutions = {node.op for node in nodes if "Conv2D" in node.op}
    assert convolutions
    assert all(op.startswith("_Mkl") for op in convolutions)
