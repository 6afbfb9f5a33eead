"""TrainerConfig: arguments, and errors that help."""

from __future__ import annotations

import inspect
import subprocess
import sys

import gin
import pytest

from alf.trainers.policy_trainer import TrainerConfig
from alf.trainers.self_play import SelfPlay

# Names and defaults that gin files of ALF rely on.
DEFAULTS = {
    "algorithm_ctor": None,
    "random_seed": None,
    "num_iterations": 1000,
    "num_env_steps": 0,
    "unroll_length": 8,
    "use_rollout_state": False,
    "use_tf_functions": True,
    "checkpoint_interval": 1000,
    "checkpoint_max_to_keep": 20,
    "evaluate": False,
    "eval_interval": 10,
    "epsilon_greedy": 0.1,
    "num_eval_episodes": 10,
    "summary_interval": 50,
    "update_counter_every_mini_batch": False,
    "summaries_flush_secs": 1,
    "summary_max_queue": 10,
    "debug_summaries": False,
    "summarize_grads_and_vars": False,
    "summarize_action_distributions": False,
    "num_steps_per_iter": 10000,
    "initial_collect_steps": 0,
    "num_updates_per_train_step": 4,
    "mini_batch_length": None,
    "mini_batch_size": None,
    "whole_replay_buffer_training": True,
    "clear_replay_buffer": True,
    "num_envs": 1,
}


def test_arguments_and_defaults():
    config = TrainerConfig("root", trainer=object)
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    names = list(inspect.signature(TrainerConfig.__init__).parameters)
    assert names[1:3] == ["root_dir", "trainer"]
    assert names[3 : 3 + len(DEFAULTS)] == list(DEFAULTS)


def test_unknown_attributes_name_the_nearest():
    config = TrainerConfig("root")
    with pytest.raises(AttributeError, match=r"no 'num_iteration'. Did you mean 'num_iterations'"):
        config.num_iteration
    with pytest.raises(AttributeError, match="Did you mean 'unroll_length'"):
        config.unrol_length = 3
    with pytest.raises(AttributeError, match=r"no 'zzz'\.$"):
        config.zzz
    config.unroll_length = 5
    assert config.unroll_length == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unroll_length", 0),
        ("mini_batch_size", 0),
        ("num_envs", 0),
        ("epsilon_greedy", 1.5),
        ("eval_interval", 0),
        ("checkpoint_save_secs", float("nan")),
    ],
)
def test_numbers_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        TrainerConfig("root", **{name: value})


def test_a_minibatch_has_a_sequence_for_each_learner():
    assert TrainerConfig("root", mini_batch_size=3, num_learners=3).num_learners == 3
    with pytest.raises(ValueError, match=r"mini_batch_size=2 cannot be shared by num_learners=3: raise the first"):
        TrainerConfig("root", mini_batch_size=2, num_learners=3)


@pytest.mark.parametrize("value", ["x", SelfPlay])
def test_self_play_that_is_no_settings_is_named(value):
    with pytest.raises(ValueError, match=r"self_play=.*(x|SelfPlay).* must be settings: write @SelfPlay\(\)\."):
        TrainerConfig("root", self_play=value)


def test_no_limit_at_all_is_refused():
    with pytest.raises(ValueError, match="never end"):
        TrainerConfig("root", num_iterations=0)


def test_create_trainer():
    with pytest.raises(ValueError, match="trainer is not set"):
        TrainerConfig("root").create_trainer()
    made = TrainerConfig("root", trainer=lambda config: ("trainer of", config.root_dir)).create_trainer()
    assert made == ("trainer of", "root")


def test_gin_names_of_the_trainers():
    import alf.trainers.off_policy_trainer as off
    import alf.trainers.on_policy_trainer as on

    for name, cls in (
        ("on_policy_trainer", on.OnPolicyTrainer),
        ("sync_off_policy_trainer", off.SyncOffPolicyTrainer),
        ("async_off_policy_trainer", off.AsyncOffPolicyTrainer),
    ):
        gin.parse_config(f"TrainerConfig.trainer = @{name}")
        assert TrainerConfig("root").trainer is cls


def test_a_script_can_configure_a_run_with_these_imports_alone():
    script = (
        "from alf.trainers.config import TrainerConfig; from alf.utils.gin_utils import parse_gin; "
        "parse_gin([], ['TrainerConfig.num_env_steps = 7']); print(TrainerConfig(root_dir='x').num_env_steps)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "7", done.stderr
