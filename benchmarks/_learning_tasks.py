"""What `benchmarks.learning` compares: each task is an example of ours and a setting of Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass, field
import hashlib
import pathlib
import re
from typing import Any

from benchmarks import _machine

_EXAMPLES = _machine.ROOT / "examples"


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
      title: environment and algorithm, for people.
      steps: environment steps of a run; a system that collects in larger pieces takes up to one piece more.
      example: name of our gin file.
      peer: the other system's setting, see `_peer_sb3_learn`; None where it has no such algorithm.
      seeds: runs of each system that make the row complete.
      episodes: of a run's evaluation.
      params: bindings beside the example's.
      needs: packages that the peer's environment gets for this task.
    """

    title: str
    steps: int
    example: str
    peer: dict[str, Any] | None
    seeds: int = 5
    episodes: int = 50
    params: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())

    def settings(self, system: str) -> dict[str, Any]:
        """What a recorded run of "alf" or "sb3" must have been made with to count for this task."""
        if system == "sb3":
            return {"steps": self.steps, "evaluation": "same starts", **(self.peer or {})}
        return {
            "steps": self.steps,
            "example": self.example,
            "digest": digest(_EXAMPLES / f"{self.example}.gin"),
            "params": list(self.params),
        }


def digest(path: pathlib.Path) -> str:
    """A short name for what a gin file and those that it includes bind; comments do not count."""
    return hashlib.sha256("\n".join(_bindings(path)).encode()).hexdigest()[:12]


def _bindings(path: pathlib.Path) -> list[str]:
    found = []
    for line in path.read_text().splitlines():
        included = re.fullmatch(r"include '(.+)'", line)
        if included:
            found += _bindings(path.parent / included[1])
        elif line.strip() and not line.startswith("#"):
            found.append(line)
    return found


# The peers' settings are those that its authors publish in their zoo of tuned settings (RL Baselines3 Zoo), for this
# environment and algorithm; what a setting does not name is the library's default. The zoo's step counts are kept
# where they are small, and shortened to ours where they are not.
_TUNED_CRITIC = {"gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "action_noise": 0.1}
_TUNED_CRITIC |= {
    "gradient_steps": 1,
    "train_freq": 1,
    "learning_rate": 1e-3,
    "policy_kwargs": {"net_arch": [400, 300]},
}
_LARGE_RELU = {"log_std_init": -2, "ortho_init": False, "activation_fn": "relu"}
_LARGE_RELU |= {"net_arch": {"pi": [256, 256], "vf": [256, 256]}}
_BOX2D = ("box2d==2.3.10", "pygame==2.6.1")
_MUJOCO = ("mujoco==3.1.6", "imageio")
_ATARI = ("ale-py==0.10.1", "opencv-python-headless==4.11.0.86")

TASKS: dict[str, Task] = {
    "cart_pole_ppo": Task(
        title="CartPole-v1, PPO",
        steps=100_000,
        example="ppo_cart_pole",
        # The learning rate reaches 0 with the run: 49 iterations of 32 gradient steps.
        params=("PolynomialDecay.decay_steps=1568",),
        peer={"algorithm": "PPO", "environment": "CartPole-v1", "n_envs": 8, "n_steps": 32, "batch_size": 256}
        | {"gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
        | {"learning_rate": "linear 0.001", "clip_range": "linear 0.2"},
    ),
    "cart_pole_dqn": Task(
        title="CartPole-v1, DQN",
        steps=50_000,
        example="dqn_cart_pole",
        peer={"algorithm": "DQN", "environment": "CartPole-v1", "learning_rate": 2.3e-3, "batch_size": 64}
        | {"buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10}
        | {"train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04}
        | {"policy_kwargs": {"net_arch": [256, 256]}},
    ),
    "acrobot_ppo": Task(
        title="Acrobot-v1, PPO",
        steps=200_000,
        example="ppo_acrobot",
        peer={"algorithm": "PPO", "environment": "Acrobot-v1", "normalize": True, "n_envs": 16, "n_steps": 256}
        | {"gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    "pendulum_ppo": Task(
        title="Pendulum-v1, PPO",
        steps=100_000,
        example="ppo_pendulum",
        peer={"algorithm": "PPO", "environment": "Pendulum-v1", "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95}
        | {"gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2}
        | {"use_sde": True, "sde_sample_freq": 4},
    ),
    "pendulum_sac": Task(
        title="Pendulum-v1, SAC",
        steps=20_000,
        example="sac_pendulum",
        peer={"algorithm": "SAC", "environment": "Pendulum-v1", "learning_rate": 1e-3},
        # Pairs of runs differ by up to six either way, more than the systems do, and returns by 80 from start to start.
        seeds=20,
        episodes=300,
    ),
    "pendulum_td3": Task(
        title="Pendulum-v1, TD3",
        steps=20_000,
        example="td3_pendulum",
        # After a heat-up of 1,000 steps, whose like the peer counts too.
        params=("TrainerConfig.num_env_steps=19000",),
        peer={"algorithm": "TD3", "environment": "Pendulum-v1", **_TUNED_CRITIC},
    ),
    "pendulum_ddpg": Task(
        title="Pendulum-v1, DDPG",
        steps=20_000,
        example="ddpg_pendulum",
        peer={"algorithm": "DDPG", "environment": "Pendulum-v1", **_TUNED_CRITIC},
    ),
    "mountain_car_icm": Task(
        title="MountainCar-v0, actor-critic with ICM",
        steps=1_200_000,
        example="icm_mountain_car",
        peer=None,
    ),
    "lunar_lander_dqn": Task(
        title="LunarLander-v3, DQN",
        steps=100_000,
        example="dqn_lunar_lander",
        # Gymnasium 0.29, which the peers' environment has, calls the same dynamics v2.
        peer={"algorithm": "DQN", "environment": "LunarLander-v2", "learning_rate": 6.3e-4, "batch_size": 128}
        | {"buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99, "target_update_interval": 250}
        | {"train_freq": 4, "gradient_steps": -1, "exploration_fraction": 0.12, "exploration_final_eps": 0.1}
        | {"policy_kwargs": {"net_arch": [256, 256]}},
        needs=_BOX2D,
    ),
    "lunar_lander_ppo": Task(
        title="LunarLander-v3, PPO",
        steps=500_000,
        example="ppo_lunar_lander",
        peer={"algorithm": "PPO", "environment": "LunarLander-v2", "n_envs": 16, "n_steps": 1024, "batch_size": 64}
        | {"gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
        seeds=2,
        needs=_BOX2D,
    ),
    "half_cheetah_sac": Task(
        title="HalfCheetah-v4, SAC",
        steps=300_000,
        example="sac_half_cheetah",
        peer={"algorithm": "SAC", "environment": "HalfCheetah-v4", "learning_starts": 10_000},
        seeds=2,
        needs=_MUJOCO,
    ),
    "hopper_sac": Task(
        title="Hopper-v4, SAC",
        steps=300_000,
        example="sac_hopper",
        peer={"algorithm": "SAC", "environment": "Hopper-v4", "learning_starts": 10_000},
        seeds=2,
        needs=_MUJOCO,
    ),
    "half_cheetah_ppo": Task(
        title="HalfCheetah-v4, PPO",
        steps=300_000,
        example="ppo_half_cheetah",
        peer={"algorithm": "PPO", "environment": "HalfCheetah-v4", "normalize": True, "n_steps": 512, "batch_size": 64}
        | {"gamma": 0.98, "learning_rate": 2.0633e-05, "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20}
        | {"gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096, "policy_kwargs": _LARGE_RELU},
        seeds=2,
        needs=_MUJOCO,
    ),
    "hopper_ppo": Task(
        title="Hopper-v4, PPO",
        steps=300_000,
        example="ppo_hopper",
        peer={"algorithm": "PPO", "environment": "Hopper-v4", "normalize": True, "n_steps": 512, "batch_size": 32}
        | {"gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519, "clip_range": 0.2, "n_epochs": 5}
        | {"gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671, "policy_kwargs": _LARGE_RELU},
        seeds=2,
        needs=_MUJOCO,
    ),
    "pong_ppo": Task(
        title="Pong, PPO",
        steps=1_024_000,
        example="async_ppo_pong",
        # As with CartPole: 1,000 iterations of 16 gradient steps.
        params=("PolynomialDecay.decay_steps=16000",),
        peer={"algorithm": "PPO", "environment": "PongNoFrameskip-v4", "atari": True, "n_envs": 8, "n_steps": 128}
        | {"n_epochs": 4, "batch_size": 256, "learning_rate": "linear 0.00025", "clip_range": "linear 0.1"}
        | {"vf_coef": 0.5, "ent_coef": 0.01},
        seeds=2,
        needs=_ATARI,
    ),
}
