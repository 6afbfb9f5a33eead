"""Where gradients of off-policy losses go: through critics into every component of an action, and not into targets."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.critic_algorithm import value_ascent
from alf.algorithms.sarsa_algorithm import SarsaInfo
from alf.networks.critic_network import CriticNetwork
from alf.utils import rng
from tests.algorithms.off_policy import CONTINUOUS, DISCRETE, make
from tests.algorithms.test_off_policy_losses import (
    BOX,
    CHOICE,
    GAMMA,
    LAST,
    OBS,
    experience,
    loss_and_gradients,
    randomize,
    training_info,
)

ROWS = 7


@pytest.mark.parametrize("clipping", [None, 0.4])
def test_the_ascent_is_along_every_component_of_every_part_of_an_action(clipping: float | None) -> None:
    spec = {name: tensor_spec.BoundedTensorSpec([n], tf.float32, -2.0, 2.0) for name, n in (("a", 2), ("b", 1))}
    rs = np.random.RandomState(0)
    critics = [CriticNetwork((OBS, spec), joint_fc_layer_params=None, name=f"critic{i}") for i in range(2)]
    for seed, network in enumerate(critics):
        network.create_variables()
        randomize(network, seed)
    observation = rs.normal(size=(ROWS, 2)).astype(np.float32)
    action = {name: tf.Variable(rs.normal(size=(ROWS, n)).astype(np.float32)) for name, n in (("a", 2), ("b", 1))}
    with tf.GradientTape() as tape:
        chosen = tf.nest.map_structure(tf.identity, action)
        value = value_ascent(critics, tf.constant(observation), chosen, clipping, tf.ones([ROWS], tf.int32), [(), ()])
        total = tf.reduce_sum(value)
    found, smaller = tape.gradient(total, action), set()
    weights = [[v.numpy().astype(np.float64) for v in critic.trainable_variables] for critic in critics]
    for row in range(ROWS):
        inputs = np.concatenate([observation[row], action["a"][row], action["b"][row]])
        values = [float(inputs @ kernel[:, 0] + bias[0]) for kernel, bias in weights]
        critic = int(np.argmin(values))
        slope = weights[critic][0][2:, 0]
        slope = slope if clipping is None else np.clip(slope, -clipping, clipping)
        np.testing.assert_allclose(value[row], values[critic], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["a"][row], slope[:2], rtol=1e-5)
        np.testing.assert_allclose(found["b"][row], slope[2:], rtol=1e-5)
        smaller.add(critic)
    assert smaller == {0, 1}


@pytest.mark.parametrize(
    ("name", "settings", "tolerances"),
    [("ddpg", {}, {"rtol": 1e-5}), ("sac", {"initial_log_alpha": -20.0}, {"rtol": 1e-3, "atol": 1e-5})],
)
def test_dqda_clipping_bounds_the_slope(name: str, settings: dict[str, float], tolerances: dict[str, float]) -> None:
    """SAC has next to no temperature: what the entropy adds to the gradient is not clipped."""
    exp = experience(BOX)
    algorithm = make(name, OBS, BOX, GAMMA, layers=None, dqda_clipping=0.05, **settings)
    randomize(algorithm)
    actor, gradients = list(algorithm._actor_network.trainable_variables), []
    for slope in (0.05, 3.0, -0.05, -3.0):
        for critic in algorithm._critic_networks:
            kernel = critic.trainable_variables[0]
            kernel.assign(np.concatenate([kernel.numpy()[:2], [[slope]]]))
        gradients.append(loss_and_gradients(algorithm, exp, actor)[1])
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients[0])
    for found, sign in zip(gradients, (1.0, 1.0, -1.0, -1.0), strict=True):
        for gradient, first in zip(found, gradients[0], strict=True):
            np.testing.assert_allclose(gradient, sign * first, **tolerances)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_no_gradient_flows_into_rows_that_targets_look_at(name: str, n: int) -> None:
    """What encodes observations would get it. The last row of an episode is looked at and never trained."""
    spec = CHOICE if name in DISCRETE else BOX
    settings = {"c51": {"n_step": n}, "td3": {"actor_update_period": 1}}.get(name, {})
    gin.bind_parameter("OneStepTDLoss.n_step", n)
    algorithm, exp = make(name, OBS, spec, GAMMA, layers=None, **settings), experience(spec)
    randomize(algorithm)
    observation = tf.Variable(exp.observation)
    with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
        info = training_info(algorithm, exp._replace(observation=tf.identity(observation)))
        if name == "sarsa":
            info = info._replace(rollout_info=SarsaInfo(next_action=tf.concat([exp.action[1:], exp.action[-1:]], 0)))
        total = tf.reduce_sum(algorithm.calc_loss(info).loss)
    gradient, last = tape.gradient(total, observation).numpy(), exp.step_type.numpy() == LAST
    assert last[1:-1].any()
    np.testing.assert_array_equal(gradient[last], 0.0)
    assert (gradient[0] != 0.0).any(-1).all()
