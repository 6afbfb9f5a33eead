"""A run that is resumed with other settings takes them over, or says that it cannot."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.value_network import ValueNetwork

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.exploration import EpsilonGreedy, LinearSchedule
from alf.algorithms.normalization import ObservationNormalizer
from alf.trainers.checkpointing import CheckpointError
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_report import learning_rate

pytestmark = pytest.mark.slow


@pytest.fixture
def train(small_config):
    """Trains to an iteration in the same directory: by an optimiser, with layers of the value network."""

    def run(num_iterations, optimizer, layers=(8,), normalized=False):
        def make(observation_spec, action_spec, debug_summaries=False):
            return Agent(
                observation_spec,
                action_spec,
                lambda **kwargs: ActorCriticAlgorithm(
                    actor_network=ActorDistributionNetwork(observation_spec, action_spec, fc_layer_params=(8,)),
                    value_network=ValueNetwork(observation_spec, fc_layer_params=layers),
                    **kwargs,
                ),
                optimizer=optimizer,
                observation_normalizer=ObservationNormalizer(observation_spec) if normalized else None,
            )

        trainer = small_config(
            SyncOffPolicyTrainer, algorithm_ctor=make, num_iterations=num_iterations, mini_batch_length=2
        ).create_trainer()
        trainer.train()
        return trainer

    return run


LEGACY = tf.keras.optimizers.legacy


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (LEGACY.Adam, [{"learning_rate": 1e-2, "beta_1": 0.9}, {"learning_rate": 1e-4, "beta_1": 0.5}]),
        (LEGACY.SGD, [{"learning_rate": 1e-2, "momentum": 0.5}, {"learning_rate": 1e-3, "momentum": 0.9}]),
        (tf.keras.optimizers.Adam, [{"learning_rate": 1e-2}, {"learning_rate": 1e-4}]),
    ],
    ids=["Adam", "SGD", "Keras"],
)
def test_the_numbers_of_an_optimiser_are_those_of_the_configuration(optimizer, settings, train, logged):
    made = optimizer(**settings[0])
    train(2, made)
    other = optimizer(**settings[1])
    assert train(4, other).counters.iterations == 4
    for name, value in settings[1].items():
        assert float(getattr(other, name)) == pytest.approx(value), name
    assert int(other.iterations) == 2 * int(made.iterations), "the optimiser itself goes on"
    assert "learning_rate was 0.01 at the checkpoint and is" in "\n".join(logged)


@pytest.mark.parametrize("optimizer", [LEGACY.Adam, tf.keras.optimizers.Adam], ids=["Adam", "Keras"])
@pytest.mark.parametrize("constant", ["before", "after"])
def test_a_schedule_and_a_constant_learning_rate_take_turns(optimizer, constant, train):
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(1e-2, decay_steps=1000, end_learning_rate=0.0)
    rates = [1e-4, schedule] if constant == "before" else [schedule, 1e-4]
    made, other = optimizer(rates[0]), optimizer(rates[1])
    train(2, made)
    assert train(4, other).counters.iterations == 4
    updates = int(other.iterations)
    assert updates == 2 * int(made.iterations), "the optimiser itself goes on"
    rate = 1e-2 * (1 - updates / 1000) if constant == "before" else 1e-4
    # New optimisers of Keras tell the rate of their last step, the others that of the next.
    assert learning_rate(other) == pytest.approx(rate, abs=1.1e-5 if constant == "before" else None)


@pytest.mark.parametrize("constant", ["before", "after"])
def test_a_schedule_and_a_constant_exploration_take_turns(constant, small_config, logged):
    schedule = LinearSchedule(1.0, 0.0, 1000, unit="updates")
    explorations = [EpsilonGreedy(0.5), EpsilonGreedy(schedule)]
    if constant == "after":
        explorations.reverse()

    def train(num_iterations, exploration):
        def make(observation_spec, action_spec, debug_summaries=False):
            q_network = QNetwork(observation_spec, action_spec, fc_layer_params=(8,))
            optimizer = LEGACY.Adam(1e-3)
            return DqnAlgorithm(observation_spec, action_spec, q_network, optimizer=optimizer, exploration=exploration)

        settings = {"whole_replay_buffer_training": False, "mini_batch_length": 2, "mini_batch_size": 4}
        trainer = small_config(
            SyncOffPolicyTrainer, algorithm_ctor=make, num_iterations=num_iterations, **settings
        ).create_trainer()
        trainer.train()
        return trainer.algorithm

    made = train(2, explorations[0]).updates_made()
    assert train(4, explorations[1]).updates_made() == 2 * made, "the optimiser goes on"
    assert float(schedule()) == pytest.approx(1.0 - made / 1000), "its time passes while it is in use"
    told = "that holds no schedule of exploration: it begins now" in "\n".join(logged)
    assert told == (constant == "before")


def test_a_network_that_lacks_a_layer_is_told(train):
    train(1, LEGACY.Adam(1e-3), layers=(8, 8))
    with pytest.raises(CheckpointError, match=r"networks are others.*_value_network/.*kernel"):
        train(2, LEGACY.Adam(1e-3), layers=(8,))


def test_a_layer_that_the_checkpoint_lacks_is_told_also_beside_another_learning_rate(train):
    train(1, LEGACY.Adam(tf.keras.optimizers.schedules.PolynomialDecay(1e-2, 1000)), layers=(8,))
    with pytest.raises(CheckpointError, match="does not fit this run"):
        train(2, LEGACY.Adam(1e-3), layers=(8, 8))


def test_what_a_run_has_no_more_is_told(train, logged):
    train(1, LEGACY.Adam(1e-3), normalized=True)
    assert train(2, LEGACY.Adam(1e-3)).counters.iterations == 2
    assert "and goes on without: _observation_normalizer/" in "\n".join(logged)


@pytest.mark.parametrize("exact", [False, True])
def test_another_seed_is_told_where_the_run_would_be_exact(exact, small_config, logged):
    def resumed(seed, iterations):
        logged.clear()
        settings = {"exact_resume": exact, "random_seed": seed, "num_iterations": iterations}
        small_config(SyncOffPolicyTrainer, **settings).create_trainer().train()
        return any(f"goes on with random_seed={seed} and began with 1" in line for line in logged)

    assert not resumed(1, 1)
    assert not resumed(1, 2)
    assert resumed(2, 3) == exact
