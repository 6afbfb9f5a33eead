"""Checkpoints of runs with behaviors: all in one, one restored alone, replay memories, and resumed runs bit for bit."""

from __future__ import annotations

import shutil

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.exploration import LinearSchedule
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.environments.grouped_rows import GroupedRows
from alf.environments.utils import create_environment
from alf.trainers import initializing
from alf.trainers.checkpoint_objects import StoredObjects
from alf.trainers.checkpointing import CheckpointError
from alf.trainers.config import TrainerConfig
from alf.trainers.initializing import load_weights
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.saving import NonFiniteError
from tests.algorithms.off_policy import make
from tests.trainers.many_agents import behaviors, bind_hands, bind_pursuit, dqn, ppo

pytestmark = pytest.mark.slow

PAIR = behaviors(chaser=ppo(), runner=dqn())
HANDS = behaviors(left=ppo(), right=ppo(trained=False))


def _built(small_config, **kwargs):
    trainer = small_config(SyncOffPolicyTrainer, **kwargs).create_trainer()
    trainer.initialize()
    trainer.close()
    return trainer


def _trained(small_config, trainer_class=SyncOffPolicyTrainer, **kwargs):
    trainer = small_config(trainer_class, **{"num_updates_per_train_step": 1, **kwargs}).create_trainer()
    trainer.train()
    return trainer


def _values(algorithm):
    return [v.numpy() for v in algorithm.variables]


def _assert_same(a, b):
    for x, y in zip(a.variables, b.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=x.name)


def _assert_same_weights(a, b):
    assert a.acting_variables()
    for x, y in zip(a.acting_variables(), b.acting_variables(), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=x.name)


# ---- what is trained, and what is not ----


def test_training_one_leaves_the_others_bit_for_bit(small_config, tmp_path):
    bind_pursuit()
    for trained in ("chaser", "runner"):
        ctor = behaviors(chaser=ppo(trained=trained == "chaser"), runner=dqn(trained=trained == "runner"))
        settings = {"algorithm_ctor": ctor, "root_dir": str(tmp_path / trained), "num_iterations": 1}
        settings["update_counter_every_mini_batch"] = True
        with small_config(SyncOffPolicyTrainer, **settings).create_trainer() as run:
            run.initialize()
            before = {name: _values(one) for name, one in run.algorithm.by_name.items()}
            run.train()
        assert run.counters.global_steps >= 2, "both updates count, whoever makes them"
        for name, one in run.algorithm.by_name.items():
            same = [np.array_equal(a, b) for a, b in zip(before[name], _values(one), strict=True)]
            assert all(same) is (name != trained), (trained, name)


def test_a_frozen_behavior_explores_as_the_one_that_it_comes_from_did_in_the_end(small_config, tmp_path):
    """Nothing moves its schedule on: it would act by its first value, at random, for ever."""
    bind_hands()

    def fading(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, layers=(8,), epsilon_greedy=LinearSchedule(1.0, 0.0, 4))

    run = _trained(small_config, algorithm_ctor=behaviors(left=dqn(fading), right=dqn(fading)), num_iterations=1)
    frozen = behaviors(left=dqn(fading), right=dqn(fading, trained=False))
    settings = {"algorithm_ctor": frozen, "initialize_from": run._root_dir, "root_dir": str(tmp_path / "other")}
    other = _built(small_config, **settings)
    strengths = {name: float(one._exploration.strength()) for name, one in other.algorithm.by_name.items()}
    assert strengths == {"left": 1.0, "right": 0.0}


# ---- resuming ----


def _replay_state(algorithm):
    return {name: one.exp_replayer.total_steps for name, one in algorithm.by_name.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer_class", "mode", "bind", "ctor", "every"),
    [
        (AsyncOffPolicyTrainer, "lockstep", bind_hands, behaviors(left=dqn(), right=ppo(trained=False)), 1),
        # A segment is whole when the step after it is known: an iteration later.
        (SyncOffPolicyTrainer, "sync", lambda: bind_pursuit(done_condition="all"), PAIR, 2),
    ],
    ids=["one_is_not_trained", "slots_that_may_be_idle"],
)
def test_two_halves_make_the_whole(trainer_class, mode, bind, ctor, every, small_config, tmp_path):
    bind()
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    settings = {"exact_resume": True, "checkpoint_interval": every, "checkpoint_replay": True, "algorithm_ctor": ctor}
    whole = _trained(small_config, trainer_class, root_dir=str(tmp_path / "w"), num_iterations=2 * every, **settings)
    half = _trained(small_config, trainer_class, num_iterations=every, **settings)
    halves = _trained(small_config, trainer_class, num_iterations=2 * every, **settings)
    _assert_same(whole.algorithm, halves.algorithm)
    for name, one in halves.algorithm.by_name.items():
        before = _values(half.algorithm.by_name[name])
        moved = any(not np.array_equal(a, b) for a, b in zip(before, _values(one), strict=True))
        assert moved is (name in halves.algorithm.trained), name
    assert whole.counters.env_steps == halves.counters.env_steps


def test_replay_memories_of_every_behavior(small_config, tmp_path, logged):
    bind_pursuit()
    ctor = behaviors(chaser=dqn(), runner=dqn())
    settings = {"algorithm_ctor": ctor, "checkpoint_replay": True}
    before = _trained(small_config, num_iterations=1, **settings)
    held = _replay_state(before.algorithm)
    assert held["chaser"] == 3 * held["runner"] > 0
    place = tmp_path / "run" / "train" / "replay" / "ckpt-1"
    assert sorted(p.name for p in place.iterdir()) == ["chaser", "runner"]
    assert _replay_state(_built(small_config, **settings).algorithm) == held
    (place / "runner" / "state.npz").write_bytes(b"torn")
    resumed = _built(small_config, **settings)
    assert _replay_state(resumed.algorithm) == {**held, "runner": 0}
    assert any(line.startswith("The behavior 'runner' goes on with an empty replay memory") for line in logged)


def test_exact_resume_names_a_behavior_whose_memory_is_not_saved(small_config):
    bind_pursuit()
    with pytest.raises(ValueError, match=r"checkpoint_replay=True: the behavior 'runner'"):
        _built(small_config, algorithm_ctor=PAIR, exact_resume=True)


def test_what_is_not_finite_is_named(small_config):
    bind_pursuit()
    trainer = _built(small_config, algorithm_ctor=PAIR)
    runner = trainer.algorithm.by_name["runner"]
    runner._volatile.metrics = {"loss": tf.constant(np.nan)}
    with pytest.raises(NonFiniteError, match="the loss of the behavior 'runner' is nan"):
        trainer._saver.check_loss()
    trainer._saver.check_weights()
    runner.trainable_variables[0].assign(np.full((16, 8), np.nan))
    with pytest.raises(NonFiniteError, match="of the behavior 'runner' is not finite"):
        trainer._saver.check_weights()


# ---- one alone ----


def _new(seed=9):
    """The algorithms of a new run, by behavior, and all of them."""
    env = create_environment(seed=1)
    tf.keras.utils.set_random_seed(seed)
    specs = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    algorithm = HANDS(*specs)
    env.close()
    for one in algorithm.by_name.values():
        one.acting_variables()
    return algorithm.by_name, algorithm


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run of left and right, to be read only: what it has learned, and its directory."""
    root = str(tmp_path_factory.mktemp("old"))
    gin.bind_parameter("create_environment.num_parallel_environments", 4)
    bind_hands()
    config = TrainerConfig(
        root, SyncOffPolicyTrainer, HANDS, random_seed=1, num_iterations=1, unroll_length=4, export_saved_model=False
    )
    trainer = config.create_trainer()
    trainer.train()
    gin.clear_config()
    return trainer.algorithm.by_name, root


def test_weights_of_one_behavior(old, logged):
    bind_hands()
    was, root = old
    plain, _ = _new()
    new, algorithm = _new()
    load_weights(algorithm, f"right={root}")
    _assert_same_weights(new["right"], was["right"])
    _assert_same_weights(new["left"], plain["left"])
    load_weights(algorithm, f"left=right@{root}:1,right=left@{root}")
    _assert_same_weights(new["left"], was["right"])
    _assert_same_weights(new["right"], was["left"])
    load_weights(algorithm, root)
    for name, one in new.items():
        _assert_same_weights(one, was[name])
    assert (int(was["left"].iterations), int(new["left"].iterations)) == (1, 0)
    assert "Not taken" not in "\n".join(logged)
    assert any(line.startswith("Weights from") and "for the behavior 'right'" in line for line in logged)


def test_between_a_behavior_and_a_single_agent(small_config, tmp_path):
    alone = _trained(small_config, num_iterations=1, root_dir=str(tmp_path / "lr=0.1"))
    grouped = {"algorithm_ctor": behaviors(agent=ppo()), "random_seed": 9}
    gin.bind_parameter("suite_gym.load.env_wrappers", [GroupedRows])
    for number, text in enumerate(("agent=OLD", "OLD")):
        source = text.replace("OLD", str(tmp_path / "lr=0.1"))
        new = _built(small_config, root_dir=str(tmp_path / f"in-{number}"), initialize_from=source, **grouped)
        _assert_same_weights(new.algorithm.by_name["agent"], alone.algorithm)
    one = _trained(small_config, num_iterations=1, root_dir=str(tmp_path / "a@b"), **grouped)
    gin.bind_parameter("suite_gym.load.env_wrappers", [])
    for number, text in enumerate(("agent@OLD", "OLD")):
        source = text.replace("OLD", str(tmp_path / "a@b"))
        back = _built(small_config, root_dir=str(tmp_path / f"out-{number}"), initialize_from=source)
        _assert_same_weights(back.algorithm, one.algorithm.by_name["agent"])


def test_every_behavior_is_told_of_a_restore(monkeypatch):
    bind_hands()
    by_name, algorithm = _new()
    told = []
    monkeypatch.setattr(PPOAlgorithm, "after_restore", lambda self: told.append(self))
    algorithm.after_restore()
    assert [id(one) for one in told] == [id(one) for one in by_name.values()]


MISTAKES = [
    ("chasr=OLD", "no run and no checkpoint of that name. Behaviors of this run: 'left', 'right'"),
    ("left=middle@OLD", "has no behavior 'middle': it has 'left', 'right'"),
    ("right@OLD", "say for which behavior, as in left=..., of 'left', 'right'"),
    ("left=OLD,left=OLD", "the behavior 'left' is given twice"),
    ("left=OLD:7", "there is no checkpoint '7'"),
]


def test_mistakes_of_initialize_from(old):
    bind_hands()
    _, root = old
    _, algorithm = _new()
    for source, message in MISTAKES:
        with pytest.raises(CheckpointError) as error:
            load_weights(algorithm, source.replace("OLD", root))
        assert message in str(error.value)


def test_weights_that_are_removed_while_they_are_read_are_told_in_a_sentence(old, tmp_path, monkeypatch):
    bind_hands()
    root = shutil.copytree(old[1], tmp_path / "live")
    _, algorithm = _new()

    def objects_of(reader):
        for file in (root / "train" / "algorithm").glob("ckpt-*"):
            file.unlink()
        return StoredObjects(reader)

    monkeypatch.setattr(initializing, "StoredObjects", objects_of)
    with pytest.raises(CheckpointError, match=r"^initialize_from=.* cannot be read any more: its files are gone\.$"):
        load_weights(algorithm, str(root))


def test_a_restore_that_fails_names_the_behavior(old, small_config):
    bind_hands()
    with pytest.raises(CheckpointError, match=r"explorations are others \(of the behavior 'right'\)"):
        _built(small_config, algorithm_ctor=behaviors(left=ppo(), right=dqn()), root_dir=old[1])
