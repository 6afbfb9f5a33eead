"""Networks are in training mode where they learn and nowhere else: a layer of dropout tells."""

from __future__ import annotations

import functools
import threading
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.keras_layers.permanent_variable_rate_dropout import PermanentVariableRateDropout
from tf_agents.networks import actor_distribution_network, network, q_network, value_network
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.networks.sequential import Sequential
from tf_agents.networks.value_rnn_network import ValueRnnNetwork

from alf.algorithms import minibatch
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.bc_algorithm import BcAlgorithm
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.recording import record_episodes
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, ValueUnittestEnv
from alf.networks.actor_network import ActorNetwork
from alf.networks.calling import call_network, learning
from alf.networks.combining import FlattenAndConcatenate
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
    sizes = {"fc_layer_params": (8,), "dropout_layer_params": [DROPOUT]}
    sizes["preprocessing_combiner"] = FlattenAndConcatenate() if isinstance(obs, list) else None
    actor = actor_distribution_network.ActorDistributionNetwork(obs, act, **sizes)
    value = value_network.ValueNetwork(obs, **sizes)
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
    monkeypatch.setattr(tf.keras.layers.Dropout, "call", call)
    return seen


def _dropouts(module):
    return {id(m) for m in module.submodules if isinstance(m, tf.keras.layers.Dropout)}


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
    layers = _dropouts(algorithm)
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


def _encoder(spec):
    return EncodingNetwork(spec, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])


def _agent(obs, act, curiosity, **settings):
    def ppo(observation_spec, action_spec, debug_summaries=False):
        parts = {k: v for k, v in _actor_critic(observation_spec, action_spec).items() if k != "optimizer"}
        return PPOAlgorithm(observation_spec, action_spec, **parts, loss=PPOLoss(action_spec))

    return Agent(obs, act, ppo, intrinsic_curiosity_module=curiosity, optimizer=adam(1e-2), **settings)


def _with_icm(obs, act):
    feature = tf.TensorSpec([8], tf.float32)
    icm = ICMAlgorithm(act, feature, hidden_size=8, encoding_net=_encoder(feature))
    return _agent(obs, act, icm, encoding_network=_encoder(obs))


def _with_diayn(obs, act):
    feature = tf.TensorSpec([8], tf.float32)
    discriminator = Sequential([tf.keras.layers.Dropout(DROPOUT), tf.keras.layers.Dense(3)], input_spec=feature)
    diayn = DIAYNAlgorithm(3, feature, encoding_net=_encoder(obs), discriminator_net=discriminator)
    return _agent(obs, act, diayn, goal_generator=RandomCategoricalGoalGenerator(obs, 3))


def _recurrent_ppo(obs, act):
    sizes = {"input_fc_layer_params": (8,), "lstm_size": (8,), "output_fc_layer_params": None}
    # TF-Agents' recurrent networks have no dropout of their own.
    actor, value = (
        make(preprocessing_layers=tf.keras.layers.Dropout(DROPOUT), **sizes)
        for make in (
            functools.partial(ActorDistributionRnnNetwork, obs, act),
            functools.partial(ValueRnnNetwork, obs),
        )
    )
    return PPOAlgorithm(obs, act, actor, value, loss=PPOLoss(act), optimizer=adam(1e-2))


@pytest.mark.parametrize(("make", "length", "layers"), [(_with_icm, 1, 4), (_with_diayn, 1, 4), (_recurrent_ppo, 3, 2)])
def test_parts_of_agents_and_memories_learn_where_they_are_trained(make, length, layers, modes):
    env = ValueUnittestEnv(4, 5)
    algorithm = make(*specs_of(env))
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=6, exp_replayer="one_time", random_seed=1)
    driver.run()
    player = PolicyDriver(ValueUnittestEnv(4, 5), algorithm, random_seed=1)
    player.run(8)
    driver.stop()
    assert modes
    assert not any(mode for _, mode in modes), "acting and evaluating"
    modes.clear()
    algorithm.train(num_updates=2, mini_batch_size=2, mini_batch_length=length)
    # A recurrent network keeps what it has copied, too.
    trained = {id(layer) for layer, mode in modes if mode}
    assert trained <= _dropouts(algorithm)
    assert len(trained) == layers


def test_cloning_trains_what_it_clones(modes):
    env = ValueUnittestEnv(4, 5)
    obs, act = specs_of(env)
    steps = record_episodes(_ppo(obs, act), env, 4, random_seed=1)
    modes.clear()
    actor = _actor_critic(obs, act)["actor_network"]
    algorithm = BcAlgorithm(obs, act, actor, steps, optimizer=adam(1e-2))
    PolicyDriver(ValueUnittestEnv(4, 5), algorithm, random_seed=1).run(8)
    assert modes
    assert not any(mode for _, mode in modes), "acting"
    modes.clear()
    algorithm.train(num_updates=2, mini_batch_size=2, mini_batch_length=1)
    assert {id(layer) for layer, mode in modes if mode} == _dropouts(algorithm)
    assert len(_dropouts(algorithm)) == 1


def _within(modes, monkeypatch, owner, name):
    """The modes of the calls made inside of a function, from now on."""
    function, inside = vars(owner)[name], []

    def watched(*args, **kwargs):
        begin = len(modes)
        result = function(*args, **kwargs)
        inside.extend(mode for _, mode in modes[begin:])
        return result

    monkeypatch.setattr(owner, name, watched)
    return inside


def test_the_action_that_sarsa_judges_at_an_end_is_not_learned_from(modes, monkeypatch):
    env = ValueUnittestEnv(4, 5, action_type=ActionType.Continuous)
    obs, act = specs_of(env)
    actor = ActorNetwork(obs, act, fc_layer_params=(8,), dropout_layer_params=[DROPOUT])
    rates = {"actor_optimizer": adam(1e-2), "critic_optimizer": adam(1e-2)}
    algorithm = SarsaAlgorithm(obs, act, actor, _critic(obs, act), **rates)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=6, exp_replayer="one_time", random_seed=1)
    driver.run()
    driver.stop()
    assert not any(mode for _, mode in modes), "acting"
    inside = _within(modes, monkeypatch, SarsaAlgorithm, "next_action")
    algorithm.train(num_updates=1, mini_batch_size=2, mini_batch_length=3)
    assert inside
    assert not any(inside)
    assert any(mode for _, mode in modes)


def test_what_only_warms_a_memory_up_does_not_learn(modes, monkeypatch):
    env = ValueUnittestEnv(4, 5)
    obs, act = specs_of(env)
    dropout = tf.keras.layers.Dropout(DROPOUT)
    sizes = {"input_fc_layer_params": (8,), "lstm_size": (8,), "output_fc_layer_params": None}
    q = QRnnNetwork(obs, act, preprocessing_layers=dropout, **sizes)
    algorithm = DqnAlgorithm(obs, act, q, optimizer=adam(1e-2))
    algorithm.use_rollout_state, algorithm.burn_in_length = True, 2
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=6, exp_replayer="uniform", random_seed=1)
    for _ in range(3):
        driver.run()
    driver.stop()
    inside = _within(modes, monkeypatch, minibatch, "last_state")
    algorithm.train(1, 2, 5, whole_replay_buffer_training=False)
    assert inside
    assert not any(inside), "burn-in"
    assert any(mode for _, mode in modes)


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
