"""Replay memories of behaviors: what a resumed run has of them, when there is enough to learn from, and what never is."""

from __future__ import annotations

import csv
import re

import gin
import pytest

from alf.replay.experience_replayer import ReplayTooSmallError
from alf.trainers.counts import EnvironmentSteps, TrainingSteps
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from tests.trainers.many_agents import behaviors, bind_pursuit, dqn, make_dqn, ppo

pytestmark = pytest.mark.slow

# Four environments, segments of four steps: 16 environment steps each time that something is collected.
COLLECTED = 16


@pytest.fixture
def pursuit(small_config):
    """Makes a trainer of chasers and a runner."""
    bind_pursuit()

    def make(chaser, runner, **kwargs):
        settings = {
            "algorithm_ctor": behaviors(chaser=chaser, runner=runner),
            "num_updates_per_train_step": 1,
            **kwargs,
        }
        return small_config(SyncOffPolicyTrainer, **settings).create_trainer()

    return make


def _trained(trainer):
    trainer.train()
    return trainer


@pytest.mark.parametrize(("chaser", "runner"), [(ppo, dqn), (dqn, ppo)], ids=["one_slot", "three_slots"])
def test_a_resumed_run_counts_what_the_memory_holds(pursuit, chaser, runner):
    settings = {"checkpoint_replay": True}
    first = _trained(pursuit(chaser(), runner(), num_iterations=1, **settings))
    assert first.counters.env_steps == COLLECTED
    # What is there counts, in steps of the environments: 16 of 40, so that two times more are missing.
    again = _trained(pursuit(chaser(), runner(), num_iterations=2, initial_collect_steps=40, **settings))
    assert again.counters.env_steps == COLLECTED + 2 * COLLECTED
    enough = _trained(pursuit(chaser(), runner(), num_iterations=3, initial_collect_steps=40, **settings))
    assert enough.counters.env_steps == again.counters.env_steps + COLLECTED


def test_a_memory_that_was_lost_is_filled_again(pursuit, tmp_path):
    settings = {"checkpoint_replay": True, "initial_collect_steps": 48}
    first = _trained(pursuit(dqn(), dqn(), num_iterations=1, **settings))
    assert first.counters.env_steps == 48
    (tmp_path / "run" / "train" / "replay" / "ckpt-1" / "runner" / "state.npz").write_bytes(b"torn")
    again = _trained(pursuit(dqn(), dqn(), num_iterations=2, **settings))
    assert again.counters.env_steps == 2 * 48


def test_nobody_learns_before_every_memory_has_a_minibatch(pursuit):
    trainer = pursuit(ppo(), dqn(mini_batch_size=30), num_iterations=1)
    trainer.initialize()
    trained = []
    inner = trainer.algorithm.train
    runner = trainer.algorithm.by_name["runner"]

    def spy(**kwargs):
        trained.append(runner.exp_replayer.num_sequences(2))
        return inner(**kwargs)

    trainer.algorithm.train = spy
    trainer.train()
    # A batch has four sequences of four steps, and the last step of the first goes on in the second.
    assert trained == [4 * 11]
    assert [int(one.iterations) for one in trainer.algorithm.by_name.values()] == [1, 1]


def test_samples_per_insert_counts_the_sizes_and_the_slots_of_behaviors(pursuit):
    """4 sequences of one trained step from each of three chasers: 16 environment steps are 12 updates, at 1 sample a step."""
    settings = {"samples_per_insert": 1.0, "whole_replay_buffer_training": False}
    trainer = pursuit(dqn(), dqn(trained=False), num_iterations=2, **settings)
    trainer.initialize()
    given, inner = [], trainer.algorithm.train

    def spy(**kwargs):
        given.append(kwargs["num_updates"])
        return inner(**kwargs)

    trainer.algorithm.train = spy
    trainer.train()
    assert given == [COLLECTED * 3 / 4] * 2


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        (dqn(), r"\{'chaser': 1\.3\d+, 'runner': 4\.0\} steps"),
        (dqn(num_updates=3), r"\['runner'\] have num_updates"),
        (ppo(whole_replay_buffer_training=True), r"\['runner'\] have num_updates"),
    ],
    ids=["slots", "num_updates", "whole"],
)
def test_samples_per_insert_is_refused_where_behaviors_differ(pursuit, runner, said):
    with pytest.raises(ValueError, match=said):
        pursuit(dqn(), runner, samples_per_insert=1.0, whole_replay_buffer_training=False).initialize()


def test_memories_of_slots_that_may_idle_fill_while_collecting(pursuit):
    gin.bind_parameter("alf.environments.suite_agents.load.done_condition", "all")
    trainer = _trained(pursuit(dqn(), dqn(), num_iterations=1, initial_collect_steps=64))
    assert trainer.counters.env_steps == 64
    assert [int(one.iterations) for one in trainer.algorithm.by_name.values()] == [1, 1]
    runner = trainer.algorithm.by_name["runner"].exp_replayer
    # All but a segment and the step after it, of each of four streams.
    assert 64 - 4 * 5 <= runner.total_steps <= 64


def test_all_that_is_kept_of_slots_that_may_idle_cannot_be_learned_from(pursuit):
    """Their streams are of different lengths; said before anything is collected."""
    gin.bind_parameter("alf.environments.suite_agents.load.done_condition", "all")
    trainer = pursuit(dqn(), ppo(clear_replay_buffer=False), num_iterations=1)
    with pytest.raises(ValueError, match=r"behavior 'runner' .* runner/Behavior.whole_replay_buffer_training=False"):
        trainer.train()
    assert not trainer.initialized


def test_all_that_is_kept_of_a_single_slot_that_may_idle_is_learned_from(pursuit):
    gin.bind_parameter("create_environment.num_parallel_environments", 1)
    gin.bind_parameter("alf.environments.suite_agents.load.done_condition", "all")
    trainer = _trained(pursuit(dqn(), ppo(clear_replay_buffer=False), num_iterations=4))
    assert int(trainer.algorithm.by_name["runner"].iterations) > 1


def test_a_memory_that_never_fills_is_named(pursuit):
    gin.bind_parameter("ReplayBuffer.max_length", 20)
    trainer = pursuit(dqn(), dqn(), num_iterations=1, unroll_length=1)
    trainer.initialize()
    memory = trainer.algorithm.by_name["chaser"].exp_replayer
    # A gap after each step.
    trainer.algorithm.by_name["chaser"].add_experience_observer(lambda exp: memory.end_streams())
    with pytest.raises(
        ReplayTooSmallError, match=r"memory of the behavior 'chaser' never holds mini_batch_size=4"
    ) as told:
        trainer.train()
    found = re.search(r"came to 0, and (\d+) more steps, over twice the 80 that it keeps", str(told.value))
    assert found
    # Counted in steps of the environments, though the memory has three streams of each.
    assert 2 * 80 < int(found.group(1)) <= 2 * 80 + 4


def test_who_learns_once_learns_nothing_of_a_heat_up(pursuit, tmp_path):
    """Where slots may idle, segments wait until there are enough of them; those of a heat-up are dropped and counted."""
    gin.bind_parameter("alf.environments.suite_agents.load.done_condition", "all")
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    with pursuit(ppo(), dqn(), summary_interval=1) as trainer:
        trainer.initialize()
        chaser = next(p for p in trainer.algorithm._parts if p.name == "chaser")
        trainer.act(EnvironmentSteps(10 * COLLECTED))
        # Those of the last collecting: at most one of each of twelve streams.
        assert chaser.processor.ready <= 12
        trainer.train_and_act(TrainingSteps(1))
        dropped = chaser.dropped_steps
        # Ten segments of four steps and twelve streams were collected; all but one each is gone.
        assert dropped > 7 * 4 * 12
    with open(tmp_path / "run" / "train" / "stats.csv", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["Metrics/chaser/DroppedSteps"]) == dropped
    assert float(last["Metrics/runner/DroppedSteps"]) == 0.0
    assert float(last["Replay/runner/transitions"]) == trainer.algorithm.by_name["runner"].exp_replayer.total_steps
    assert "Replay/chaser/transitions" not in last


def _make_without_priority(observation_spec, action_spec, debug_summaries=False):
    algorithm = make_dqn(observation_spec, action_spec)
    inner = algorithm.calc_loss
    algorithm.calc_loss = lambda training_info: inner(training_info)._replace(priority=())
    return algorithm


def test_what_the_loss_of_a_behavior_lacks_is_told_before_anything_is_collected(pursuit):
    runner = dqn(_make_without_priority, exp_replayer="prioritized")
    trainer = pursuit(ppo(), runner, initial_collect_steps=20_000)
    with pytest.raises(ValueError, match=r"needs LossInfo\.priority"):
        trainer.train()
    assert trainer.algorithm.by_name["runner"].exp_replayer.total_steps == 0


@pytest.mark.parametrize(
    ("chaser", "said"),
    [
        (ppo(mini_batch_length=3), "mini_batch_length=3 does not divide the 4 steps"),
        (
            ppo(unroll_length=5, cut_episodes="drop", mini_batch_length=2),
            "mini_batch_length=2 does not divide the 5 steps",
        ),
        (
            dqn(whole_replay_buffer_training=True, mini_batch_size=None, mini_batch_length=2),
            r"DqnAlgorithm looks 3 steps ahead.* and mini_batch_length=2 is fewer: .* at least 3",
        ),
        (
            dqn(
                whole_replay_buffer_training=True,
                mini_batch_size=None,
                mini_batch_length=None,
                unroll_length=2,
                cut_episodes="drop",
            ),
            r"DqnAlgorithm looks 3 steps ahead.* and unroll_length=2 is fewer",
        ),
    ],
    ids=["cut", "own", "ahead", "short"],
)
def test_segments_that_a_behavior_cannot_learn_from_are_told_before_anything_is_collected(pursuit, chaser, said):
    gin.bind_parameter("OneStepTDLoss.n_step", 3)
    trainer = pursuit(chaser, ppo(), initial_collect_steps=20_000, mini_batch_length=None)
    with pytest.raises(ValueError, match=f"behavior 'chaser'.*{said}"):
        trainer.train()
    assert not trainer.initialized, "what is wrong is the configuration"
