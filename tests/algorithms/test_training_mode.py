"""Networks are in training mode where they learn and nowhere else: a layer of dropout tells."""

from __future__ import annotations

import threading
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.keras_layers.permanent_variable_rate_dropout import PermanentVariableRateDropout
from tf_agents.networks import actor_distribution_network, network, q_network, value_network

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, ValueUnittestEnv
from alf.networks.actor_network import ActorNetwork
from alf.networks.calling import call_network, learning
from alf.networks.critic_network import CriticNetwork
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import adam

# ---- the switch ----


class _Plain(network.Network):
    """Takes no `training`."""

    def call(self, inputs, step_type=None, network_state=()):
        return inputs, network_state


class _TakingAll(network.Network):
    """Takes `training` among others."""

    def call(self, inputs, step_type=None, **others):
        return others.get("training", False), ()


class _Telling(network.Network):
    """Its output is whether it is in training mode."""

    def call(self, inputs, step_type=None, network_state=(), training=False):
        return bool(training), network_state


def test_only_learning_code_of_this_thread_trains():
    telling, told = _Telling(), []
    x = tf.zeros([1])
    tell = lambda: call_network(telling, x, step_type=())[0]  # noqa: E731
    assert not tell()
    with learning():
        assert tell()
        with learning(False):
            assert not tell()
            with learning():
                assert tell()
        thread = threading.Thread(target=lambda: told.append(tell()))
        thread.start()
        thread.join()
        assert tell()
        assert call_network(_Plain(), x, step_type=())[0] is x
        assert call_network(_TakingAll(), x, step_type=())[0] is True
        with pytest.raises(ArithmeticError), learning(False):
            raise ArithmeticError
        assert tell()
    assert not tell()
    assert told == [False]


# ---- algorithms ----

DROPOUT = 0.25


def _actor_critic(obs, act):
    actor = actor_distribution_network.ActorDistributionNetwork(
        obs, act, fc_layer_params=(8,), dropout_layer_params=[DROPOUT]
    )
    value = value_network.ValueNetwork(obs, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])
    return {"actor_network": actor, "value_network": value, "optimizer": adam(1e-2)}


def _q(obs, act):
    return q_network.QNetwork(obs, act, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])


def _critic(obs, act):
    return CriticNetwork((obs, act), joint_fc_layer_params=(8,), joint_dropout_layer_params=[DROPOUT])


def _ppo(obs, act):
    return PPOAlgorithm(obs, act, **_actor_critic(obs, act), loss=PPOLoss(act))


def _a2c(obs, act):
    return ActorCriticAlgorithm(obs, act, **_actor_critic(obs, act), loss=ActorCriticLoss(act))


def _dqn(obs, act):
    return DqnAlgorithm(obs, act, _q(obs, act), optimizer=adam(1e-2))


def _ddpg(obs, act):
    actor = ActorNetwork(obs, act, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])
    return DdpgAlgorithm(obs, act, actor, _critic(obs, act), actor_optimizer=adam(1e-2), critic_optimizer=adam(1e-2))


def _td3(obs, act):
    actor = ActorNetwork(obs, act, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])
    return Td3Algorithm(obs, act, actor, _critic(obs, act), actor_optimizer=adam(1e-2), critic_optimizer=adam(1e-2))


def _sac(obs, act):
    actor = _actor_critic(obs, act)["actor_network"]
    two = {"actor_optimizer": adam(1e-2), "critic_optimizer": adam(1e-2), "alpha_optimizer": adam(1e-2)}
    return SacAlgorithm(obs, act, actor, _critic(obs, act), **two)


CASES = [
    (_ppo, ActionType.Discrete, True),
    (_a2c, ActionType.Discrete, False),
    (_dqn, ActionType.Discrete, True),
    (_ddpg, ActionType.Continuous, True),
    (_td3, ActionType.Continuous, True),
    (_sac, ActionType.Continuous, True),
]


@pytest.fixture
def modes(monkeypatch):
    """Of every call of a dropout layer, the layer and whether it was in training mode."""
    gin.clear_config()
    seen: list[tuple[Any, bool]] = []

    def call(self, inputs, training=None):
        seen.append((self, bool(training)))
        return inputs

    monkeypatch.setattr(PermanentVariableRateDropout, "call", call)
    return seen


@pytest.mark.parametrize(("make", "action_type", "judges"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_acting_does_not_train_and_learning_does(make, action_type, judges, modes):
    env = ValueUnittestEnv(4, 5, action_type=action_type)
    algorithm = make(*specs_of(env))
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=6, exp_replayer="one_time", random_seed=1)
    driver.run()
    player = PolicyDriver(ValueUnittestEnv(4, 5, action_type=action_type), algorithm, random_seed=1)
    player.run(8)
    assert modes
    assert not any(mode for _, mode in modes), "acting and evaluating"
    modes.clear()
    algorithm.train(num_updates=2, mini_batch_size=2)
    # What PPO computes once a batch, target networks, and critics that only judge the actor do not learn.
    assert all(mode for _, mode in modes) == (not judges)
    layers = {id(m) for m in algorithm.submodules if isinstance(m, PermanentVariableRateDropout)}
    targets = {id(m) for net in getattr(algorithm, "_target_networks", ()) for m in net.submodules} & layers
    assert bool(targets) == (make in (_dqn, _ddpg, _td3, _sac))
    assert {id(layer) for layer, mode in modes if mode} == layers - targets
    if make in (_ddpg, _td3, _sac):
        # Those that judge the actor: of TD3's two the first.
        judging = algorithm._critic_networks[:1] if make is _td3 else algorithm._critic_networks
        critics = {id(m) for net in judging for m in net.submodules} & layers
        assert critics <= {id(layer) for layer, mode in modes if not mode}, "judging the actor"
    modes.clear()
    driver.run()
    player.freeze()
    player.run(8)
    assert not any(mode for _, mode in modes), "acting goes on as before"
    driver.stop()


def test_dropout_drops_where_it_learns_only():
    tf.keras.utils.set_random_seed(1)
    env = ValueUnittestEnv(32, 5)
    algorithm = _a2c(*specs_of(env))
    layers = [m for m in algorithm.submodules if isinstance(m, tf.keras.layers.Dropout)]
    assert len(layers) == 2
    time_step = tf.nest.map_structure(
        lambda spec: tf.ones([32, *spec.shape], spec.dtype), algorithm.transformed_time_step_spec
    )
    value = lambda: algorithm.rollout(time_step, (), 1).info.value.numpy()  # noqa: E731
    acting = value()
    assert np.ptp(acting) == 0.0
    np.testing.assert_array_equal(value(), acting)
    with learning():
        rows = value()
    assert np.ptp(rows) > 0.0, "each row has lost other units"
    np.testing.assert_array_equal(value(), acting)
