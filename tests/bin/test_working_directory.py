"""Relative paths mean the directory that a command is started in, wherever an environment goes from there."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest

from alf.bin import command_line, estimate, evaluate, export, play, record, train
from alf.trainers.making import make_trainer
from alf.trainers.origins import origins
from tests.bin.running import run_here

SETTINGS = [
    "create_environment.env_name = 'tests.bin.test_working_directory:Wanderer'",
    "create_environment.num_parallel_environments = 2",
    "TrainerConfig.unroll_length = 8",
    "TrainerConfig.num_iterations = 2",
    "TrainerConfig.checkpoint_interval = 1",
]


class Wanderer(gymnasium.Env):
    """Goes to the folder of its data, as simulators do, and from there to another one."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.step_number = 0
        os.chdir(os.environ["WANDERER_DATA"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        os.chdir(os.path.join(os.environ["WANDERER_DATA"], "more"))
        self.step_number += 1
        return np.full(1, self.step_number, np.float32), 1.0, self.step_number == 5, False, {}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


@pytest.fixture
def started_in(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "data" / "more").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("WANDERER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def _is_elsewhere(started_in: pathlib.Path) -> bool:
    data = started_in.parent / "data"
    return pathlib.Path.cwd().is_relative_to(data) and list(data.rglob("*")) == [data / "more"]


def test_a_run_of_a_script_stays_where_it_began(started_in: pathlib.Path) -> None:
    make_trainer("ppo_cart_pole", "runs/one", SETTINGS).train()
    assert _is_elsewhere(started_in)
    assert (started_in / "runs/one/train/algorithm/ckpt-2.index").is_file()


def test_commands_find_the_run_and_write_where_they_were_started(
    started_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Any, *arguments: str) -> None:
        monkeypatch.chdir(started_in)
        assert run_here(command.main, "--root_dir=run", *arguments) == 0
        assert _is_elsewhere(started_in)

    run(train, "--gin_file=ppo_cart_pole", *(f"--gin_param={setting}" for setting in SETTINGS))
    run(evaluate, "--num_episodes=1", "--output=result.json")
    run(evaluate, "--num_episodes=1", "--checkpoint=run/train/algorithm/ckpt-1")
    run(play, "--num_episodes=1", "--record_file=video.gif", "--sleep_time_per_step=0")
    run(record, "--num_episodes=2", "--epsilon_greedy=1", "--output=episodes.npz")
    run(estimate, "--dataset=episodes.npz", "--output=estimate.json")
    run(export, "--export_dir=model")
    written = {path.name for path in started_in.iterdir()}
    assert written == {"run", "result.json", "video.gif", "episodes.npz", "estimate.json", "model"}


def test_a_run_of_a_script_reads_from_where_it_began(started_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_trainer("ppo_cart_pole", "runs/one", SETTINGS).train()
    monkeypatch.chdir(started_in)
    for source in ("runs/one", "runs/one:final", "runs/one/train/algorithm/ckpt-2"):
        begun = make_trainer("ppo_cart_pole", "runs/two", [*SETTINGS, f"TrainerConfig.initialize_from = '{source}'"])
        with begun:
            begun.initialize()
        assert _is_elsewhere(started_in)
        monkeypatch.chdir(started_in)


def test_commands_read_from_where_they_were_started(started_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Any, root_dir: str, *arguments: str) -> None:
        monkeypatch.chdir(started_in)
        assert run_here(command.main, f"--root_dir={root_dir}", *arguments) == 0
        assert _is_elsewhere(started_in)

    def given(*settings: str) -> list[str]:
        return [f"--gin_param={setting}" for setting in (*SETTINGS, *settings)]

    run(train, "run", "--gin_file=ppo_cart_pole", *given())
    run(train, "next", "--gin_file=ppo_cart_pole", "--initialize_from=run:final", *given())
    run(record, "run", "--num_episodes=2", "--epsilon_greedy=1", "--output=cart_pole.npz")
    batch = "TrainerConfig.mini_batch_size = 4"
    run(train, "cloned", "--gin_file=bc_cart_pole", *given(batch, "TrainerConfig.evaluate = False"))
    run(evaluate, "cloned", "--num_episodes=1")
    run(train, "offline", "--gin_file=offline_dqn_cart_pole", *given(batch, "TrainerConfig.unroll_length = 0"))
    (started_in / "kept").symlink_to(started_in / "run/train/algorithm")
    run(evaluate, "run", "--num_episodes=1", "--checkpoint=kept")
    run(play, "run", "--num_episodes=1", "--checkpoint=kept", "--record_file=video.gif", "--sleep_time_per_step=0")


def test_weights_of_behaviors_are_read_from_where_a_command_was_started(
    started_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trainer("ppo_cart_pole", "runs/one", SETTINGS).train()
    monkeypatch.chdir(started_in)
    found = []

    def body() -> None:
        os.chdir(started_in.parent / "data")
        for text in ("a=runs/one", "a=b@runs/one:final,c=runs/one/train/algorithm/ckpt-2"):
            found.extend(origins(text, ["a", "c"]))

    assert command_line.run(body) == 0
    assert [(one.target, one.behavior) for one in found] == [("a", None), ("a", "b"), ("c", None)]
    assert {one.path for one in found} == {str(started_in / "runs/one/train/algorithm/ckpt-2")}
