"""The examples that learn from recorded episodes alone come to a return, without a step of their own."""

from __future__ import annotations

import pathlib

import gymnasium
import numpy as np
import pytest

from alf.bin import evaluate, export, play, record, train
from alf.data_structures import StepType
from alf.replay.dataset import Steps, write_dataset
from alf.trainers.config import TrainerConfig
from alf.utils import gin_utils
from tests.bin.running import run_here

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _record_a_rule(path: pathlib.Path, episodes: int, random_share: float) -> float:
    """Writes episodes in which the cart is pushed to where the pole falls, or at random; returns the mean return."""
    env, draw = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    rows: list[tuple[int, float, float, np.ndarray, int]] = []

    def add(kind: int, reward: float, discount: float, observation: np.ndarray) -> None:
        action = draw.integers(2) if draw.random() < random_share else observation[2] + observation[3] > 0
        rows.append((kind, reward, discount, observation, int(action)))

    for seed in range(episodes):
        add(StepType.FIRST, 0.0, 1.0, env.reset(seed=seed)[0])
        while rows[-1][0] != StepType.LAST:
            observation, reward, terminated, truncated, _ = env.step(rows[-1][-1])
            kind = StepType.LAST if terminated or truncated else StepType.MID
            add(kind, float(reward), float(not terminated), observation)
    env.close()
    steps = Steps(*(np.array(column) for column in zip(*rows, strict=True)))
    write_dataset(str(path), steps)
    return float(steps.reward.sum()) / episodes


def _learned(example: str, tmp_path: pathlib.Path, settings: list[str]) -> float:
    """The mean return of the last evaluation of a run of an example."""
    common = ["num_eval_episodes=5", "random_seed=1", "strict=True", "export_saved_model=False"]
    bindings = [*(f"TrainerConfig.{setting}" for setting in common), *settings]
    gin_utils.parse_gin([str(EXAMPLES / f"{example}.gin")], bindings)
    with TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer() as trainer:
        trainer.train()
    assert trainer.counters.env_steps == 0
    assert trainer.last_evaluation is not None
    return float(trainer.last_evaluation.average_return)


def test_imitation_comes_to_the_return_of_the_recorded_episodes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cart_pole.npz"
    recorded = _record_a_rule(path, 10, 0.0)
    assert recorded > 450
    settings = [f"BcAlgorithm.dataset='{path}'", "TrainerConfig.eval_interval=10"]
    assert _learned("bc_cart_pole", tmp_path, settings) > 0.9 * recorded


def test_a_clone_is_played_where_its_dataset_is_not(tmp_path: pathlib.Path) -> None:
    """Nor is it in another directory, or on another machine."""
    path, root_dir = tmp_path / "cart_pole.npz", f"--root_dir={tmp_path / 'run'}"
    _record_a_rule(path, 1, 0.0)
    settings = [f"BcAlgorithm.dataset='{path}'", "TrainerConfig.num_iterations=1", "TrainerConfig.num_eval_episodes=1"]
    trains = [root_dir, *(f"--gin_param={setting}" for setting in settings)]
    assert run_here(train.main, "--gin_file=bc_cart_pole", *trains) == 0
    path.unlink()
    assert run_here(evaluate.main, root_dir, "--num_episodes=1") == 0
    assert run_here(play.main, root_dir, "--num_episodes=1", f"--record_file={tmp_path / 'clone.gif'}") == 0
    assert run_here(record.main, root_dir, "--num_episodes=1", f"--output={tmp_path / 'clone.npz'}") == 0
    assert run_here(export.main, root_dir, f"--export_dir={tmp_path / 'model'}") == 0
    assert run_here(train.main, *trains, "--gin_param=TrainerConfig.num_iterations=2") == 2


@pytest.mark.slow
def test_deep_q_learning_comes_to_twice_the_return_of_the_recorded_episodes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cart_pole.npz"
    recorded = _record_a_rule(path, 200, 0.5)
    assert recorded < 225
    settings = [f"TrainerConfig.load_memory_from_file_path='{path}'", "PolynomialDecay.decay_steps=3200"]
    settings += ["TrainerConfig.num_iterations=100", "TrainerConfig.eval_interval=100"]
    assert _learned("offline_dqn_cart_pole", tmp_path, settings) > 2 * recorded
