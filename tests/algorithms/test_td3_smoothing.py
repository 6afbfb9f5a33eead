"""TD3's target actions: each component has noise of its own, in proportion to its range, and each update anew."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.critic_algorithm import NetworkStates
from alf.algorithms.ddpg_algorithm import DdpgInfo
from alf.algorithms.transitions import Transitions
from alf.data_structures import TrainingInfo
from alf.utils import rng
from tests.algorithms.off_policy import make
from tests.algorithms.test_off_policy_losses import GAMMA, OBS

ROWS = 4000


def test_td3_smooths_each_component_of_target_actions_by_noise_of_its_own_within_its_own_bounds() -> None:
    box = tensor_spec.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 6.0])
    algorithm = make("td3", OBS, box, GAMMA, layers=None, target_policy_noise=0.2, target_policy_noise_clip=0.1)
    observation = tf.random.stateless_normal([2, ROWS, 2], [1, 2]) * 0.01
    none, states = tf.zeros([2, ROWS]), NetworkStates()
    info = TrainingInfo(
        tf.zeros([2, ROWS, 2]), tf.ones([2, ROWS], tf.int32), none, none, DdpgInfo((), observation, states)
    )

    def smoothed(seed: int) -> np.ndarray:
        with rng.scope(tf.constant([seed, 2])):
            return algorithm.next_action(info, Transitions(info, 1)).numpy()

    noise, other = (smoothed(seed) - algorithm._target_actor(observation[1])[0].numpy() for seed in (1, 5))
    # Half of the ranges are 2 and 3, so the noise has deviations 0.4 and 0.6, and is clipped at 0.2 and 0.3.
    np.testing.assert_allclose(np.abs(noise).max(0), [0.2, 0.3], rtol=0, atol=1e-5)
    clipped = np.abs(noise) > np.array([0.199, 0.2985])
    assert ((clipped.mean(0) > 0.5) & (clipped.mean(0) < 0.75)).all()
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
    assert (noise != other).mean() > 0.5
    algorithm._target_actor.trainable_variables[1].assign([20.0, -20.0])
    action = smoothed(1)
    np.testing.assert_allclose(action.min(0), [1.8, 0.0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(action.max(0), [2.0, 0.3], rtol=0, atol=1e-5)
