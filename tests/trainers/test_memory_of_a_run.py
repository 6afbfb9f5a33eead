"""What a trainer puts into the replay memory: a dataset at the beginning, whole episodes where asked, nothing in evaluation."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.algorithms.normalization import ObservationNormalizer
from alf.replay.dataset import DatasetError, Steps, write_dataset
from alf.replay.experience_replayer import ReplayTooSmallError
from alf.trainers.counts import EnvironmentEpisodes
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.phases import Phase
from tests.algorithms.off_policy import make
from tests.replay.q_learning import TinyQ

TRAINERS = pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])


@pytest.fixture
def replay_config(small_config):
    """A small run on samples: CartPole, four rows an environment."""
    gin.bind_parameter("ReplayBuffer.max_length", 100)

    def make(trainer, **kwargs):
        settings = {"algorithm_ctor": TinyQ, "whole_replay_buffer_training": False, "unroll_length": 5}
        return small_config(trainer, **{**settings, "mini_batch_length": 2, "mini_batch_size": 8, **kwargs})

    return make


def held(trainer):
    """All that the memory holds, as bytes: places, steps, and what is to come next."""
    memory = trainer.algorithm.exp_replayer
    runs = memory.buffer.index.runs()
    rows = np.concatenate([memory.buffer.index.rows(s, np.arange(first, end)) for s, first, end in runs])
    return [runs.tobytes(), *(x.tobytes() for x in memory.read_rows(rows))]


# ---- a file ----


@pytest.fixture
def path(tmp_path):
    """60 steps of CartPole's kind, in 12 episodes; the first component of what is observed counts them."""
    number = np.arange(60, dtype=np.float32)
    observation = np.stack([number, *np.random.RandomState(0).normal(size=(3, 60)).astype(np.float32)], 1)
    step_type = np.tile(np.array([0, 1, 1, 1, 2], np.int32), 12)
    steps = Steps(step_type, np.ones(60, np.float32), np.ones(60, np.float32), observation, np.zeros(60, np.int64))
    file = str(tmp_path / "recorded.npz")
    write_dataset(file, steps)
    return file


@TRAINERS
def test_the_memory_begins_with_a_dataset(trainer_class, replay_config, path):
    config = replay_config(trainer_class, load_memory_from_file_path=path, initial_collect_steps=60, num_iterations=2)
    with config.create_trainer() as trainer:
        trainer.initialize()
        memory = trainer.algorithm.exp_replayer
        assert memory.total_steps == 60
        drawn = memory.sample(memory.view(1), 2000, 1, tf.constant([1, 2])).experience
        assert set(drawn.observation[:, 0, 0].numpy()) == set(range(60))
        assert trainer.counters.env_steps == 0
        trainer.train()
    # What is there counts as collected: each iteration collects its own steps and no more, and adds them.
    batch = 5 * 4 * (1 if trainer_class is SyncOffPolicyTrainer else 2)
    assert trainer.counters.env_steps == 2 * batch
    assert memory.total_steps == 60 + 2 * batch


@pytest.mark.slow
def test_a_resumed_run_has_the_memory_of_its_checkpoint_or_the_file_again(replay_config, path):
    def run(iterations, **kwargs):
        trainer = replay_config(SyncOffPolicyTrainer, num_iterations=iterations, **kwargs).create_trainer()
        trainer.initialize()
        steps = trainer.algorithm.exp_replayer.total_steps
        trainer.train()
        return steps

    assert run(2, load_memory_from_file_path=path, checkpoint_replay=True) == 60
    assert run(3, load_memory_from_file_path=path, checkpoint_replay=True) == 60 + 2 * 20
    assert run(4, load_memory_from_file_path=path) == 60


def test_a_file_that_does_not_fit_ends_the_run_before_it_begins(replay_config, path):
    with pytest.raises(DatasetError, match=r"The dataset .*gone.npz cannot be read"):
        replay_config(SyncOffPolicyTrainer, load_memory_from_file_path=f"{path}.gone.npz").create_trainer().train()
    gin.bind_parameter("ReplayBuffer.max_length", 14)
    with pytest.raises(ValueError, match=r"in 4 streams, need ReplayBuffer.max_length of at least 15; it is 14"):
        replay_config(SyncOffPolicyTrainer, load_memory_from_file_path=path).create_trainer().train()
    with pytest.raises(ValueError, match=r"TinyQ has a OnetimeExperienceReplayer"):
        replay_config(
            SyncOffPolicyTrainer,
            load_memory_from_file_path=path,
            whole_replay_buffer_training=True,
            mini_batch_length=1,
        ).create_trainer().train()


# ---- a file, and nothing else ----


def test_of_a_dataset_alone_is_learned_without_a_step(replay_config, path):
    config = replay_config(SyncOffPolicyTrainer, load_memory_from_file_path=path, unroll_length=0, evaluate=True)
    with config.create_trainer() as trainer:
        trainer.initialize()
        before = [v.numpy() for v in trainer.algorithm.trainable_variables]
        trainer.train()
        assert trainer.counters.iterations == 3
        assert [int(metric.result()) for metric in trainer.driver.get_step_metrics()] == [0, 0]
        assert trainer.algorithm.exp_replayer.total_steps == 60
        trained = zip(before, trainer.algorithm.trainable_variables, strict=True)
        assert all((old != new.numpy()).any() for old, new in trained)


def test_learning_from_a_dataset_alone_is_repeated_where_it_is_resumed(replay_config, path, tmp_path):
    offline = {"load_memory_from_file_path": path, "unroll_length": 0}
    exact = {"exact_resume": True, "checkpoint_replay": True, "checkpoint_interval": 2}

    def run(root, iterations):
        config = replay_config(
            SyncOffPolicyTrainer, root_dir=str(tmp_path / root), num_iterations=iterations, **offline, **exact
        )
        with config.create_trainer() as trainer:
            trainer.train()
        return [v.numpy() for v in trainer.algorithm.variables]

    whole = run("whole", 4)
    run("halves", 2)
    for one, other in zip(whole, run("halves", 4), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("trainer_class", "settings", "told"),
    [
        (
            SyncOffPolicyTrainer,
            {"load_memory_from_file_path": None},
            "is for learning from samples of a dataset: set load_",
        ),
        (
            SyncOffPolicyTrainer,
            {"whole_replay_buffer_training": True},
            "set load_memory_from_file_path, and whole_replay",
        ),
        (SyncOffPolicyTrainer, {"samples_per_insert": 2.0}, "samples_per_insert=2.0 counts what is collected"),
        (
            SyncOffPolicyTrainer,
            {"initial_collect_steps": 9, "strict": True, "num_envs": 1},
            "nothing, without initial_collect_steps=9",
        ),
        (SyncOffPolicyTrainer, {"num_iterations": 0, "num_env_steps": 9}, "unroll_length=0 takes no action, so 9 env"),
        (SyncOffPolicyTrainer, {"mini_batch_size": 64}, "has 56 sequences of 2 steps, fewer than mini_batch_size=64"),
        (AsyncOffPolicyTrainer, {}, "async_off_policy_trainer learns from what it collects: set TrainerConfig.trainer"),
        (OnPolicyTrainer, {}, "on_policy_trainer learns from what it collects: set TrainerConfig.trainer"),
    ],
)
def test_what_does_not_go_with_a_dataset_alone(replay_config, path, trainer_class, settings, told):
    with pytest.raises(ValueError, match=told):
        replay_config(
            trainer_class, **{"load_memory_from_file_path": path, "unroll_length": 0, **settings}
        ).create_trainer().train()


def test_statistics_that_nothing_is_collected_for_are_refused(replay_config, path):
    def with_statistics(observation_spec, action_spec, debug_summaries=False):
        normalizer = ObservationNormalizer(observation_spec)
        return Agent(observation_spec, action_spec, TinyQ, observation_normalizer=normalizer)

    config = {"algorithm_ctor": with_statistics, "load_memory_from_file_path": path, "unroll_length": 0}
    with pytest.raises(
        ValueError, match=r"ObservationNormalizer takes its statistics from what is collected, and Trainer"
    ):
        replay_config(SyncOffPolicyTrainer, **config).create_trainer().train()


def test_targets_that_wait_for_steps_that_nobody_makes_are_refused(replay_config, path):
    def dqn(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, target_update_unit="env_steps")

    config = {"algorithm_ctor": dqn, "load_memory_from_file_path": path, "unroll_length": 0}
    told = r"\(target_update_unit='env_steps'\) never do where TrainerConfig\.unroll_length=0 collects none"
    with pytest.raises(ValueError, match=told):
        replay_config(SyncOffPolicyTrainer, **config).create_trainer().train()


# ---- a full memory ----


def test_a_resumed_run_whose_memory_is_full_goes_on_learning(replay_config):
    """Though it holds fewer steps than were collected at the beginning."""
    gin.bind_parameter("ReplayBuffer.max_length", 20)
    steps = []
    for iterations in (1, 2):
        settings = {"checkpoint_replay": True, "initial_collect_steps": 200, "unroll_length": 10}
        with replay_config(SyncOffPolicyTrainer, num_iterations=iterations, **settings).create_trainer() as trainer:
            trainer.train()
        steps.append(trainer.counters.env_steps)
        assert trainer.algorithm.exp_replayer.total_steps == 80
    assert steps == [200, 240]


# ---- whole episodes ----


def test_only_episodes_that_have_ended_are_trained_on(replay_config):
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", True)
    trainer = replay_config(SyncOffPolicyTrainer, num_iterations=4, unroll_length=30).create_trainer()
    seen = []
    trainer.initialize()
    memory = trainer.algorithm.exp_replayer
    inner = trainer.algorithm.train

    def spy(**kwargs):
        seen.append((memory.buffer.index.count.sum(), memory.total_steps))
        ends = memory.buffer.index.runs()
        rows = memory.buffer.index.rows(ends[:, 0], ends[:, 2] - 1)
        # Every run of steps ends with the end of an episode.
        assert (memory.read_rows(rows)[0] == 2).all()
        return inner(**kwargs)

    trainer.algorithm.train = spy
    trainer.train()
    assert len(seen) == 4
    assert all(0 < total < count for count, total in seen)


def test_episodes_that_never_end_are_told(replay_config):
    gin.bind_parameter("ReplayBuffer.store_transitions_only_when_episodes_are_terminated", True)
    gin.bind_parameter("ReplayBuffer.max_length", 10)
    trainer = replay_config(SyncOffPolicyTrainer, unroll_length=1).create_trainer()
    trainer.initialize()
    memory = trainer.algorithm.exp_replayer
    inner = memory.buffer.add

    def endless(exp):
        inner(exp._replace(step_type=tf.ones_like(exp.step_type), bootstrap=()))

    memory.buffer.add = endless
    with pytest.raises(
        ReplayTooSmallError, match=r"since its episodes do not end .store_transitions_only_when_episodes_are"
    ):
        trainer.train()


# ---- evaluation ----


@TRAINERS
@pytest.mark.parametrize("exp_replayer", ["uniform", pytest.param("prioritized", marks=pytest.mark.slow)])
def test_nothing_is_stored_in_evaluation(trainer_class, exp_replayer, replay_config):
    kind = "Sync" if trainer_class is SyncOffPolicyTrainer else "Async"
    gin.bind_parameter(f"{kind}OffPolicyDriver.exp_replayer", exp_replayer)
    with replay_config(trainer_class, num_iterations=1).create_trainer() as trainer:
        trainer.initialize()
        trainer.heatup(EnvironmentEpisodes(2))
        observed = []
        trainer.algorithm.add_experience_observer(observed.append)
        before = held(trainer)
        trainer.evaluate(EnvironmentEpisodes(3))
        assert trainer.counters[Phase.TEST].of(EnvironmentEpisodes).value >= 3
        assert held(trainer) == before
        assert not observed
        trainer.act(EnvironmentEpisodes(1))
        assert held(trainer) != before
        assert observed


def test_nothing_of_an_evaluation_beside_is_stored(replay_config):
    settings = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2, "num_iterations": 3}
    with replay_config(SyncOffPolicyTrainer, evaluate_beside=True, **settings).create_trainer() as trainer:
        trainer.train()
        assert len(trainer._evaluations.history.all) >= 1
        assert trainer.algorithm.exp_replayer.buffer.index.count.sum() == trainer.counters.env_steps == 3 * 20


@pytest.mark.parametrize(
    ("clear", "replayer", "mode", "threads", "refused"),
    [
        (False, None, "async", 2, True),
        (True, "uniform", "async", 2, False),
        (True, None, "async", 2, False),
        (False, None, "async", 1, False),
        (False, None, "lockstep", 2, False),
    ],
)
def test_threads_that_bring_unequal_numbers_of_segments_fill_no_memory_that_is_learned_from_as_a_whole(
    clear, replayer, mode, threads, refused, small_config
):
    """It would end the run at some batch, whenever one thread has been quicker."""
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    gin.bind_parameter("AsyncOffPolicyDriver.exp_replayer", replayer)
    trainer = small_config(AsyncOffPolicyTrainer, clear_replay_buffer=clear, num_envs=threads).create_trainer()
    if not refused:
        trainer.train()
        return
    with pytest.raises(ValueError, match=r"2 environment threads .* bring more segments the one than the other"):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"
