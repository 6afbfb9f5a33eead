"""Settings that parse and make no sense get a sentence that names them, before training begins."""

from __future__ import annotations

import importlib

import gin
import gymnasium
import numpy as np
import pytest
from absl import logging

from alf.bin import command_line, export, train
from alf.bin.command_line import UsageError, told_as_usage
from tests.bin.running import SMALL, run_here

pytestmark = pytest.mark.slow

SETTINGS = [
    ("TrainerConfig.num_iterations='many'", "TrainerConfig.num_iterations='many' must be a whole number."),
    ("TrainerConfig.num_envs=1.5", "TrainerConfig.num_envs=1.5 must be a whole number."),
    ("TrainerConfig.trainer=3", "TrainerConfig.trainer=3 must be a function or class (@name) or None."),
    ("TrainerConfig.trainer=None", "TrainerConfig.trainer is not set: bind it to @on_policy_trainer"),
    ("TrainerConfig.algorithm_ctor=None", "TrainerConfig.algorithm_ctor is not set: bind it to an algorithm"),
    ("create_environment.num_parallel_environments='x'", "num_parallel_environments='x' must be a whole number."),
    ("Agent.encoding_network=3", "A network of TF-Agents' kind is needed, got 3: make one, such as @QNetwork(), or of"),
    (
        "ActorDistributionNetwork.discrete_projection_net=3",
        "(in ActorDistributionNetwork). (TypeError; --verbosity=1 tells where.)",
    ),
    ("create_environment.num_parallel_environments=0", "got batch size 0 (in create_environment)."),
    ("Adam.learning_rate='fast'", "Adam.learning_rate='fast' must be a number."),
    ("Agent.gradient_clipping='x'", "Agent.gradient_clipping='x' must be a number or None."),
    ("PPOLoss.td_error_loss_fn=3", "PPOLoss.td_error_loss_fn=3 must be a function or class (@name)."),
    ("ActorCriticLoss.gamma=(1, 2)", "ActorCriticLoss.gamma=(1, 2) must be a number."),
    ("AsyncOffPolicyDriver.mode='no'", "mode='no' is not one of async, lockstep, sync (in AsyncOffPolicyDriver)."),
    ("StatsReporter.formats=3", "StatsReporter.formats=3 must be a list of texts or functions or classes (@name)."),
    ("EpisodeVideo.every=-1", "EpisodeVideo.every=-1 must be at least 0."),
    ("TrainerConfig.stop_conditions=[@Plateau]", "must be a list of conditions, such as [@alf.TimeLimit()]."),
    ("TrainerConfig.stop_conditions=[@x/Plateau]", "must be a list of conditions, such as [@alf.TimeLimit()]."),
    (
        "TrainerConfig.num_iterations=0\nTrainerConfig.stop_conditions=[@MeanReturn()]\nMeanReturn.target=1",
        "MeanReturn.target judges by evaluations, and this run makes none of its own, so it would never end: set",
    ),
    (
        "create_environment.env_name='tests.bin.test_wrong_settings:OfFourValues'",
        "The environment cannot be used: step() must return (observation, reward, terminated, truncated, info); it "
        "returned a tuple of 4.",
    ),
    (
        "create_environment.env_name='tests.bin.test_wrong_settings:OfTwoParts'",
        "The observation has the parts ['left', 'right'], which each network must join: import alf.networks.combining and "
        "bind its preprocessing_combiner = @FlattenAndConcatenate() (",
    ),
]

OF_TWO_PARTS = [
    (
        "Agent.observation_transformer=@the_middle",
        "The observation has the parts ['left', 'right'], and a transformer or a network is made for others: 'middle' (in "
        "the_middle).",
    ),
    (
        "ActorDistributionNetwork.preprocessing_layers={'middle': @tf.keras.layers.Flatten()}",
        "The observation has the parts ['left', 'right'], and a transformer or a network is made for others: The two "
        "structures",
    ),
]


@gin.configurable
def the_middle(observation):
    return observation["middle"]


class OfFourValues(gymnasium.Env):
    """Its step returns what Gym's did long ago."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **kwargs):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, {}


class OfTwoParts(OfFourValues):
    observation_space = gymnasium.spaces.Dict(dict.fromkeys(("left", "right"), OfFourValues.observation_space))


@pytest.mark.parametrize(("binding", "message"), SETTINGS)
def test_what_cannot_be_built_is_told_in_a_line(binding, message, logged, tmp_path):
    evaluating = ["TrainerConfig.evaluate=True"] if "Video" in binding else []
    bindings = [f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=1", *evaluating, binding)]
    assert run_here(train.main, f"--root_dir={tmp_path}", "--gin_file=async_ppo_cart_pole", *bindings) == 2
    assert message in logged[-1]
    assert "\n" not in logged[-1]


@pytest.mark.parametrize(("binding", "message"), OF_TWO_PARTS)
def test_what_is_made_for_other_parts_is_told_in_a_line(binding, message, logged, tmp_path):
    env = SETTINGS[-1][0]
    bindings = [f"--gin_param={b}" for b in (*SMALL, env, binding)]
    assert run_here(train.main, f"--root_dir={tmp_path}", "--gin_file=async_ppo_cart_pole", *bindings) == 2
    assert message in logged[-1]
    assert "\n" not in logged[-1]


def test_a_name_that_is_not_there_is_told_in_a_line(logged):
    def body():
        with told_as_usage():
            raise KeyError("middle")

    assert command_line.run(body) == command_line.MISTAKE
    assert logged == ["There is no 'middle' (KeyError; --verbosity=1 tells where.)"]


def test_an_error_of_training_keeps_its_traceback(tmp_path, logged, monkeypatch):
    from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer

    def fail(self):
        raise TypeError("on purpose")

    monkeypatch.setattr(AsyncOffPolicyTrainer, "improve", fail)
    bindings = [f"--gin_param={b}" for b in SMALL]
    with pytest.raises(TypeError, match="on purpose"):
        run_here(train.main, f"--root_dir={tmp_path}", "--gin_file=async_ppo_cart_pole", *bindings)


@pytest.mark.parametrize("error", ["alf.trainers.saving.NonFiniteError", "alf.replay.dataset.DatasetError"])
def test_an_error_that_says_what_to_do_is_one_line(error, logged):
    module, _, name = error.rpartition(".")

    def body():
        raise getattr(importlib.import_module(module), name)("lower the rate")

    assert command_line.run(body) == command_line.MISTAKE
    assert logged == ["lower the rate"]


def test_where_it_came_from_is_told_on_request(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "error", lambda text, *args: told.append(("error", str(text % args))))
    monkeypatch.setattr(logging, "debug", lambda text, exc_info: told.append(("debug", exc_info.__cause__)))
    cause = AttributeError("no such thing")

    def body():
        with told_as_usage():
            raise cause

    assert command_line.run(body) == command_line.MISTAKE
    assert told == [("debug", cause), ("error", "no such thing (AttributeError; --verbosity=1 tells where.)")]


def test_verbosity_is_not_lowered():
    before = logging.get_verbosity()
    try:
        for asked, expected in ((-1, 0), (0, 0), (1, 1)):
            logging.set_verbosity(asked)
            command_line.set_up_logging()
            assert logging.get_verbosity() == expected
    finally:
        logging.set_verbosity(before)


def test_only_building_is_told_as_usage():
    with pytest.raises(UsageError, match="bad size"), told_as_usage(lambda: True):
        raise ValueError("bad size")
    with pytest.raises(ValueError, match="bad size") as kept, told_as_usage(lambda: False):
        raise ValueError("bad size")
    assert type(kept.value) is ValueError


def test_paths_by_which_tensorflow_finds_no_checkpoint_are_refused(tmp_path, logged):
    root_dir = tmp_path / "lr=[0.1]"
    assert run_here(train.main, f"--root_dir={root_dir}", "--gin_file=async_ppo_cart_pole") == 2
    assert logged[-1].startswith(f"--root_dir={root_dir} has a [ or \\, with which")
    assert run_here(export.main, f"--root_dir={tmp_path}", f"--export_dir={root_dir}") == 2
    assert logged[-1].startswith(f"--export_dir={root_dir} has a [ or \\, with which")
    assert not list(tmp_path.iterdir())
