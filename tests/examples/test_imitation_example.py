"""The example of imitation comes to what those whom it imitates do, without a step of its own."""

from __future__ import annotations

import pathlib

import gymnasium
import numpy as np

from alf.data_structures import StepType
from alf.replay.dataset import Steps, write_dataset
from alf.trainers.config import TrainerConfig
from alf.utils import gin_utils

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _record_a_rule(path: pathlib.Path, episodes: int) -> float:
    """Writes episodes in which the cart is always pushed to where the pole falls; returns the mean return."""
    env = gymnasium.make("CartPole-v1")
    rows: list[tuple[int, float, float, np.ndarray, int]] = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        rows.append((StepType.FIRST, 0.0, 1.0, observation, int(observation[2] + observation[3] > 0)))
        while rows[-1][0] != StepType.LAST:
            observation, reward, terminated, truncated, _ = env.step(rows[-1][-1])
            kind = StepType.LAST if terminated or truncated else StepType.MID
            action = int(observation[2] + observation[3] > 0)
            rows.append((kind, float(reward), float(not terminated), observation, action))
    env.close()
    steps = Steps(*(np.array(column) for column in zip(*rows, strict=True)))
    write_dataset(str(path), steps)
    return float(steps.reward.sum()) / episodes


def test_imitation_comes_to_the_return_of_the_recorded_episodes(tmp_path: pathlib.Path) -> None:
    recorded = _record_a_rule(tmp_path / "cart_pole.npz", 10)
    assert recorded > 450
    dataset = f"BcAlgorithm.dataset='{tmp_path}/cart_pole.npz'"
    small = ["TrainerConfig.num_eval_episodes=5", "TrainerConfig.eval_interval=10", "TrainerConfig.random_seed=1"]
    gin_utils.parse_gin([str(EXAMPLES / "bc_cart_pole.gin")], [dataset, *small, "TrainerConfig.strict=True"])
    with TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer() as trainer:
        trainer.train()
    assert trainer.last_evaluation is not None
    assert trainer.last_evaluation.average_return > 0.9 * recorded
    assert trainer.counters.env_steps == 0
