"""Trainers that learn from a replay memory: which one, when, how often, and what a resumed run has of it."""

from __future__ import annotations

import os
import shutil
import signal

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.exploration import LinearSchedule
from alf.algorithms.parameter_noise import ParameterNoise
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay
from alf.trainers.checkpointing import Checkpointer
from alf.trainers.counts import EnvironmentSteps
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.phases import Phase
from alf.trainers.run_index import RunIndex
from alf.trainers.schedule import Schedule
from tests.algorithms.off_policy import make as make_algorithm
from tests.algorithms.test_tf_agents_algorithm import wrapped
from tests.replay.q_learning import TinyQ

pytestmark = pytest.mark.slow

TRAINERS = pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])


@pytest.fixture
def replay_config(small_config):
    """A small run on samples: CartPole, four rows an environment."""
    gin.bind_parameter("ReplayBuffer.max_length", 100)

    def make(trainer, **kwargs):
        settings = {
            "algorithm_ctor": TinyQ,
            "whole_replay_buffer_training": False,
            "mini_batch_length": 2,
            "mini_batch_size": 8,
            **kwargs,
        }
        return small_config(trainer, **settings)

    return make


def test_agents_that_tell_no_errors_are_said_before_anything_is_collected(replay_config):
    gin.bind_parameter("SyncOffPolicyDriver.exp_replayer", "prioritized")

    def c51(observation_spec, action_spec, debug_summaries=False):
        return wrapped("c51", observation_spec, action_spec)

    trainer = replay_config(SyncOffPolicyTrainer, algorithm_ctor=c51, initial_collect_steps=20_000).create_trainer()
    with pytest.raises(ValueError, match="CategoricalDqnAgent does not tell the error of each row"):
        trainer.train()
    assert not trainer.initialized


def train(config):
    trainer = config.create_trainer()
    trainer.train()
    return trainer


def small_dqn(observation_spec, action_spec, debug_summaries=False):
    """Q-learning whose epsilon falls from 1 to 0 within 100 environment steps."""
    schedule = LinearSchedule(1.0, 0.0, 100)
    return make_algorithm("dqn", observation_spec, action_spec, layers=(8,), epsilon_greedy=schedule)


def test_schedules_of_exploration_wait_for_training(replay_config):
    with replay_config(SyncOffPolicyTrainer, algorithm_ctor=small_dqn).create_trainer() as trainer:
        trainer.initialize()
        (exploration,) = trainer.algorithm.explorations
        trainer.heatup(EnvironmentSteps(64))
        assert float(exploration.strength()) == 1.0
        trainer.train()
        assert float(exploration.strength()) == pytest.approx(1.0 - trainer.counters.env_steps / 100)
        assert 0.0 < exploration.strength() < 1.0


def initialized_from(source, replay_config, algorithm_ctor):
    """The algorithm of a new run beside that in the directory `source`, which has given it its weights."""
    settings = {"root_dir": str(source.parent / "new"), "initialize_from": str(source)}
    with replay_config(SyncOffPolicyTrainer, algorithm_ctor=algorithm_ctor, **settings).create_trainer() as trainer:
        trainer.initialize()
        return trainer.algorithm


def assert_same(some, others):
    """Variables, as many and with the same values."""
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_run_that_begins_with_weights_explores_anew(replay_config, tmp_path):
    first = train(replay_config(SyncOffPolicyTrainer, algorithm_ctor=small_dqn, checkpoint_interval=1))
    new = initialized_from(tmp_path / "run", replay_config, small_dqn)
    (exploration,) = new.explorations
    assert first.algorithm.explorations[0].strength() < 1.0 == float(exploration.strength())
    assert_same(first.algorithm.trainable_variables, new.trainable_variables)


def test_what_follows_networks_begins_as_they_do_where_the_source_has_nothing_of_the_kind(replay_config, tmp_path):
    """A cloned policy, say, has neither target networks nor a copy that parameter noise shakes."""
    source = train(replay_config(SyncOffPolicyTrainer, algorithm_ctor=small_dqn, num_iterations=1))
    bare = tf.Module()
    bare._q_network = source.algorithm._q_network
    Checkpointer(str(tmp_path / "bare"), {"algorithm": bare}).save(1)

    def with_noise(observation_spec, action_spec, debug_summaries=False):
        return make_algorithm("dqn", observation_spec, action_spec, layers=(8,), parameter_noise=ParameterNoise())

    new = initialized_from(tmp_path / "bare", replay_config, with_noise)
    for followed in (new._q_network, *new._target_networks, new._parameter_noise.network):
        assert_same(source.algorithm._q_network.variables, followed.variables)


def test_target_networks_of_the_source_are_taken_as_they_are(replay_config, tmp_path):
    first = train(replay_config(SyncOffPolicyTrainer, algorithm_ctor=small_dqn)).algorithm
    (followed,), (target,) = first._critic_networks, first._target_networks
    assert any((a.numpy() != b.numpy()).any() for a, b in zip(followed.variables, target.variables, strict=True))
    assert_same(
        target.variables, initialized_from(tmp_path / "run", replay_config, small_dqn)._target_networks[0].variables
    )


def tf_agents_dqn(observation_spec, action_spec, debug_summaries=False):
    """DQN of TF-Agents."""
    return wrapped("dqn", observation_spec, action_spec)


def test_an_agent_of_tf_agents_is_counted_by_its_updates(replay_config):
    config = replay_config(
        SyncOffPolicyTrainer, algorithm_ctor=tf_agents_dqn, update_counter_every_mini_batch=True, checkpoint_interval=1
    )
    trainer = train(config)
    assert [r.step for r in RunIndex.load(config.root_dir).records()] == [2, 4, 6]
    assert trainer.counters.iterations == 3


def test_exact_resume_is_not_for_agents_of_tf_agents(replay_config):
    config = replay_config(
        SyncOffPolicyTrainer, algorithm_ctor=tf_agents_dqn, exact_resume=True, checkpoint_replay=True
    )
    with pytest.raises(ValueError, match="exact_resume needs an algorithm whose random numbers can be gone on with"):
        train(config)


def count_updates(trainer):
    """Lists the updates and the environment steps collected so far of each iteration."""
    calls = []
    trainer.initialize()
    inner = trainer.algorithm.train

    def spy(**kwargs):
        calls.append((kwargs["num_updates"], trainer.algorithm.exp_replayer.total_steps))
        return inner(**kwargs)

    trainer.algorithm.train = spy
    return calls


@TRAINERS
def test_samples_are_of_a_uniform_replay_and_weights_change(trainer_class, replay_config):
    trainer = train(replay_config(trainer_class))
    assert type(trainer.algorithm.exp_replayer) is UniformReplay
    assert int(trainer.algorithm.optimized_variables()[0][0].iterations) == 6
    assert np.isfinite(float(trainer.algorithm.last_train_metrics["loss"]))


@TRAINERS
def test_a_driver_that_is_told_takes_another_replayer(trainer_class, replay_config):
    kind = "Sync" if trainer_class is SyncOffPolicyTrainer else "Async"
    gin.bind_parameter(f"{kind}OffPolicyDriver.exp_replayer", "prioritized")
    trainer = train(replay_config(trainer_class, unroll_length=3))
    replayer = trainer.algorithm.exp_replayer
    assert type(replayer) is PrioritizedReplay
    assert float(replayer.priorities.highest) > 1.0, "the losses of a new network are above 1: priorities were written"


@TRAINERS
def test_a_memory_that_chooses_samples_is_not_for_training_on_everything(trainer_class, replay_config):
    kind = "Sync" if trainer_class is SyncOffPolicyTrainer else "Async"
    gin.bind_parameter(f"{kind}OffPolicyDriver.exp_replayer", "prioritized")
    with pytest.raises(
        ValueError, match=r"A PrioritizedReplay chooses .*whole_replay_buffer_training=True learns from ev"
    ):
        train(replay_config(trainer_class, whole_replay_buffer_training=True))


def test_whole_batches_stay_with_one_time_and_what_is_not_cleared_is_kept(small_config):
    assert (
        type(train(small_config(SyncOffPolicyTrainer)).algorithm.exp_replayer).__name__ == "OnetimeExperienceReplayer"
    )


@TRAINERS
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mini_batch_size": None}, "mini_batch_size=None and mini_batch_length=2: set them"),
        ({"burn_in_length": 5}, "burn_in_length=5 is for recurrent networks"),
        ({"whole_replay_buffer_training": True, "unroll_length": 5}, "mini_batch_length=2 does not divide the 5 steps"),
    ],
)
def test_sizes_that_cannot_work_are_said_before_anything_is_collected(trainer_class, replay_config, wrong, said):
    trainer = replay_config(trainer_class, initial_collect_steps=20_000, **wrong).create_trainer()
    with pytest.raises(ValueError, match=said):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"


@pytest.mark.parametrize(
    ("name", "value"),
    [("store_transitions_only_when_episodes_are_terminated", True), ("before_storing", lambda exp: exp)],
)
def test_memories_that_are_not_handed_out_as_a_whole_are_told_before_anything_is_collected(replay_config, name, value):
    """Else the collecting before the first update might wait for ever, for episodes that do not end."""
    gin.bind_parameter(f"ReplayBuffer.{name}", value)
    gin.bind_parameter("SyncOffPolicyDriver.exp_replayer", "uniform")
    settings = {"whole_replay_buffer_training": True, "mini_batch_size": None, "initial_collect_steps": 20_000}
    trainer = replay_config(SyncOffPolicyTrainer, **settings).create_trainer()
    with pytest.raises(ValueError, match=rf"on the whole replay buffer needs ReplayBuffer\.{name}="):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"


def on_whole_batches(replay_config, trainer_class, **settings):
    """Q-learning of three steps that learns from all that was collected."""
    gin.bind_parameter("OneStepTDLoss.n_step", 3)
    settings = {"whole_replay_buffer_training": True, "mini_batch_size": None, **settings}
    return replay_config(trainer_class, algorithm_ctor=small_dqn, **settings).create_trainer()


@TRAINERS
@pytest.mark.parametrize(("unroll_length", "mini_batch_length"), [(2, None), (4, 2), (6, 1)])
def test_whole_batches_too_short_for_the_targets_are_said_at_once(
    trainer_class, replay_config, unroll_length, mini_batch_length
):
    given = {"unroll_length": unroll_length, "mini_batch_length": mini_batch_length}
    trainer = on_whole_batches(replay_config, trainer_class, initial_collect_steps=20_000, **given)
    which = "unroll_length=2" if mini_batch_length is None else f"mini_batch_length={mini_batch_length}"
    with pytest.raises(ValueError, match=rf"looks 3 steps ahead.*TrainerConfig\.{which} is fewer: .* at least 3\."):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"


@TRAINERS
@pytest.mark.parametrize(
    ("max_length", "unroll_length", "which"),
    [(20, 8, r"ReplayBuffer\.max_length=20"), (24, 4, r"TrainerConfig\.unroll_length=4")],
)
def test_a_memory_that_cannot_be_cut_into_sequences_is_said_at_once(
    trainer_class, max_length, unroll_length, which, replay_config
):
    """Not when it is full, nor when it is learned from first."""
    gin.bind_parameter("ReplayBuffer.max_length", max_length)
    trainer = on_whole_batches(
        replay_config, trainer_class, unroll_length=unroll_length, mini_batch_length=8, clear_replay_buffer=False
    )
    with pytest.raises(ValueError, match=rf"{which} .* sequences of mini_batch_length=8: make it a"):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"


@TRAINERS
def test_a_memory_that_is_full_before_it_is_learned_from_may_grow_as_it_likes(trainer_class, replay_config):
    gin.bind_parameter("ReplayBuffer.max_length", 24)
    settings = {"unroll_length": 4, "mini_batch_length": 8, "clear_replay_buffer": False}
    trainer = on_whole_batches(replay_config, trainer_class, initial_collect_steps=24 * 4, num_envs=1, **settings)
    trainer.train()
    assert trainer.algorithm.iterations == trainer.counters.iterations > 0


@TRAINERS
def test_a_memory_that_is_emptied_after_each_batch_may_hold_what_it_likes(trainer_class, replay_config):
    gin.bind_parameter("ReplayBuffer.max_length", 20)
    for driver in ("SyncOffPolicyDriver", "AsyncOffPolicyDriver"):
        gin.bind_parameter(f"{driver}.exp_replayer", "uniform")
    trainer = on_whole_batches(replay_config, trainer_class, unroll_length=8, mini_batch_length=8)
    trainer.train()
    assert trainer.counters.iterations == trainer.algorithm.iterations > 0
    assert trainer.algorithm.exp_replayer.total_steps == 0


@TRAINERS
@pytest.mark.parametrize(("unroll_length", "mini_batch_length"), [(3, None), (6, 3)])
def test_whole_batches_just_long_enough_for_the_targets_are_learned_from(
    trainer_class, replay_config, unroll_length, mini_batch_length
):
    given = {"unroll_length": unroll_length, "mini_batch_length": mini_batch_length}
    trainer = on_whole_batches(replay_config, trainer_class, num_iterations=2, **given)
    trainer.train()
    assert trainer.algorithm.updates_made() > 0


@TRAINERS
def test_initial_steps_come_first_and_no_update_without_a_minibatch(trainer_class, replay_config):
    config = replay_config(trainer_class, initial_collect_steps=100, num_iterations=2, unroll_length=1)
    trainer = config.create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    assert 100 <= calls[0][1] < 100 + (1 if trainer_class is SyncOffPolicyTrainer else 2 * 4)
    assert [updates for updates, _ in calls] == [2, 2]
    few = replay_config(
        trainer_class, mini_batch_size=30, num_iterations=1, unroll_length=1, root_dir=config.root_dir + "2"
    )
    trainer = few.create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    assert trainer.algorithm.exp_replayer.num_sequences(2) >= 30 > calls[0][1] - 2 * 8


def test_a_memory_that_can_never_hold_a_minibatch_is_an_error(replay_config):
    gin.bind_parameter("ReplayBuffer.max_length", 3)
    with pytest.raises(ValueError, match="at most 8: raise max_length"):
        train(replay_config(SyncOffPolicyTrainer, mini_batch_size=9))


@TRAINERS
def test_samples_per_insert_sets_the_number_of_updates(trainer_class, replay_config):
    """8 sequences of one trained step each: an update per 8 / 0.3 steps, however they arrive, and none for the first 100."""
    config = replay_config(
        trainer_class, samples_per_insert=0.3, initial_collect_steps=100, num_iterations=12, unroll_length=1
    )
    trainer = config.create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    updates = sum(n for n, _ in calls)
    assert calls[0][0] == 1
    assert min(n for n, _ in calls) == 1
    steps = trainer.counters.env_steps
    assert abs(updates - 1 - (steps - 100) * 0.3 / 8) <= 2


def test_samples_per_insert_above_one_update_a_step(replay_config):
    config = replay_config(SyncOffPolicyTrainer, samples_per_insert=5.0, num_iterations=10, unroll_length=1)
    trainer = config.create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    # 4 steps an iteration, 5 / 8 updates a step.
    assert [n for n, _ in calls[1:]] == [3, 2, 3, 2, 3, 2, 3, 2, 3]


def test_settings_that_do_not_fit_are_refused(replay_config):
    with pytest.raises(ValueError, match="samples_per_insert=0 must be above 0"):
        replay_config(SyncOffPolicyTrainer, samples_per_insert=0)
    with pytest.raises(ValueError, match="samples_per_insert=inf must be above 0 and finite"):
        replay_config(SyncOffPolicyTrainer, samples_per_insert=float("inf"))
    with pytest.raises(ValueError, match="needs checkpoint_replay=True"):
        replay_config(SyncOffPolicyTrainer, exact_resume=True)
    gin.bind_parameter("SyncOffPolicyDriver.exp_replayer", "one_time")
    with pytest.raises(ValueError, match="exp_replayer='uniform'"):
        train(replay_config(SyncOffPolicyTrainer))


# ---- resuming ----


def test_a_resumed_run_has_what_the_memory_held(replay_config, caplog):
    first = train(replay_config(SyncOffPolicyTrainer, checkpoint_replay=True, num_iterations=5))
    held = first.algorithm.exp_replayer.total_steps
    trainer = replay_config(SyncOffPolicyTrainer, checkpoint_replay=True, num_iterations=6).create_trainer()
    trainer.initialize()
    assert trainer.algorithm.exp_replayer.total_steps == held == 80
    trainer.train()
    assert trainer.algorithm.exp_replayer.total_steps == 96


def test_without_it_a_resumed_run_collects_first_and_catches_nothing_up(replay_config):
    settings = {"initial_collect_steps": 64, "unroll_length": 1}
    train(replay_config(SyncOffPolicyTrainer, num_iterations=20, **settings))
    trainer = replay_config(SyncOffPolicyTrainer, num_iterations=22, **settings).create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    assert calls == [(2, 64), (2, 68)]


def test_only_the_newest_checkpoints_keep_their_memory(replay_config, tmp_path):
    train(
        replay_config(
            SyncOffPolicyTrainer,
            checkpoint_replay=True,
            checkpoint_replay_max_to_keep=2,
            checkpoint_interval=1,
            num_iterations=5,
        )
    )
    root = tmp_path / "run"
    records = RunIndex.load(str(root)).records()
    with_memory = [r.name for r in records if any(f.startswith(os.path.join("train", "replay")) for f in r.files)]
    assert with_memory == ["ckpt-4", "ckpt-5"] == sorted(os.listdir(root / "train" / "replay"))
    assert len(records) == 5
    listed = {f for r in records for f in r.files}
    assert {os.path.relpath(p, root) for p in (root / "train" / "replay").rglob("*") if p.is_file()} <= listed


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("harm", ["damaged", "removed"])
def test_memory_that_is_lost_is_said_and_collected_again(harm, exact, replay_config, tmp_path, caplog):
    settings = {"checkpoint_replay": True, "initial_collect_steps": 64, "unroll_length": 1, "exact_resume": exact}
    settings["checkpoint_interval"] = 3
    train(replay_config(SyncOffPolicyTrainer, **settings))
    folder = tmp_path / "run" / "train" / "replay" / "ckpt-3"
    if harm == "removed":
        shutil.rmtree(folder)
    else:
        part = folder / "part-00000.npz"
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 255
        part.write_bytes(bytes(data))
    trainer = replay_config(SyncOffPolicyTrainer, num_iterations=5, **settings).create_trainer()
    with caplog.at_level("INFO", logger="absl"):
        trainer.initialize()
    assert trainer.algorithm.exp_replayer.total_steps == 0
    told = [r.levelname for r in caplog.records if "collects before it learns" in r.getMessage()]
    assert told == ["ERROR" if exact or harm == "damaged" else "INFO"]
    calls = count_updates(trainer)
    trainer.train()
    assert calls == [(2, 64), (2, 68)]


def test_priorities_of_other_sequences_are_told_before_the_run_goes_on(replay_config):
    gin.bind_parameter("SyncOffPolicyDriver.exp_replayer", "prioritized")
    train(replay_config(SyncOffPolicyTrainer, checkpoint_replay=True))
    longer = {"mini_batch_length": 3, "num_iterations": 5}
    with pytest.raises(ValueError, match="Priorities are of sequences of 2 steps and cannot be used for 3"):
        replay_config(SyncOffPolicyTrainer, checkpoint_replay=True, **longer).create_trainer().initialize()
    train(replay_config(SyncOffPolicyTrainer, checkpoint_replay=False, **longer))


@pytest.mark.parametrize("kept", [False, True])
def test_as_much_as_a_heatup_had_is_collected_again_where_it_was_lost(kept, replay_config):
    settings = {"unroll_length": 1, "checkpoint_replay": kept}
    first = train(
        replay_config(
            SyncOffPolicyTrainer, schedule=Schedule("96 env_steps", improve_steps="3 training_steps"), **settings
        )
    )
    heatup = first.counters[Phase.HEATUP].of(EnvironmentSteps).value
    assert heatup >= 96
    longer = Schedule("96 env_steps", improve_steps="5 training_steps")
    trainer = replay_config(SyncOffPolicyTrainer, schedule=longer, **settings).create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    held = 4 * (heatup // 4) + 16 if kept else 4 * -(-heatup // 4)
    assert calls == [(2, held), (2, held + 4)]
    assert trainer.counters[Phase.HEATUP].of(EnvironmentSteps).value == heatup


def test_a_heatup_whose_steps_are_lost_is_made_again(replay_config):
    """All of it, at random, where the run ended between the heat-up and the end of its first iteration."""
    settings = {"unroll_length": 1, "schedule": Schedule("96 env_steps", improve_steps="1 training_steps")}
    first = replay_config(SyncOffPolicyTrainer, **settings).create_trainer()
    first.initialize()
    train_iter = first._train_iter
    first._train_iter = lambda *args: os.kill(os.getpid(), signal.SIGTERM) or train_iter(*args)
    first.train()
    assert first.counters.iterations == 0
    heatup = first.counters[Phase.HEATUP].of(EnvironmentSteps).value
    assert heatup >= 96
    trainer = replay_config(SyncOffPolicyTrainer, **settings).create_trainer()
    calls = count_updates(trainer)
    trainer.train()
    assert calls[0][1] >= 96 + 4
    assert trainer.counters[Phase.HEATUP].of(EnvironmentSteps).value >= heatup + 96


@pytest.mark.slow
@pytest.mark.parametrize("replayer", ["uniform", "prioritized"])
@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])
def test_two_halves_make_the_whole(trainer_class, replayer, replay_config, tmp_path):
    """With exact_resume a run that was interrupted is bit for bit the one that was not, its memory too."""
    kind = "Sync" if trainer_class is SyncOffPolicyTrainer else "Async"
    gin.bind_parameter(f"{kind}OffPolicyDriver.exp_replayer", replayer)
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    gin.bind_parameter("ReplayBuffer.max_length", 12)
    settings = {"exact_resume": True, "checkpoint_replay": True, "checkpoint_interval": 2, "mini_batch_length": 3}
    whole = train(replay_config(trainer_class, root_dir=str(tmp_path / "whole"), num_iterations=6, **settings))
    train(replay_config(trainer_class, num_iterations=3, **settings))
    halves = train(replay_config(trainer_class, num_iterations=6, **settings))
    for x, y in zip(whole.algorithm.variables, halves.algorithm.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=x.name)
    one, other = whole.algorithm.exp_replayer, halves.algorithm.exp_replayer
    np.testing.assert_array_equal(one.buffer.index.runs(), other.buffer.index.runs())
    rows = np.arange(one.batch_size * 12)
    for x, y in zip(one.read_rows(rows), other.read_rows(rows), strict=True):
        np.testing.assert_array_equal(x, y)
