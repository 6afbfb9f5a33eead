"""What environments and algorithms are told of the run they are part of."""

from __future__ import annotations

import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.crash_isolation import RestartingEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment, StepCounter
from alf.trainers.counts import EnvironmentSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.schedule import Schedule
from tests.trainers.small_run import make_algorithm

RUN = Schedule("64 env_steps", "2 training_steps", "2 episodes", "4 training_steps")


@gin.configurable
class Recording(BatchWrapper):
    """Writes down what it is told and does, and in which thread; steps in a row count as one.

    Two threads in it at once are an error.
    """

    made: list[Recording] = []

    def __init__(self, env):
        super().__init__(env)
        self.told = []
        self.threads = set()
        self._used = threading.Lock()
        Recording.made.append(self)

    def _note(self, what, then, *args):
        assert self._used.acquire(blocking=False), f"{what} while the environment is in use"
        try:
            self.threads.add(threading.get_ident())
            if not self.told or self.told[-1] != what:
                self.told.append(what)
            return then(*args)
        finally:
            self._used.release()

    def before_building(self):
        self._note("before", super().before_building)

    def after_building(self):
        self._note("after", super().after_building)

    def enter_phase(self, phase):
        self._note(phase, super().enter_phase, phase)

    def _reset(self):
        return self._note("reset", super()._reset)

    def _step(self, action):
        return self._note("step", super()._step, action)


@pytest.fixture
def recorded():
    Recording.made = []
    gin.parse_config("suite_gym.load.env_wrappers = [@Recording]")
    yield Recording.made
    Recording.made = []


def _of_training_and_evaluation(made):
    return [e for e in made if "test" not in e.told], [e for e in made if "test" in e.told]


def test_environments_are_told_of_each_phase(recorded, small_config):
    trainer = small_config(SyncOffPolicyTrainer, schedule=RUN).create_trainer()
    trainer.train()
    (training,), (evaluation,) = _of_training_and_evaluation(recorded)
    assert training.told == ["before", "after", "heatup", "reset", "step", "train", "step"]
    # Two evaluations, each from a reset.
    assert evaluation.told == ["before", "after", "test", "reset", "step", "reset", "step"]


def test_environments_in_threads_are_told_between_their_steps(recorded, small_config):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    trainer = small_config(AsyncOffPolicyTrainer, schedule=RUN).create_trainer()
    trainer.train()
    training, (evaluation,) = _of_training_and_evaluation(recorded)
    assert len(training) == 2
    for env in training:
        assert env.told == ["before", "after", "heatup", "reset", "step", "train", "step"]
    assert evaluation.told[:4] == ["before", "after", "test", "reset"]


def test_environments_of_new_streams_are_told_too(recorded, small_config):
    settings = {"exact_resume": True, "checkpoint_interval": 2, "num_iterations": 4}
    small_config(SyncOffPolicyTrainer, **settings).create_trainer().train()
    assert [e.told for e in recorded] == [["before", "after", "train", "reset", "step"]] * 2


def test_phases_of_user_code_nest_and_end_with_an_error(recorded, small_config):
    trainer = small_config(SyncOffPolicyTrainer).create_trainer()
    with trainer:
        trainer.act(EnvironmentSteps(4))
        with pytest.raises(ArithmeticError), trainer.phase_context(Phase.HEATUP):
            trainer.act(EnvironmentSteps(4))
            with trainer.phase_context(Phase.TEST):
                pass
            raise ArithmeticError
        trainer.act(EnvironmentSteps(4))
    (env,) = recorded
    assert env.told[2:] == ["train", "reset", "step", "heatup", "step", "train", "step"]


@pytest.mark.parametrize("step_timeout_secs", [None, 60.0])
def test_a_rebuilt_environment_is_told_its_phase_in_the_thread_that_steps(step_timeout_secs):
    counter, made = StepCounter(), []

    def build(seed):
        env = Recording(FaultyEnvironment(CountingEnvironment(2), raise_at=[3], counter=counter))
        made.append(env)
        return env

    env = RestartingEnvironment(build, seed=1, step_timeout_secs=step_timeout_secs)
    env.before_building()
    env.after_building()
    env.enter_phase("heatup")
    env.enter_phase("train")
    env.reset()
    env.enter_phase("".join(["tra", "in"]))
    for _ in range(12):
        env.step(np.zeros(2, np.int64))
    env.close()
    first, second = made
    assert first.told == ["before", "after", "train", "reset", "step"]
    assert second.told == ["train", "reset", "step"]
    for one in made:
        assert len(one.threads) == 1
        assert (threading.get_ident() in one.threads) == (step_timeout_secs is None)


# ---- algorithms ----


class _Told:
    """Makes agents and notes, whenever the algorithm inside one is told of a restore, a weight as it is then."""

    def __init__(self):
        self.weights, self.seen = [], []

    def __call__(self, observation_spec, action_spec, debug_summaries=False):
        inner = make_algorithm(observation_spec, action_spec, debug_summaries)
        weight = inner.trainable_variables[0]
        self.weights.append(weight)
        object.__setattr__(inner, "after_restore", lambda: self.seen.append(weight.numpy()))
        optimizer = tf.keras.optimizers.legacy.Adam(1e-3)
        return Agent(observation_spec, action_spec, rl_algorithm_cls=lambda **kwargs: inner, optimizer=optimizer)


def test_algorithms_are_told_once_of_a_restore(small_config, tmp_path):
    told = _Told()
    small_config(SyncOffPolicyTrainer, algorithm_ctor=told, num_iterations=2).create_trainer().train()
    assert not told.seen, "a new run has nothing to restore"
    for number, more in enumerate(({}, {"root_dir": str(tmp_path / "new"), "initialize_from": str(tmp_path / "run")})):
        before = told.weights[-1].numpy()
        with small_config(SyncOffPolicyTrainer, algorithm_ctor=told, num_iterations=4, **more).create_trainer() as run:
            run.initialize()
            run.initialize()
        assert len(told.seen) == number + 1
        # What it saw was there already.
        np.testing.assert_array_equal(told.seen[-1], before)


@pytest.mark.slow
def test_exact_resume_restores_twice_and_tells_once(small_config):
    told = _Told()
    settings = {"algorithm_ctor": told, "exact_resume": True, "checkpoint_interval": 2}
    small_config(SyncOffPolicyTrainer, num_iterations=3, **settings).create_trainer().train()
    assert not told.seen
    small_config(SyncOffPolicyTrainer, num_iterations=4, **settings).create_trainer().train()
    assert len(told.seen) == 1


def test_what_follows_a_burst_of_training_runs_once_after_it(small_config):
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=3, num_updates_per_train_step=2).create_trainer()
    trainer.initialize()
    updates = []
    (optimizer, _) = trainer.algorithm.optimized_variables()[0]
    trainer.algorithm.add_after_train_hook(lambda: updates.append(int(optimizer.iterations)))
    trainer.train()
    # Two passes of one minibatch of sixteen, each of three times.
    assert updates == [2, 4, 6]
