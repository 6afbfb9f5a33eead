"""An algorithm that takes no action: nothing acts for it, and training goes on without a step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Bootstrap, LossInfo, PolicyStep
from alf.drivers.idle_driver import IdleDriver
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps, TrainingSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.schedule import Schedule
from alf.trainers.stopping import TimeLimit


class Imitation(OffPolicyAlgorithm):
    """Moves its weight half-way to 1 at every training; knows no `rollout`."""

    def __init__(self, observation_spec, action_spec, debug_summaries=False):
        super().__init__(observation_spec, action_spec, optimizer=tf.keras.optimizers.legacy.SGD(1.0))
        self._weight = tf.Variable(0.0)

    @property
    def acts(self):
        return False

    def predict(self, inputs, state=None, epsilon_greedy=0.0):
        return PolicyStep(tf.zeros_like(inputs.prev_action), state, ())

    def train(self, **kwargs):
        self._iterations.assign_add(1)
        self._weight.assign(0.5 * (self._weight + 1.0))
        return 0


class Cloning(OffPolicyAlgorithm):
    """Learns the mean of recorded actions, three of four of which are 1, by the mean squared error."""

    def __init__(self, observation_spec, action_spec, debug_summaries=False):
        super().__init__(observation_spec, action_spec, optimizer=tf.keras.optimizers.legacy.SGD(0.25))
        self._weight = tf.Variable(0.0)
        self.set_exp_replayer("one_time", 2)
        step = self.experience_spec
        rows = tf.nest.map_structure(lambda s: tf.zeros([1, 4, 2, *s.shape], s.dtype), step)
        following = tf.nest.map_structure(
            lambda s: tf.zeros([1, 2, *s.shape], s.dtype), self.transformed_time_step_spec
        )
        self.observe(
            rows._replace(
                step_type=tf.ones([1, 4, 2], tf.int32),
                action=tf.constant([[[1, 1], [1, 1], [1, 1], [0, 0]]], tf.int64),
                bootstrap=Bootstrap(following, ()),
            )
        )

    @property
    def acts(self):
        return False

    def train_step(self, inputs, state=None):
        return PolicyStep((), state, {"guess": tf.zeros_like(inputs.reward) + self._weight})

    def calc_loss(self, training_info):
        return LossInfo(tf.square(training_info.info["guess"] - tf.cast(training_info.action, tf.float32)))


@pytest.fixture(params=[SyncOffPolicyTrainer, AsyncOffPolicyTrainer], ids=["sync", "async"])
def offline_config(request, small_config):
    return lambda **kwargs: small_config(request.param, algorithm_ctor=Imitation, **kwargs)


def _totals(trainer, phase):
    return [trainer.counters[phase].of(unit).value for unit in (EnvironmentSteps, EnvironmentEpisodes, TrainingSteps)]


def test_training_goes_on_without_a_step(offline_config):
    schedule = Schedule("16 env_steps", "2 training_steps", "1 episodes", "3 training_steps")
    trainer = offline_config(schedule=schedule).create_trainer()
    trainer.train()
    assert isinstance(trainer.driver, IdleDriver)
    assert _totals(trainer, Phase.HEATUP) == [0, 0, 0]
    assert _totals(trainer, Phase.TRAIN) == [0, 0, 3]
    assert [e.step for e in trainer._evaluations.history.all] == [2, 3]
    resumed = offline_config(schedule=Schedule(improve_steps="4 training_steps")).create_trainer()
    resumed.train()
    assert float(resumed.algorithm._weight) == np.float32(1 - 0.5**4)


def test_it_learns_from_the_replay_that_it_brings(small_config):
    settings = {"num_iterations": 3, "num_updates_per_train_step": 2, "clear_replay_buffer": False}
    settings |= {"mini_batch_size": None, "mini_batch_length": None}
    trainer = small_config(SyncOffPolicyTrainer, algorithm_ctor=Cloning, **settings).create_trainer()
    trainer.train()
    # A step of SGD with rate r takes the share 1 - 2r of the error away: 6 steps leave 0.5**6 of it.
    np.testing.assert_allclose(trainer.algorithm._weight.numpy(), 0.75 * (1 - 0.5**6), rtol=1e-6)
    assert _totals(trainer, Phase.TRAIN) == [0, 0, 3]


def test_acting_returns_after_no_step(offline_config):
    with offline_config().create_trainer() as trainer:
        for act in (trainer.act, trainer.heatup):
            done = act(EnvironmentSteps(100))
            assert (done, done.episode_ended) == ((0, 0), False)
        assert _totals(trainer, Phase.TRAIN) == [0, 0, 0]


def test_an_end_that_never_comes_is_an_error(offline_config):
    with offline_config().create_trainer() as trainer:
        for count in (EnvironmentSteps(100), EnvironmentEpisodes(1)):
            with pytest.raises(ValueError, match=r"Imitation takes no action, so .* are never reached"):
                trainer.train_and_act(count)
    with pytest.raises(ValueError, match=r"100 env_steps are never reached: give training_steps"):
        offline_config(num_iterations=0, num_env_steps=100).create_trainer().train()
    trainer = offline_config(num_iterations=0, num_env_steps=100, stop_conditions=[TimeLimit(0.01)]).create_trainer()
    trainer.train()
    assert trainer.counters.iterations >= 1


def test_a_trainer_that_trains_only_on_what_it_collects_says_so(small_config):
    trainer = small_config(OnPolicyTrainer, algorithm_ctor=Imitation).create_trainer()
    with pytest.raises(
        ValueError, match=r"Imitation takes no action, .*: set TrainerConfig.trainer = @sync_off_policy"
    ):
        trainer.train()
    assert not trainer.initialized, "a command tells it in a line"


def test_the_last_line_tells_the_last_evaluation(small_config, caplog):
    settings = {"num_iterations": 2, "evaluate": True, "eval_interval": 1, "num_eval_episodes": 3}
    trainer = small_config(SyncOffPolicyTrainer, algorithm_ctor=Imitation, **settings).create_trainer()
    with caplog.at_level("INFO", "absl"):
        trainer.train()
    (line,) = (m for m in caplog.messages if m.startswith("Training ended:"))
    last = trainer.last_evaluation
    told = f"evaluated at {last.average_return:.2f} ± {last.std_return:.2f} over 3 episodes."
    assert line == f"Training ended: num_iterations=2 is reached; iteration 2, 0 env steps, {told}"
