"""Runs in the peers' environment: trains Stable-Baselines3 for some steps, evaluates it greedily; prints one JSON line."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time

import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
import torch

_ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}


class Episodes(BaseCallback):
    """Notes the return of every training episode, and after how many steps it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.ended.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def scheduled(value):
    """A number as it is; "linear 0.001" falls from 0.001 to 0 over the run."""
    if not isinstance(value, str):
        return value
    start = float(value.removeprefix("linear "))
    return lambda left: left * start


def make_model(setting, env, seed):
    """The model that `setting` describes; what it does not name stays at the library's default."""
    given = dict(setting)
    algorithm = getattr(stable_baselines3, given.pop("algorithm"))
    for name in ("learning_rate", "clip_range"):
        if name in given:
            given[name] = scheduled(given[name])
    policy = dict(given.pop("policy_kwargs", {}))
    if "activation_fn" in policy:
        policy["activation_fn"] = _ACTIVATIONS[policy["activation_fn"]]
    stddev = given.pop("action_noise", None)
    if stddev is not None:
        size = env.action_space.shape[-1]
        given["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, stddev))
    kind = "CnnPolicy" if len(env.observation_space.shape) == 3 else "MlpPolicy"
    return algorithm(kind, env, device="cpu", seed=seed, policy_kwargs=policy, **given)


def hasten(model):
    """The same arithmetic in half of the time: convolutions in the layout they are quickest in, on every processor."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_flush_denormal(True)
    model.policy.to(memory_format=torch.channels_last)
    for group in model.policy.optimizer.param_groups:
        group["fused"] = True


def make_env(name, n_envs, seed, atari, **wrapping):
    """`n_envs` environments; games with the standard preprocessing, of which `wrapping` changes something."""
    if not atari:
        return make_vec_env(name, n_envs=n_envs, seed=seed)
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env(name, n_envs=n_envs, seed=seed, wrapper_kwargs=wrapping), 4)


def evaluate(model, name, starts, atari):
    """Returns of whole episodes with the most likely actions, one from each seed; rewards as the environment gives them."""
    whole = {"clip_reward": False, "terminal_on_life_loss": False}
    env = make_env(name, 1, starts[0], atari, **whole)
    statistics = model.get_vec_normalize_env()
    if statistics is not None:
        env = VecNormalize(env, training=False, norm_reward=False)
        env.obs_rms = statistics.obs_rms
    returns = []
    for start in starts:
        env.seed(start)
        returns += evaluate_policy(model, env, 1, deterministic=True, return_episode_rewards=True)[0]
    return [float(r) for r in returns]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--setting", required=True, help="JSON: environment, n_envs, atari, normalize, algorithm, its arguments"
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--starts", type=int, nargs="+", required=True, help="seed of each episode of the evaluation")
    parser.add_argument("--seed", type=int, required=True)
    flags = parser.parse_args()
    setting = json.loads(flags.setting)
    torch.set_num_threads(1)
    name, n_envs = setting.pop("environment"), setting.pop("n_envs", 1)
    atari = setting.pop("atari", False)
    env = make_env(name, n_envs, flags.seed, atari)
    if setting.pop("normalize", False):
        env = VecNormalize(env, gamma=setting.get("gamma", 0.99))
    model, episodes = make_model(setting, env, flags.seed), Episodes()
    if atari:
        hasten(model)
    began = time.monotonic()
    model.learn(flags.steps, callback=episodes)
    result = {
        "steps": model.num_timesteps,
        "seconds": time.monotonic() - began,
        "episodes": episodes.ended,
        "returns": evaluate(model, name, flags.starts, atari),
        "versions": {n: importlib.metadata.version(n) for n in ("stable-baselines3", "torch", "gymnasium", "numpy")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
