"""The Atari examples parse everywhere, and train where the games are installed."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest

from alf.bin.trained import make_environment
from alf.environments import create_environment
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
NAMES = ["ac_breakout", "trac_breakout", "off_policy_ac_breakout", "off_policy_ac_breakout_vtrace"]
SMALL = [
    "TrainerConfig.num_iterations=2",
    "TrainerConfig.num_steps_per_iter=16",
    "TrainerConfig.export_saved_model=False",
    "TrainerConfig.random_seed=1",
    "create_environment.num_parallel_environments=2",
    "DMAtariPreprocessing.noop_max=2",
    "CONV_LAYERS=((2, 8, 8), (2, 4, 4))",
    "FC_LAYERS=(8,)",
]
SMALL_RND = [
    "TrainerConfig.unroll_length=8",
    "RND_TARGET_FC_LAYERS=(8,)",
    "RND_PREDICTOR_FC_LAYERS=(8, 8)",
    "DMAtariPreprocessing.noop_max=0",
]


@pytest.mark.parametrize("name", NAMES)
def test_parses(name: str) -> None:
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], [])
    assert gin.query_parameter("create_environment.env_name") == "BreakoutNoFrameskip-v4"
    assert gin.query_parameter("create_environment.num_parallel_environments") == 64
    wrappers = [w.selector for w in gin.query_parameter("suite_gym.load.gym_env_wrappers")]
    assert wrappers == ["DMAtariPreprocessing", "FrameStack"]
    assert [w.selector for w in gin.query_parameter("suite_gym.load.env_wrappers")] == ["EpisodicLife"]
    assert gin.query_parameter("reward_clipping.minmax") == (-1.0, 1.0)


def test_the_hard_game_parses() -> None:
    gin_utils.parse_gin([str(EXAMPLES / "ppo_rnd_mrevenge.gin")], [])
    assert gin.query_parameter("suite_gym.load.env_wrappers") == ()
    assert gin.query_parameter("suite_gym.load.max_episode_steps") == 4500
    assert gin.query_parameter("Agent.intrinsic_reward_coef") == 1e-3
    assert gin.query_parameter("Agent.rl_algorithm_cls").selector == "PPOAlgorithm"


@pytest.mark.parametrize("name", [*NAMES, "ppo_rnd_mrevenge"])
def test_trains(name: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("ale_py", reason="ale-py (alf[atari]) is not installed")
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    small = ["TrainerConfig.strict=True", *SMALL, *(SMALL_RND if "rnd" in name else [])]
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], small)
    trainer = TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer()
    trainer.train()
    assert trainer.counters.iterations == 2
    assert trainer.counters.env_steps >= 32


@pytest.mark.parametrize(
    ("name", "small", "steps"),
    [
        ("async_ppo_pong", ["TrainerConfig.unroll_length=8", "TrainerConfig.mini_batch_size=8"], 2 * 16),
        ("dqn_pong", ["TrainerConfig.initial_collect_steps=40", "ReplayBuffer.max_length=32"], 5 * 8 + 2 * 8),
    ],
)
def test_pong_trains_with_envpool_from_bytes(name: str, small: list[str], steps: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("envpool", reason="EnvPool (alf[envpool]) is not installed")
    common = [b for b in SMALL if not b.startswith(("DMAtari", "CONV", "FC", "TrainerConfig.num_steps"))]
    common += ["TrainerConfig.strict=True", "suite_atari.load.noop_max=2"]
    gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], [*common, *small])
    trainer = TrainerConfig(root_dir=str(tmp_path / "run")).create_trainer()
    trainer.train()
    assert trainer.counters.env_steps == steps
    assert trainer.algorithm.experience_spec.observation.dtype.as_numpy_dtype == np.uint8
    frames = [row for row in (tmp_path / "run" / "train" / "stats.csv").read_text().splitlines() if "Frames" in row]
    assert len(frames) == 1  # The header.


def test_pictures_of_pong() -> None:
    pytest.importorskip("ale_py", reason="ale-py (alf[atari]) is not installed")
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    gin_utils.parse_gin([str(EXAMPLES / "async_ppo_pong.gin")], [])
    env = make_environment(0, pictures=True)
    assert env.reset().observation.shape == (1, 84, 84, 4)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (210, 160, 3)
    env.close()


def test_the_lines_of_old_files() -> None:
    """The bindings that files written for earlier versions of ALF have for games."""
    pytest.importorskip("ale_py", reason="ale-py (alf[atari]) is not installed")
    pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    gin.parse_config(
        [
            "import alf.environments.suite_gym",
            "import alf.environments.wrappers",
            "create_environment.env_name = 'MontezumaRevengeNoFrameskip-v0'",
            "create_environment.num_parallel_environments = 2",
            "create_environment.env_load_fn = @suite_gym.load",
            "suite_gym.load.gym_env_wrappers = (@DMAtariPreprocessing, @FrameStack)",
            "suite_gym.load.max_episode_steps = 3",
            "DMAtariPreprocessing.frame_skip = 4",
            "DMAtariPreprocessing.noop_max = 0",
            "FrameStack.stack_size = 4",
        ]
    )
    env = create_environment(seed=0)
    kinds = [env.reset().step_type.tolist()]
    kinds += [env.step([0, 0]).step_type.tolist() for _ in range(4)]
    # The limit counts decisions, not frames.
    assert kinds == [[0, 0], [1, 1], [1, 1], [2, 2], [0, 0]]
    assert env.observation_spec().shape == (84, 84, 4)
    env.close()
