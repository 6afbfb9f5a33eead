"""Trainers in scripts and notebooks."""

from __future__ import annotations

import pathlib

import gin
import pytest

from alf.trainers.making import make_trainer
from alf.utils import gin_utils
from alf.utils.gin_utils import GinConfigError

SMALL = [
    "TrainerConfig.num_iterations=2",
    "create_environment.num_parallel_environments=4",
    "TrainerConfig.random_seed=1",
    "TrainerConfig.export_saved_model=False",
]


def test_runs_follow_each_other_each_by_its_own_settings(tmp_path):
    found = []
    for seed, folder in ((1, "a"), (2, "b"), (1, "c")):
        with make_trainer("ac_cart_pole", tmp_path / folder, [*SMALL, f"TrainerConfig.random_seed={seed}"]) as trainer:
            trainer.train()
            found.append([v.numpy().tolist() for v in trainer.algorithm.trainable_variables])
    assert found[0] == found[2]
    assert found[0] != found[1]
    assert gin.query_parameter("TrainerConfig.random_seed") == 1


def test_the_same_directory_goes_on(tmp_path):
    for iterations, before in ((2, 0), (5, 2)):
        with make_trainer("ac_cart_pole", tmp_path, [*SMALL, f"TrainerConfig.num_iterations={iterations}"]) as trainer:
            trainer.initialize()
            assert trainer.counters.iterations == before
            trainer.train()
            assert trainer.counters.iterations == iterations


def test_a_setting_of_the_run_before_is_forgotten(tmp_path):
    make_trainer("ac_cart_pole", tmp_path, [*SMALL, "TrainerConfig.num_env_steps=7"]).close()
    make_trainer("ac_cart_pole", tmp_path, SMALL).close()
    with pytest.raises(ValueError, match=r"num_env_steps"):
        gin.query_parameter("TrainerConfig.num_env_steps")


def test_a_trainer_is_not_built_by_the_settings_of_a_later_one(tmp_path):
    first, later = (make_trainer("ac_cart_pole", tmp_path / name, SMALL) for name in ("first", "later"))
    for call in (first.train, lambda: first.evaluate("1 episodes")):
        with pytest.raises(RuntimeError, match=r"The trainer of .*/first would be built by the settings of one that"):
            call()
    later.train()
    make_trainer("ac_cart_pole", tmp_path / "third", SMALL).close()
    with pytest.raises(RuntimeError, match=r"The trainer of .*/later would be built"):
        later.evaluate("1 episodes")
    later.close()


def test_files_as_paths_and_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    one, other = tmp_path / "one.gin", tmp_path / "other.gin"
    one.write_text("include 'ac_cart_pole.gin'\n")
    other.write_text("\n".join(SMALL))
    with make_trainer([one, str(other)], pathlib.Path("~/run")) as trainer:
        trainer.train()
    assert (tmp_path / "run" / "training_status.json").is_file()


def test_one_binding_as_text(tmp_path):
    with make_trainer("ac_cart_pole", tmp_path, "TrainerConfig.num_iterations=7") as trainer:
        assert trainer._config.num_iterations == 7


def test_names_that_gin_files_need_not_import(tmp_path):
    text = """
    TrainerConfig.trainer = @sync_off_policy_trainer
    TrainerConfig.algorithm_ctor = @Agent
    TrainerConfig.schedule = @Schedule()
    TrainerConfig.stop_conditions = [@alf.TimeLimit()]
    alf.TimeLimit.secs = 1
    Agent.optimizer = @Adam()
    PPOLoss.td_error_loss_fn = @losses.element_wise_huber_loss
    create_environment.env_name = @PolicyUnittestEnv
    NormalProjectionNetwork.std_transform = @clipped_exp
    """
    (tmp_path / "names.gin").write_text(text.replace("    ", ""))
    make_trainer(tmp_path / "names.gin", tmp_path / "run").close()


def test_what_cannot_be_used_is_told(tmp_path):
    with pytest.raises(GinConfigError, match=r"No gin file 'ac_cart_pol'.*ac_cart_pole"):
        make_trainer("ac_cart_pol", tmp_path)
    with pytest.raises(GinConfigError, match="num_iteration"):
        make_trainer("ac_cart_pole", tmp_path, ["TrainerConfig.num_iteration=3"])
    with pytest.raises(ValueError, match=r"TrainerConfig\.trainer is not set"):
        make_trainer([], tmp_path)


def test_a_second_configuration_is_refused_by_name():
    gin_utils.parse_gin([], ["TrainerConfig.num_iterations=2"])
    with pytest.raises(GinConfigError, match=r"locked: call gin\.clear_config\(\)"):
        gin_utils.parse_gin([], ["TrainerConfig.num_iterations=3"])
    gin.clear_config()
    gin_utils.parse_gin([], ["TrainerConfig.num_iterations=3"])
