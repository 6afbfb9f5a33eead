"""A loop of one's own over the parts of a trainer: what it leaves in the directory of its run."""

from __future__ import annotations

import contextlib
import itertools

import gin
import numpy as np
import pytest

from alf.bin.run_view import state_of
from alf.metrics.tables import read_csv
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex


def _state(root_dir):
    return state_of(root_dir, RunIndex.load(root_dir).run)


def _rows(root_dir):
    return [(int(row["iteration"]), int(row["env_steps"])) for row in read_csv(f"{root_dir}/train/stats.csv")]


def test_a_loop_of_ones_own_sees_its_evaluations_and_saves(small_config):
    with small_config(SyncOffPolicyTrainer, checkpoint_interval=0).create_trainer() as trainer:
        assert trainer.last_evaluation is None
        trainer.train_and_act("2 training_steps")
        trainer.evaluate("3 episodes")
        assert (trainer.last_evaluation.episodes, trainer.last_evaluation.step) == (3, 2)
        trainer.save()
        root_dir, mean = trainer._root_dir, trainer.last_evaluation.average_return
    (record,) = RunIndex.load(root_dir).records()
    assert (record.step, record.reward, record.kinds) == (2, mean, ["best"])
    with small_config(SyncOffPolicyTrainer).create_trainer() as trainer:
        trainer.initialize()
        assert (int(trainer.global_counter), trainer.last_evaluation.average_return) == (2, mean)


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])
def test_a_loop_tells_that_it_runs_and_what_it_came_to(small_config, trainer_class):
    config = small_config(trainer_class, summary_interval=1000)
    with config.create_trainer() as trainer:
        trainer.train_and_act("3 training_steps")
        assert _state(config.root_dir)[0] == "running"
        assert len(_rows(config.root_dir)) <= 1
        env_steps = trainer.counters.env_steps
    assert _state(config.root_dir) == ("finished", "the program that trains it has closed it")
    assert _rows(config.root_dir)[-1] == (3, env_steps)
    trainer.close()
    assert len(_rows(config.root_dir)) <= 2, "it is told once"
    run = RunIndex.load(config.root_dir).run
    assert (run["seed"], "tensorflow" in run["versions"]) == (1, True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt")), (OSError("full"), ("failed", "OSError: full"))],
)
def test_a_loop_that_an_error_ends_tells_of_it(small_config, error, expected):
    config = small_config(SyncOffPolicyTrainer, summary_interval=1000)
    with pytest.raises(type(error)), config.create_trainer() as trainer:
        trainer.train_and_act("2 training_steps")
        raise error
    assert _state(config.root_dir) == expected
    assert _rows(config.root_dir)[-1][0] == 2


def test_training_after_a_loop_tells_of_its_own_end(small_config):
    config = small_config(SyncOffPolicyTrainer)
    with config.create_trainer() as trainer:
        trainer.train_and_act("1 training_steps")
        trainer.train()
    assert _state(config.root_dir) == ("finished", "num_iterations=3 is reached")
    assert [iteration for iteration, _ in _rows(config.root_dir)].count(3) == 1


def test_a_trainer_that_only_evaluates_leaves_the_run_as_it_is(small_config):
    config = small_config(SyncOffPolicyTrainer, num_iterations=1)
    config.create_trainer().train()
    before = RunIndex.load(config.root_dir).run
    with config.create_trainer() as trainer:
        trainer.evaluate("1 episodes")
    assert RunIndex.load(config.root_dir).run == before


def test_a_closed_trainer_does_not_undo_what_another_one_has_learned_since(small_config):
    config = small_config(SyncOffPolicyTrainer, checkpoint_interval=0)
    with config.create_trainer() as closed:
        closed.train_and_act("1 training_steps")
    closed.save()
    closed.close()
    with config.create_trainer() as later:
        later.train_and_act("2 training_steps")
        later.save()
    for call in (closed.save, lambda: closed.evaluate("1 episodes")):
        with pytest.raises(
            RuntimeError, match=r"another one has gone on with .*, whose newest checkpoint is ckpt-3: make"
        ):
            call()
    with config.create_trainer() as trainer:
        trainer.initialize()
        assert int(trainer.global_counter) == 3


def _outcome(trainer):
    root_dir = trainer._root_dir
    return {
        "weights": np.concatenate([v.numpy().ravel() for v in trainer.algorithm.trainable_variables]).tolist(),
        "counters": (trainer.counters.iterations, trainer.counters.env_steps),
        "evaluation": (trainer.last_evaluation.step, trainer.last_evaluation.average_return),
        "state": _state(root_dir),
        "records": [(record.step, record.kinds, record.reward) for record in RunIndex.load(root_dir).records()],
        "rows": _rows(root_dir),
        "episodes": len(list(read_csv(f"{root_dir}/train/episodes.csv"))),
    }


def test_two_trainers_of_one_process_keep_apart(small_config, tmp_path):
    """Each comes to what it comes to alone, though the other trains, evaluates and saves in between."""
    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    lengths = {1: 3, 2: 2}

    def parts(trainer, length):
        for _ in range(length):
            yield trainer.train_and_act("1 training_steps")
        yield trainer.evaluate("2 episodes")
        yield trainer.save()

    def come_to(folder, *seeds):
        with contextlib.ExitStack() as stack:
            trainers = {}
            for seed in seeds:
                root_dir = str(tmp_path / folder / str(seed))
                config = small_config(SyncOffPolicyTrainer, root_dir=root_dir, random_seed=seed, summary_interval=1)
                trainers[seed] = stack.enter_context(config.create_trainer())
            for _ in itertools.zip_longest(*(parts(trainers[seed], lengths[seed]) for seed in seeds)):
                pass
        return {seed: _outcome(trainer) for seed, trainer in trainers.items()}

    alone = come_to("alone", 1) | come_to("other", 2)
    assert alone[1]["counters"] == (3, 48)
    assert alone[2]["counters"] == (2, 32)
    beside = come_to("beside", 1, 2)
    for seed in lengths:
        assert {name: value for name, value in beside[seed].items() if value != alone[seed][name]} == {}
