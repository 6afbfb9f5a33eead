"""When a run saves, what it does when that fails, what it begins with, and what its index says of it."""

from __future__ import annotations

import os
import pathlib
import signal

import gin
import numpy as np
import pytest
import tensorflow as tf

import alf
from alf.algorithms.agent import Agent
from alf.algorithms.behavior import Behavior
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.metrics.summary_writer import SummaryWriter
from alf.trainers import run_facts
from alf.trainers.checkpointing import Checkpointer, CheckpointError
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_facts import keep_earlier
from alf.trainers.run_index import RunIndex
from alf.trainers.saving import MAX_FAILURES, NonFiniteError
from alf.utils import gin_utils
from tests.algorithms.test_tf_agents_algorithm import wrapped
from tests.trainers.many_agents import behaviors, bind_pursuit
from tests.trainers.small_run import make_algorithm

pytestmark = pytest.mark.slow


def _train(small_config, **kwargs):
    trainer = small_config(SyncOffPolicyTrainer, **{"num_updates_per_train_step": 1, **kwargs}).create_trainer()
    trainer.train()
    return trainer


def _index(tmp_path):
    return RunIndex.load(str(tmp_path / "run"))


def _steps(tmp_path):
    return [r.step for r in _index(tmp_path).records()]


def _tree(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in pathlib.Path(path).rglob("*") if p.is_file()}


# ---- triggers ----


def test_by_environment_steps(small_config, tmp_path):
    """An iteration makes 16 steps: multiples of 40 are passed after iterations 3 (48), 5 (80) and 8 (128)."""
    _train(small_config, num_iterations=8, checkpoint_interval=0, checkpoint_env_steps=40)
    assert _steps(tmp_path) == [3, 5, 8]
    _train(small_config, num_iterations=11, checkpoint_interval=0, checkpoint_env_steps=40)
    assert _steps(tmp_path) == [3, 5, 8, 10, 11]
    assert [r.kinds for r in _index(tmp_path).records()][-2:] == [["periodic"], ["final"]]


def test_by_seconds(small_config, tmp_path):
    _train(small_config, num_iterations=3, checkpoint_interval=0, checkpoint_save_secs=1e-6)
    assert _steps(tmp_path) == [1, 2, 3]
    _train(
        small_config, num_iterations=4, checkpoint_interval=0, checkpoint_save_secs=1e6, root_dir=str(tmp_path / "b")
    )
    assert [r.step for r in RunIndex.load(str(tmp_path / "b")).records()] == [4]


def test_by_evaluation_and_by_the_best_one(small_config, tmp_path, monkeypatch):
    from alf.trainers.evaluation import Evaluator

    returns = iter([3.0, 1.0, 5.0, 2.0])
    play = Evaluator.play

    def fake(self, *args, **kwargs):
        result = play(self, *args, **kwargs)
        return result._replace(average_return=next(returns))

    monkeypatch.setattr(Evaluator, "play", fake)
    settings = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 1, "checkpoint_interval": 0}
    _train(small_config, num_iterations=4, **settings)
    assert _steps(tmp_path) == [1, 3, 4]
    best = _index(tmp_path).best()
    assert (best.step, best.reward, best.reward_episodes) == (3, 5.0, 1)
    returns = iter([3.0, 1.0])
    _train(small_config, num_iterations=2, root_dir=str(tmp_path / "b"), checkpoint_at_evaluation=True, **settings)
    assert [r.step for r in RunIndex.load(str(tmp_path / "b")).records()] == [1, 2]


def test_milestones_and_what_the_final_record_is(small_config, tmp_path):
    _train(small_config, num_iterations=5, checkpoint_interval=1, checkpoint_max_to_keep=1, checkpoint_milestones=2)
    assert {r.step: r.kinds for r in _index(tmp_path).records()} == {
        2: ["milestone", "periodic"],
        4: ["milestone", "periodic"],
        5: ["final", "periodic"],
    }


@pytest.mark.parametrize("name", ["save_secs", "env_steps", "milestones", "max_to_keep"])
def test_negative_settings_are_errors(small_config, name):
    with pytest.raises(ValueError, match=f"checkpoint_{name}=-1 must be at least 0"):
        small_config(SyncOffPolicyTrainer, **{f"checkpoint_{name}": -1})


# ---- failures ----


def _failing(monkeypatch, fails):
    """Makes the saves fail whose numbers (from 1) `fails` accepts."""
    save, calls = Checkpointer.save, []

    def saving(self, *args, **kwargs):
        calls.append(1)
        if fails(len(calls)):
            raise OSError(28, "No space left on device")
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Checkpointer, "save", saving)
    return calls


def test_a_failing_save_is_told_and_training_goes_on(small_config, tmp_path, monkeypatch, logged):
    _failing(monkeypatch, lambda n: n in (1, 2, 4))
    _train(small_config, num_iterations=5, checkpoint_interval=1)
    assert _steps(tmp_path) == [3, 5]
    told = [line for line in logged if "could not be written" in line]
    assert len(told) == 3
    assert told[0] == (
        "The checkpoint after iteration 1 could not be written (OSError: [Errno 28] No space left on device); the last one is "
        "none. Training goes on; failure number 3 in a row ends it, and this is number 1."
    )


def test_after_some_failures_in_a_row_training_ends(small_config, monkeypatch):
    calls = _failing(monkeypatch, lambda n: True)
    with pytest.raises(OSError, match="No space left") as caught:
        _train(small_config, num_iterations=50, checkpoint_interval=1)
    assert "failure number 3 in a row" in caught.value.__notes__[-1]
    assert len(calls) == MAX_FAILURES + 1, "and one last attempt at the end"


def test_an_index_that_cannot_be_written_ends_no_evaluation(small_config, tmp_path, monkeypatch, logged):
    def full(self, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpointer, "judge", full)
    trainer = _train(small_config, num_iterations=3, evaluate=True, eval_interval=1, evaluate_beside=True)
    assert trainer.counters.iterations == 3
    assert _index(tmp_path).run["status"] == "finished"
    assert any("The run index could not be written: [Errno 28]" in line for line in logged)


def test_a_failing_last_save_is_an_error(small_config, monkeypatch, tmp_path):
    _failing(monkeypatch, lambda n: True)
    with pytest.raises(OSError, match="No space left") as caught:
        _train(small_config, num_iterations=1)
    assert "The checkpoint after iteration 1 could not be written" in caught.value.__notes__[0]
    assert _index(tmp_path).run["status"] == "failed"


def test_logs_that_cannot_be_written_end_no_training(small_config, tmp_path, monkeypatch):
    opened, written = SummaryWriter._open, gin_utils.write_operative_config
    full = iter([True, True])

    def until_there_is_space(action):
        def act(*args):
            if next(full, False):
                raise tf.errors.ResourceExhaustedError(None, None, "full") if action is opened else OSError(28, "full")
            return action(*args)

        return act

    gin.bind_parameter("StatsReporter.min_interval_secs", 0.0)
    monkeypatch.setattr(SummaryWriter, "_open", until_there_is_space(opened))
    monkeypatch.setattr(gin_utils, "write_operative_config", until_there_is_space(written))
    _train(small_config, num_iterations=3, summary_interval=1)
    assert next(full, None) is None
    assert _steps(tmp_path) == [3]
    assert (tmp_path / "run" / "configured.gin").is_file()


class _Spoils:
    """An algorithm constructor whose loss, or weights, are NaN from an iteration on."""

    def __init__(self, iteration, weights):
        self._iteration = iteration
        self._weights = weights

    def __call__(self, observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        train = algorithm.train

        def spoiling(**kwargs):
            steps = train(**kwargs)
            if int(algorithm.iterations) == self._iteration:
                if self._weights:
                    algorithm.trainable_variables[0].assign(algorithm.trainable_variables[0] * np.nan)
                else:
                    algorithm.last_train_metrics["loss"] = tf.constant(np.nan)
            return steps

        object.__setattr__(algorithm, "train", spoiling)
        return algorithm


@pytest.mark.parametrize("weights", [False, True], ids=["loss", "weights"])
def test_what_is_not_finite_ends_the_run_and_the_last_good_checkpoint_stays(small_config, tmp_path, weights):
    with pytest.raises(
        NonFiniteError, match=r"Iteration 3: .*The last good checkpoint is .*ckpt-2\. Lower the learning"
    ):
        _train(small_config, algorithm_ctor=_Spoils(3, weights), num_iterations=9, checkpoint_interval=1)
    assert _steps(tmp_path) == [1, 2]
    index = _index(tmp_path)
    assert index.run["status"] == "failed"
    assert "NonFiniteError: Iteration 3" in index.run["why"]
    for variable in _train(small_config, num_iterations=3).algorithm.variables:
        assert np.all(np.isfinite(variable.numpy()))


def test_a_loss_that_an_agent_of_tf_agents_refuses_ends_the_run_alike(small_config):
    def diverges(observation_spec, action_spec, **_):
        return wrapped("dqn", observation_spec, action_spec, gamma=np.nan)

    with pytest.raises(NonFiniteError, match=r"Iteration 1: Loss is inf or nan\. The last good checkpoint is none"):
        _train(small_config, algorithm_ctor=diverges, whole_replay_buffer_training=False, mini_batch_length=2)


# ---- another run's weights ----


def _wider(observation_spec, action_spec, debug_summaries=False):
    from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
    from tf_agents.networks.value_network import ValueNetwork

    from alf.algorithms.ppo_algorithm import PPOAlgorithm
    from alf.algorithms.ppo_loss import PPOLoss

    return PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network=ActorDistributionNetwork(observation_spec, action_spec, fc_layer_params=(8,)),
        value_network=ValueNetwork(observation_spec, fc_layer_params=(16,)),
        loss_class=PPOLoss,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )


def _built(small_config, **kwargs):
    trainer = small_config(SyncOffPolicyTrainer, **kwargs).create_trainer()
    trainer.initialize()
    trainer.close()
    return trainer


def test_weights_of_another_run(small_config, tmp_path, logged):
    source = _train(small_config, num_iterations=3, checkpoint_interval=1)
    before = _tree(tmp_path / "run")
    settings = {"root_dir": str(tmp_path / "new"), "random_seed": 9}
    new = _built(small_config, initialize_from=str(tmp_path / "run"), **settings)
    for a, b in zip(source.algorithm.trainable_variables, new.algorithm.trainable_variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert (new.counters.iterations, new.counters.env_steps, int(new.algorithm.iterations)) == (0, 0, 0)
    optimizer, variables = new.algorithm.optimized_variables()[0]
    assert int(optimizer.iterations) == 0
    assert all(not np.any(optimizer.get_slot(v, "m").numpy()) for v in variables)
    assert _tree(tmp_path / "run") == before, "the source is only read"
    assert "Not taken" not in "\n".join(logged)

    earlier = _built(small_config, initialize_from=str(tmp_path / "run" / "train" / "algorithm" / "ckpt-1"), **settings)
    by_name = _built(small_config, initialize_from=f"{tmp_path / 'run'}:1", **settings)
    for a, b in zip(earlier.algorithm.trainable_variables, by_name.algorithm.trainable_variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())

    # Once the new run has a checkpoint of its own, it goes on from that.
    _train(small_config, num_iterations=1, initialize_from=str(tmp_path / "run"), **settings)
    resumed = _built(small_config, initialize_from="nowhere", **settings)
    assert resumed.counters.iterations == 1


def test_what_does_not_fit_is_listed(small_config, tmp_path, logged):
    source = _train(small_config, num_iterations=1)
    settings = {"root_dir": str(tmp_path / "new"), "algorithm_ctor": _wider}
    new = _built(small_config, initialize_from=str(tmp_path / "run"), **settings)
    (told,) = [line for line in logged if "Not taken from" in line]
    assert told.count("there") == 3, "the hidden layer's two and the kernel of the output"
    for a, b in zip(source.algorithm.trainable_variables, new.algorithm.trainable_variables, strict=True):
        if a.shape == b.shape and a.numpy().any():
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def _in_agent(inside):
    def make(observation_spec, action_spec, debug_summaries=False):
        return Agent(observation_spec, action_spec, inside, optimizer=tf.keras.optimizers.legacy.Adam(1e-3))

    return make


def _in_trac(observation_spec, action_spec, debug_summaries=False):
    return TracAlgorithm(observation_spec, action_spec, make_algorithm)


_SHELLS = {
    "bare": make_algorithm,
    "agent": _in_agent(make_algorithm),
    "trac": _in_trac,
    "trac in agent": _in_agent(_in_trac),
}


@pytest.mark.parametrize(
    ("there", "here"),
    [("bare", "agent"), ("agent", "bare"), ("bare", "trac"), ("agent", "trac in agent"), ("trac", "agent")],
)
def test_weights_fit_whatever_stands_around_an_algorithm(there, here, small_config, tmp_path, logged):
    source = _train(small_config, num_iterations=1, algorithm_ctor=_SHELLS[there])
    new = _built(
        small_config,
        initialize_from=str(tmp_path / "run"),
        root_dir=str(tmp_path / "new"),
        random_seed=9,
        algorithm_ctor=_SHELLS[here],
    )
    weights = [[v.numpy() for v in run.algorithm.trainable_variables] for run in (source, new)]
    assert len(weights[0]) >= 6
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert "Not taken" not in "\n".join(logged)


def test_weights_of_behaviors_fit_whatever_stands_around_each(small_config, tmp_path, logged):
    bind_pursuit()

    def pair(chaser, runner):
        return behaviors(chaser=Behavior(_SHELLS[chaser]), runner=Behavior(_SHELLS[runner]))

    source = _train(small_config, num_iterations=1, algorithm_ctor=pair("bare", "agent"))
    settings = {"root_dir": str(tmp_path / "new"), "random_seed": 9}
    new = _built(small_config, initialize_from=str(tmp_path / "run"), algorithm_ctor=pair("agent", "bare"), **settings)
    for name, one in new.algorithm.by_name.items():
        for a, b in zip(source.algorithm.by_name[name].trainable_variables, one.trainable_variables, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert "Not taken" not in "\n".join(logged)


@pytest.mark.parametrize(
    ("source", "message"),
    [("nowhere", r"no run and no checkpoint of that name"), ("run:best", r"no checkpoint 'best'.*there are: ckpt-1")],
)
def test_a_source_that_is_not_there(small_config, tmp_path, source, message):
    Checkpointer(str(tmp_path / "run" / "train" / "algorithm"), {"algorithm": tf.Module()}).save(1)
    with pytest.raises(CheckpointError, match=message):
        _built(small_config, initialize_from=str(tmp_path / source), root_dir=str(tmp_path / "new"))


def test_a_source_of_nothing_that_fits(small_config, tmp_path):
    module = tf.Module()
    module.v = tf.Variable(1.0)
    Checkpointer(str(tmp_path / "other"), {"algorithm": module}).save(1)
    said = r"no weight of .* fits this algorithm: .*/kernel is not in it; .*; v is not in this algorithm\."
    with pytest.raises(CheckpointError, match=said):
        _built(small_config, initialize_from=str(tmp_path / "other"))


# ---- the facts of the run ----


def test_the_index_tells_how_the_run_stands(small_config, tmp_path, logged):
    states = []

    def watching(observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        algorithm.add_after_train_hook(lambda: states.append(_index(tmp_path).run["status"]))
        return algorithm

    _train(small_config, num_iterations=1, algorithm_ctor=watching)
    run = _index(tmp_path).run
    assert states == ["running"]
    assert (run["status"], run["seed"], run["versions"]["alf"]) == ("finished", 1, alf.__version__)
    assert "1" in run["why"]
    assert isinstance(run["command_line"], list)
    assert run["started"] <= run["updated"]
    assert not any("other versions" in line or "finished already" in line for line in logged)

    index = _index(tmp_path)
    index.run["versions"]["numpy"] = "0.1"
    index.save()
    before = _steps(tmp_path)
    _train(small_config, num_iterations=1)
    text = "\n".join(logged)
    assert "other versions: numpy 0.1 -> " in text
    assert "This run was finished already" in text
    assert "To extend it" in text
    assert _steps(tmp_path) == before


def test_a_finished_run_that_is_repeated_keeps_its_facts_and_its_report(small_config, tmp_path, logged):
    _train(small_config, num_iterations=1, random_seed=None)
    kept = [tmp_path / "run" / name for name in ("report.html", "configured.gin")]
    run, contents = _index(tmp_path).run, [path.read_bytes() for path in kept]
    _train(small_config, num_iterations=1, random_seed=None)
    assert any("This run was finished already" in line for line in logged)
    again = _index(tmp_path).run
    assert {**again, "updated": None} == {**run, "updated": None}
    assert [path.read_bytes() for path in kept] == contents


def test_a_signal_during_the_last_save_interrupts_nothing(small_config, tmp_path, monkeypatch):
    save = Checkpointer.save

    def interrupted(self, *args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Checkpointer, "save", interrupted)
    _train(small_config, num_iterations=1, checkpoint_interval=0)
    run = _index(tmp_path).run
    assert (run["status"], run["why"]) == ("finished", "num_iterations=1 is reached")


@pytest.mark.parametrize(
    ("before", "here", "told"),
    [
        ("2.9.0", "2.10.0", "a 2.9.0 -> 2.10.0"),
        ("2.10.0", "2.9.0", "a 2.10.0 -> 2.9.0 (older)"),
        ("200.300.100.dev0", "200.300.100", "a 200.300.100.dev0 -> 200.300.100"),
        ("1.0", "1.0.0", None),
        ("odd", "1.0", "a odd -> 1.0"),
        ("odd", "odd", None),
        ("1.0", None, "a 1.0 -> none"),
    ],
)
def test_versions_compare_as_versions(before, here, told, monkeypatch, logged):
    monkeypatch.setattr(run_facts, "versions", lambda: {"a": here} if here else {})
    run_facts.warn_of_other_versions({"versions": {"a": before}})
    assert [line.split(": ")[1].split(". Results")[0] for line in logged] == ([told] if told else [])


def test_an_algorithm_without_weights_says_so(small_config, logged):
    def nothing(observation_spec, action_spec, debug_summaries=False):
        algorithm = make_algorithm(observation_spec, action_spec)
        algorithm.build_optimizers()
        for weight in algorithm.trainable_variables:
            weight._trainable = False
        return algorithm

    _built(small_config)
    assert not any("no weights" in line for line in logged)
    _built(small_config, algorithm_ctor=nothing)
    assert any("PPOAlgorithm has no weights to train: the checkpoints of this run hold" in line for line in logged)


def test_earlier_configurations_are_kept_under_numbers(tmp_path):
    folder, path = tmp_path / "kept", tmp_path / "configured.gin"
    folder.mkdir()
    assert keep_earlier(str(path), str(folder)) is None
    for text in ["a", "b", "b", *"cdefghijk"]:
        path.write_text(text)
        keep_earlier(str(path), str(folder))
    kept = {p.name: p.read_text() for p in folder.iterdir()}
    assert kept == {f"configured-{n}.gin": text for n, text in enumerate("abcdefghijk", 1)}


def test_a_run_that_cannot_be_written_at_all(small_config, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError, match="run"):
        _train(small_config, num_iterations=1)


def test_models_are_exported_with_checkpoints(small_config, tmp_path):
    _train(small_config, num_iterations=2, checkpoint_interval=1, checkpoint_max_to_keep=1, export_saved_model=True)
    (record,) = _index(tmp_path).records()
    folder = os.path.join("train", "models", "ckpt-2")
    assert os.path.join(folder, "saved_model", "saved_model.pb") in record.files
    assert os.listdir(tmp_path / "run" / "train" / "models") == ["ckpt-2"]


def test_gin_can_bind_all_of_it(small_config):
    gin.parse_config("TrainerConfig.checkpoint_env_steps = 5\nTrainerConfig.exact_resume = True")
    config = small_config(SyncOffPolicyTrainer)
    assert (config.checkpoint_env_steps, config.exact_resume) == (5, True)


def test_an_iteration_without_an_update_is_saved_too(small_config, tmp_path):
    """With minibatches as steps both have one number."""
    config = small_config(
        SyncOffPolicyTrainer, num_iterations=2, update_counter_every_mini_batch=True, checkpoint_interval=1
    )
    trainer = config.create_trainer()
    trainer.initialize()
    trainer.algorithm.updates_made = lambda: 1
    trainer.train()
    resumed = config.create_trainer()
    resumed.initialize()
    assert resumed.counters.iterations == 2
    assert resumed.counters.env_steps == trainer.counters.env_steps
    resumed.close()
