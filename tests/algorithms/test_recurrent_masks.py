"""Masks of actions beside recurrent networks: against loops over rows, and environments that refuse what is forbidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.data_structures import Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.utils.action_masks import split_mask
from tests.algorithms.networks import recurrent, specs_of
from tests.algorithms.off_policy import adam
from tests.algorithms.recurrent_off_policy import make
from tests.algorithms.test_action_masks import environment, masked_experience
from tests.algorithms.test_off_policy_losses import CHOICE, GAMMA, OBS, B, T, loss_and_gradients
from tests.algorithms.test_recurrent_off_policy import ALPHA, Loop, call, randomize, trained_variables

SPLIT = {"observation_and_action_constraint_splitter": split_mask}
MASKED = {"observation": OBS, "mask": tensor_spec.TensorSpec([3], tf.float32)}


class MaskedLoop(Loop):
    """Shows networks what is beside the mask, and knows what is allowed."""

    def __init__(self, exp: Experience, allowed: np.ndarray) -> None:
        super().__init__(exp)
        self.allowed = allowed

    def seen(self, t: int, b: int) -> tf.Tensor:
        return self.exp.observation["observation"][t, b : b + 1]

    def only_allowed(self, values: tf.Tensor, t: int, b: int) -> tf.Tensor:
        """The entries of [3] that are allowed, in order."""
        return tf.boolean_mask(values, self.allowed[t, b])

    def place(self, t: int, b: int) -> int:
        """Of the action that was taken, among those that are allowed."""
        return int(self.allowed[t, b, : self.number(t, b)].sum())


def _dqn_loop(algorithm: Any, loop: MaskedLoop) -> dict[tuple[int, int], tuple[tf.Tensor, tf.Tensor]]:
    start = loop.exp.state.critics[0]
    online, target = algorithm._q_network, algorithm._target_networks[0]
    before, before_target = (loop.remember(net, loop.seen, start) for net in (online, target))
    losses = {}
    for t, b in loop.trained():
        at = (t + 1, b)
        values = call(online, loop.seen(t, b), before[t, b])[0]
        best = int(tf.argmax(loop.only_allowed(call(online, loop.seen(*at), before[at])[0], *at)))
        following = loop.only_allowed(call(target, loop.seen(*at), before_target[at])[0], *at)[best]
        losses[t, b] = ((loop.target(t, b, following) - values[loop.number(t, b)]) ** 2, tf.zeros([]))
    return losses


def _sac_loop(algorithm: Any, loop: MaskedLoop) -> dict[tuple[int, int], tuple[tf.Tensor, tf.Tensor]]:
    """All sums are over the actions that exist: those that are allowed."""
    state, nets = loop.exp.state, algorithm._critic_networks
    actor = loop.remember(algorithm._actor_network, loop.seen, state.actor)
    critics = [loop.remember(n, loop.seen, s) for n, s in zip(nets, state.critics, strict=True)]
    targets = [loop.remember(n, loop.seen, s) for n, s in zip(algorithm._target_networks, state.critics, strict=True)]

    def policy(t: int, b: int) -> tf.Tensor:
        logits = call(algorithm._actor_network, loop.seen(t, b), actor[t, b]).logits[0]
        return tf.nn.log_softmax(loop.only_allowed(logits, t, b))

    def values(networks: Any, before: Any, t: int, b: int) -> list[tf.Tensor]:
        found = [call(n, loop.seen(t, b), s[t, b])[0] for n, s in zip(networks, before, strict=True)]
        return [loop.only_allowed(v, t, b) for v in found]

    losses = {}
    for t, b in loop.trained():
        now, after = policy(t, b), policy(t + 1, b)
        both = values(nets, critics, t, b)
        lower = tf.minimum(*values(algorithm._target_networks, targets, t + 1, b))
        target = loop.target(t, b, tf.reduce_sum(tf.exp(after) * (lower - ALPHA * after)))
        loss = sum((target - q[loop.place(t, b)]) ** 2 for q in both)
        blame = tf.reduce_sum(tf.exp(now) * (ALPHA * now - tf.minimum(*both)))
        entropy = tf.stop_gradient(-tf.reduce_sum(tf.exp(now) * now))
        losses[t, b] = (loss, blame + algorithm._log_alpha * (entropy - 0.3))
    return losses


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["dqn", slow("discrete_sac")])
def test_losses_and_gradients_are_those_of_a_loop_over_allowed_actions(name: str) -> None:
    settings = {"initial_log_alpha": -0.5, "target_entropy": 0.3} if name == "discrete_sac" else {}
    algorithm = make(name, MASKED, CHOICE, GAMMA, seen=OBS, **settings, **SPLIT)
    randomize(algorithm)
    algorithm.use_rollout_state = True
    exp, allowed = masked_experience(1)
    rs = np.random.RandomState(4)
    state = tf.nest.map_structure(
        lambda s: tf.constant(rs.uniform(-0.9, 0.9, (T, B, *s.shape)), tf.float32), algorithm.train_state_spec
    )
    exp, variables = exp._replace(state=state), trained_variables(algorithm)
    with tf.GradientTape(persistent=True) as tape:
        losses = (_dqn_loop if name == "dqn" else _sac_loop)(algorithm, MaskedLoop(exp, allowed))
        totals = [tf.add_n(list(part)) for part in zip(*losses.values(), strict=True)]
    critics = {v.ref() for network in algorithm._critic_networks for v in network.variables}
    expected = [tape.gradient(totals[0 if v.ref() in critics else 1], v) for v in variables]
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    table = np.zeros((T, B))
    for place, value in losses.items():
        table[place] = float(sum(value))
    np.testing.assert_allclose(loss, table, rtol=1e-3, atol=1e-4)
    for variable, gradient, wanted in zip(variables, gradients, expected, strict=True):
        assert np.abs(wanted).max() > 1e-4, variable.name
        np.testing.assert_allclose(gradient, wanted, rtol=2e-3, atol=1e-3, err_msg=variable.name)


def algorithm_of(name: str) -> Any:
    """A recurrent algorithm for `environment`, which refuses every action that it forbids."""
    obs, act = specs_of(environment(2, 0))
    seen = split_mask(obs)[0]
    if name in ("dqn", "discrete_sac"):
        target = {"target_entropy": 0.05} if name == "discrete_sac" else {"epsilon_greedy": 0.5}
        return make(name, obs, act, 0.2, lr=1e-2, seen=seen, **target, **SPLIT)
    actor, value = recurrent(seen, act, 8)
    if name == "ppo":
        return PPOAlgorithm(obs, act, actor, value, loss=PPOLoss(act, gamma=0.2), optimizer=adam(1e-2), **SPLIT)
    loss = ActorCriticLoss(act, gamma=0.2, use_vtrace=True)
    return ActorCriticAlgorithm(obs, act, actor, value, loss=loss, optimizer=adam(1e-2), **SPLIT)


def train(algorithm: Any, name: str) -> None:
    if name in ("dqn", "discrete_sac"):
        algorithm.train(4, 16, 5, whole_replay_buffer_training=False)
    else:
        algorithm.train(2)
    assert np.isfinite(float(algorithm.last_train_metrics["loss"]))


@pytest.mark.parametrize("name", [slow("dqn"), slow("discrete_sac"), "vtrace", slow("ppo")])
def test_forbidden_actions_are_never_taken(name: str) -> None:
    tf.keras.utils.set_random_seed(5)
    algorithm = algorithm_of(name)
    samples = name in ("dqn", "discrete_sac")
    algorithm.use_rollout_state, algorithm.burn_in_length = True, 2 if samples else 0
    driver = SyncOffPolicyDriver(
        environment(16, 0), algorithm, 12, exp_replayer="uniform" if samples else "one_time", random_seed=1
    )
    judges = [PolicyDriver(environment(16, 9), algorithm, epsilon_greedy=e, random_seed=2) for e in (0.0, 0.7)]
    try:
        driver.gather(at_random=True)
        for _ in range(6):
            driver.run()
            train(algorithm, name)
        for judge in judges:
            judge.run_episodes(32)
    finally:
        driver.stop()


@pytest.mark.parametrize(("name", "actors"), [slow("dqn", 1), slow("vtrace", 1), slow("discrete_sac", 0)])
def test_nor_by_those_who_act_beside_the_learner(name: str, actors: int) -> None:
    tf.keras.utils.set_random_seed(5)
    algorithm = algorithm_of(name)
    algorithm.use_rollout_state = True
    replayer = "one_time" if name == "vtrace" else "uniform"
    driver = AsyncOffPolicyDriver(
        [environment(8, i) for i in range(2)], algorithm, actors, 12, exp_replayer=replayer, random_seed=1
    )
    driver.start()
    try:
        for _ in range(4):
            driver.run_async()
            train(algorithm, name)
    finally:
        driver.stop()
