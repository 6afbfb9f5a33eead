"""Whole small runs of each trainer: limits, resume, what is written, what is left after a failure."""

from __future__ import annotations

import os
import re
import time

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.environments import utils as environment_utils
from alf.trainers import run_environments
from alf.trainers.checkpointing import CheckpointError
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.self_play import SelfPlay
from alf.utils.gin_utils import GinConfigError
from tests.trainers.many_agents import behaviors, bind_hands, bind_pursuit, dqn, ppo
from tests.trainers.small_run import make_algorithm

TRAINERS = [OnPolicyTrainer, SyncOffPolicyTrainer, AsyncOffPolicyTrainer]


def _weights(trainer):
    return [v.numpy() for v in trainer.algorithm.trainable_variables]


def _checkpoints(tmp_path):
    folder = tmp_path / "run" / "train" / "algorithm"
    return sorted(p.name.removesuffix(".index") for p in folder.glob("ckpt-*.index"))


@pytest.mark.parametrize("trainer_class", TRAINERS)
def test_a_run_and_what_it_writes(trainer_class, small_config, tmp_path):
    trainer = small_config(trainer_class).create_trainer()
    trainer.initialize()
    first = _weights(trainer)
    trainer.train()
    counters = trainer.counters
    assert counters.iterations == 3
    assert counters.env_steps == 3 * 32 if trainer_class is not SyncOffPolicyTrainer else 3 * 16
    assert trainer.global_counter.dtype == tf.int64
    assert any(not np.array_equal(a, b) for a, b in zip(first, _weights(trainer), strict=True))
    run = tmp_path / "run"
    assert (run / "configured.gin").is_file()
    assert _checkpoints(tmp_path) == [f"ckpt-{counters.global_steps}"]
    assert list((run / "train").glob("events.out.tfevents.*"))
    assert not (run / "eval").exists()


@pytest.mark.parametrize("part", ["algorithm", "driver", "reporter"])
def test_a_part_that_is_asked_for_too_early_is_told_of(small_config, part):
    trainer = small_config(SyncOffPolicyTrainer).create_trainer()
    with pytest.raises(RuntimeError, match=rf"has no {part} yet: call its initialize\(\) first"):
        getattr(trainer, part)


PROGRESS = {
    "counters": {"env_step", "global_counter", "iteration"},
    "evaluations": set(),
    "metrics": set(),
    "phases": {"heatup", "test", "train"},
}
PPO_PARTS = {"_actor_network", "_value_network", "_optimizers", "_iterations", "_seed"}


def _saved_parts(tmp_path):
    """What the newest checkpoint of a run holds: by the name of each object, its parts that have variables."""
    found = {}
    names = tf.train.list_variables(str(tmp_path / "run" / "train" / "algorithm" / _checkpoints(tmp_path)[-1]))
    for name, *parts in (key.split("/") for key, _ in names if key != "_CHECKPOINTABLE_OBJECT_GRAPH"):
        found.setdefault(name, set()).update(parts[:1] if parts[0] != ".ATTRIBUTES" else ())
    return found


@pytest.mark.parametrize("trainer_class", TRAINERS)
def test_a_checkpoint_has_what_was_learned_and_counted_and_nothing_that_coordinates(
    trainer_class, small_config, tmp_path
):
    """A lock, barrier or place in a queue that came back would have a resumed run wait for ever."""
    small_config(trainer_class, num_iterations=2).create_trainer().train()
    assert _saved_parts(tmp_path) == {**PROGRESS, "algorithm": PPO_PARTS}


def test_a_checkpoint_of_self_play_has_its_opponents_too(small_config, tmp_path):
    bind_hands()
    config = small_config(
        SyncOffPolicyTrainer,
        algorithm_ctor=behaviors(left=ppo(), right=ppo(trained=False)),
        self_play=SelfPlay("left", "right", "1 training_steps", "2 training_steps", latest_ratio=0.2),
        num_iterations=2,
    )
    config.create_trainer().train()
    opponents = {"_kept", "_made", "_opponent", "_since", "_turns", "_seed"}
    ratings = {"_elo", "_present_elo", "_matches", "_iterations", "_env_steps", "_env_steps_before"}
    algorithm = {"_algorithms", "_iterations", "_seed"}
    assert _saved_parts(tmp_path) == {**PROGRESS, "algorithm": algorithm, "self_play": opponents | ratings}


@pytest.mark.parametrize("trainer_class", TRAINERS)
def test_resume_counts_on(trainer_class, small_config, tmp_path):
    first = small_config(trainer_class).create_trainer()
    first.train()
    second = small_config(trainer_class, num_iterations=5).create_trainer()
    second.initialize()
    assert second.counters.iterations == 3
    assert second.counters.env_steps == first.counters.env_steps
    assert int(second.algorithm.iterations) == int(first.algorithm.iterations)
    for a, b in zip(first.algorithm.variables, second.algorithm.variables, strict=True):
        if a.name != "seed:0":
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    steps_before = int(second.driver.get_metrics()[1].result())
    assert steps_before == int(first.driver.get_metrics()[1].result()) > 0
    second.train()
    assert second.counters.iterations == 5
    assert second.driver.get_metrics()[1].result() > steps_before
    assert len(_checkpoints(tmp_path)) == 2


def test_a_checkpoint_has_the_metrics_of_all_that_was_learned_from(small_config, monkeypatch):
    """Also one of an iteration that a slow observer has not seen the end of, by which the run goes on after its end."""

    class Watched(AsyncOffPolicyTrainer):
        def _init_driver(self, *args):
            driver = super()._init_driver(*args)
            driver.observers.append(lambda *trajectory: time.sleep(0.1))
            return driver

    first = small_config(Watched, checkpoint_interval=1).create_trainer()
    first.train()
    again = small_config(Watched, checkpoint_interval=1).create_trainer()
    again.initialize()
    counted = [int(trainer.driver.get_step_metrics()[1].result()) for trainer in (first, again)]
    again.close()
    assert counted[0] == counted[1] > 0


def test_a_resumed_run_draws_other_environment_seeds(small_config, monkeypatch):
    drawn = []
    create = SyncOffPolicyTrainer._create_environment

    def watched(self, **kwargs):
        drawn.append(tuple(kwargs["random_seed"].generate_state(2)))
        return create(self, **kwargs)

    monkeypatch.setattr(SyncOffPolicyTrainer, "_create_environment", watched)
    small_config(SyncOffPolicyTrainer).create_trainer().train()
    small_config(SyncOffPolicyTrainer, num_iterations=5).create_trainer().train()
    assert len(set(drawn)) == len(drawn) == 2


def test_a_run_that_has_reached_its_limit_does_nothing(small_config, tmp_path):
    small_config(SyncOffPolicyTrainer).create_trainer().train()
    again = small_config(SyncOffPolicyTrainer).create_trainer()
    again.train()
    assert again.counters.iterations == 3
    assert _checkpoints(tmp_path) == ["ckpt-3"]


@pytest.mark.parametrize(
    ("num_iterations", "num_env_steps", "iterations"), [(0, 33, 3), (2, 1000, 2), (10, 16, 1), (4, 0, 4)]
)
def test_the_first_limit_ends_training(small_config, num_iterations, num_env_steps, iterations):
    config = small_config(SyncOffPolicyTrainer, num_iterations=num_iterations, num_env_steps=num_env_steps)
    trainer = config.create_trainer()
    trainer.train()
    assert trainer.counters.iterations == iterations
    assert trainer.counters.env_steps == iterations * 16


def test_initial_collect_steps_come_before_the_first_update(small_config):
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=2, initial_collect_steps=50).create_trainer()
    trainer.train()
    assert trainer.counters.env_steps == 64 + 16
    assert int(trainer.algorithm.iterations) == 2


@pytest.mark.parametrize(
    ("trainer_class", "batch", "settings"),
    [
        (SyncOffPolicyTrainer, 16, {}),
        (SyncOffPolicyTrainer, 16, {"clear_replay_buffer": False}),
        (AsyncOffPolicyTrainer, 32, {}),
    ],
)
def test_initial_steps_that_are_not_learned_from_are_told(
    trainer_class, batch, settings, small_config, tmp_path, caplog
):
    """Without a memory the first update has the last batch, and with one all of them."""
    for steps in (batch, batch + 1):
        caplog.clear()
        given = {"num_iterations": 1, "num_updates_per_train_step": 1, "initial_collect_steps": steps, **settings}
        trainer = small_config(trainer_class, root_dir=str(tmp_path / str(steps)), **given).create_trainer()
        trainer.train()
        told = [line for line in caplog.messages if line.startswith(f"TrainerConfig.initial_collect_steps={steps}")]
        assert len(told) == (steps > batch and not settings)
        assert not told or f"learns from the last {batch} of them only" in told[0]


def test_counting_minibatches(small_config, tmp_path):
    config = small_config(SyncOffPolicyTrainer, update_counter_every_mini_batch=True, mini_batch_size=8)
    trainer = config.create_trainer()
    trainer.train()
    assert trainer.counters.global_steps == 3 * 2 * 2
    assert _checkpoints(tmp_path) == ["ckpt-12"]


def test_checkpoint_interval_and_max_to_keep(small_config, tmp_path):
    config = small_config(SyncOffPolicyTrainer, num_iterations=7, checkpoint_interval=2, checkpoint_max_to_keep=2)
    config.create_trainer().train()
    assert _checkpoints(tmp_path) == ["ckpt-6", "ckpt-7"]


def test_damaged_newest_checkpoint_falls_back(small_config, tmp_path):
    small_config(SyncOffPolicyTrainer, checkpoint_interval=2).create_trainer().train()
    folder = tmp_path / "run" / "train" / "algorithm"
    os.truncate(folder / "ckpt-3.data-00000-of-00001", 10)
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=4).create_trainer()
    trainer.initialize()
    assert trainer.counters.iterations == 2
    trainer.train()
    assert trainer.counters.iterations == 4


def test_checkpoint_of_other_networks_is_refused(small_config):
    small_config(SyncOffPolicyTrainer).create_trainer().train()

    def other(observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        algorithm.extra = tf.Variable(tf.zeros([3]), name="extra")
        return algorithm

    with pytest.raises(CheckpointError, match="does not fit"):
        small_config(SyncOffPolicyTrainer, algorithm_ctor=other).create_trainer().initialize()


def test_one_seed_gives_one_run(small_config, tmp_path):
    runs = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        trainer = small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / name), random_seed=seed).create_trainer()
        trainer.train()
        runs.append(_weights(trainer))
    for a, b in zip(runs[0], runs[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, c) for a, c in zip(runs[0], runs[2], strict=True))


@pytest.mark.parametrize("episodes", [1, 5])
def test_evaluation_has_its_own_environment_and_changes_nothing(small_config, tmp_path, monkeypatch, episodes):
    made = []
    create = environment_utils.create_environment

    def counting(**kwargs):
        env = create(**kwargs)
        made.append((env, env.batch_size))
        return env

    monkeypatch.setattr(run_environments, "create_environment", counting)
    plain = small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / "plain")).create_trainer()
    plain.train()
    rows = made[0][1]
    assert len(made) == 1
    config = small_config(
        SyncOffPolicyTrainer,
        root_dir=str(tmp_path / "evaluated"),
        evaluate=True,
        eval_interval=1,
        num_eval_episodes=episodes,
    )
    evaluated = config.create_trainer()
    evaluated.train()
    # Episodes are played side by side, in no more rows than training has.
    assert [size for _, size in made] == [rows, rows, min(episodes, rows)]
    assert len({id(env) for env, _ in made}) == 3
    for a, b in zip(_weights(plain), _weights(evaluated), strict=True):
        np.testing.assert_array_equal(a, b)
    assert list((tmp_path / "evaluated" / "eval").glob("events.out.tfevents.*"))


class _BreaksAfter:
    """An algorithm constructor whose `train` raises, or spoils the weights and raises, in the given iteration."""

    def __init__(self, iteration, spoil=False):
        self._iteration = iteration
        self._spoil = spoil

    def __call__(self, observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        train, calls = algorithm.train, []

        def breaking(**kwargs):
            calls.append(1)
            if len(calls) == self._iteration:
                if self._spoil:
                    algorithm.trainable_variables[0].assign(algorithm.trainable_variables[0] * np.nan)
                raise ArithmeticError("broken on purpose")
            return train(**kwargs)

        object.__setattr__(algorithm, "train", breaking)
        return algorithm


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])
def test_a_failure_saves_what_was_learned_and_propagates(trainer_class, small_config, tmp_path):
    trainer = small_config(trainer_class, algorithm_ctor=_BreaksAfter(3)).create_trainer()
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        trainer.train()
    assert _checkpoints(tmp_path) == ["ckpt-2"]


def test_spoilt_weights_are_not_saved(small_config, tmp_path):
    trainer = small_config(SyncOffPolicyTrainer, algorithm_ctor=_BreaksAfter(2, spoil=True)).create_trainer()
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        trainer.train()
    assert _checkpoints(tmp_path) == []


def test_environments_are_closed_when_building_fails(small_config, monkeypatch):
    closed = []
    create = environment_utils.create_environment

    def watched(**kwargs):
        env = create(**kwargs)
        close = env.close
        monkeypatch.setattr(env, "close", lambda: (closed.append(1), close()))
        return env

    def failing(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(run_environments, "create_environment", watched)
    trainer = small_config(AsyncOffPolicyTrainer, algorithm_ctor=failing).create_trainer()
    with pytest.raises(ZeroDivisionError):
        trainer.initialize()
    assert closed == [1, 1]


def test_unused_bindings_warn_or_fail(small_config, tmp_path):
    gin.parse_config("OnPolicyDriver.train_interval = 5")
    small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / "warns")).create_trainer().train()
    strict = small_config(
        SyncOffPolicyTrainer, root_dir=str(tmp_path / "fails"), strict=True, num_envs=1
    ).create_trainer()
    with pytest.raises(GinConfigError, match=r"OnPolicyDriver\.train_interval"):
        strict.train()


def test_the_on_policy_trainer_tells_of_settings_that_it_has_not(small_config, tmp_path, caplog):
    given = {"num_updates_per_train_step": 10, "mini_batch_size": 2, "initial_collect_steps": 9}
    said = (
        "without num_updates_per_train_step=10, mini_batch_length=1, mini_batch_size=2, initial_collect_steps=9: "
        "sync_off_policy_trainer has them"
    )
    small_config(OnPolicyTrainer, num_iterations=1, root_dir=str(tmp_path / "a"), **given).create_trainer().train()
    assert said in caplog.text
    strict = small_config(OnPolicyTrainer, root_dir=str(tmp_path / "b"), strict=True, **given).create_trainer()
    with pytest.raises(ValueError, match=said):
        strict.train()


def test_the_on_policy_trainer_refuses_a_behavior_that_samples(small_config):
    bind_pursuit()
    trainer = small_config(OnPolicyTrainer, algorithm_ctor=behaviors(chaser=ppo(), runner=dqn())).create_trainer()
    with pytest.raises(ValueError, match=r"The behavior 'runner' learns from samples .*@sync_off_policy_trainer"):
        trainer.train()
    assert not trainer.initialized, "a command tells it in a line"


@pytest.mark.parametrize(
    ("own", "length", "said"),
    [
        ({}, 2, "and unroll_length=2 is fewer: set it to at least 3"),
        ({"mini_batch_length": 2}, 4, "and mini_batch_length=2 is fewer: set it to at least 3"),
        ({"unroll_length": 2, "cut_episodes": "drop"}, 4, "and unroll_length=2 is fewer: set it to at least 3"),
        ({}, 3, None),
    ],
)
def test_the_on_policy_trainer_tells_of_short_segments_of_a_behavior(small_config, own, length, said):
    """TrainerConfig.mini_batch_length, of which it has none, is not what is said to be too short."""
    bind_hands()
    gin.bind_parameter("OneStepTDLoss.n_step", 3)
    sizes = {"whole_replay_buffer_training": True, "mini_batch_size": None, "mini_batch_length": None}
    ctor = behaviors(left=dqn(**{**sizes, **own}), right=ppo())
    settings = {"algorithm_ctor": ctor, "unroll_length": length, "mini_batch_length": 2, "num_iterations": 1}
    trainer = small_config(OnPolicyTrainer, **settings).create_trainer()
    if said is None:
        trainer.train()
        return
    with pytest.raises(ValueError, match=rf"^The behavior 'left' cannot learn so: DqnAlgorithm looks 3 .* {said}\."):
        trainer.train()
    assert not trainer.initialized, "a command tells it in a line"


def test_several_batched_environments_of_a_trainer_with_one_are_told(small_config, tmp_path, caplog):
    said = "steps one batched environment of .*, without num_envs=2: async_off_policy_trainer has them"
    for trainer_class in (SyncOffPolicyTrainer, OnPolicyTrainer):
        caplog.clear()
        config = small_config(trainer_class, num_iterations=1, root_dir=str(tmp_path / trainer_class.__name__))
        config.create_trainer().train()
        assert re.search(said, caplog.text)
    with pytest.raises(ValueError, match=said):
        small_config(SyncOffPolicyTrainer, root_dir=str(tmp_path / "strict"), strict=True).create_trainer().train()
    caplog.clear()
    settings = {"num_iterations": 1, "root_dir": str(tmp_path / "one")}
    small_config(SyncOffPolicyTrainer, **settings, num_envs=1).create_trainer().train()
    small_config(AsyncOffPolicyTrainer, **{**settings, "root_dir": str(tmp_path / "two")}).create_trainer().train()
    assert "num_envs" not in caplog.text


def test_algorithm_must_be_set(small_config):
    with pytest.raises(ValueError, match="algorithm_ctor is not set"):
        small_config(SyncOffPolicyTrainer, algorithm_ctor=None).create_trainer()


def test_eager_runs_for_debugging(small_config):
    settings = {"num_iterations": 1, "num_updates_per_train_step": 1, "evaluate": True, "eval_interval": 1}
    config = small_config(SyncOffPolicyTrainer, use_tf_functions=False, **settings)
    config.create_trainer().train()
    assert not tf.config.functions_run_eagerly()
