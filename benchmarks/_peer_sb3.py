"""Runs in the peers' environment: Stable-Baselines3 PPO on CartPole-v1; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv
import torch


class VectorisedCartPole(VecEnv):
    """Gymnasium's numpy-vectorised CartPole behind Stable-Baselines3's interface, with its episode records."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self._env = CartPoleVectorEnv(num_envs=num_envs, max_episode_steps=500)
        self._seed = seed
        self._returns = np.zeros(num_envs)
        super().__init__(num_envs, self._env.single_observation_space, self._env.single_action_space)

    def reset(self):
        return self._env.reset(seed=self._seed)[0].copy()

    def step_async(self, actions):
        self._actions = actions

    def step_wait(self):
        old_state = self._env.state
        obs, reward, terminated, truncated, _ = self._env.step(self._actions)
        done = terminated | truncated
        self._returns += reward
        infos = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i] = {
                "episode": {"r": float(self._returns[i]), "l": int(self._returns[i]), "t": 0.0},
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                # Gymnasium 0.29 keeps no last observation here; the state one step before stands in for it.
                "terminal_observation": old_state[:, i].astype(np.float32),
            }
        self._returns[done] = 0.0
        return obs.copy(), reward.astype(np.float32), done, infos

    def close(self):
        self._env.close()

    def get_attr(self, attr_name, indices=None):
        return [None] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class Watch(BaseCallback):
    """Notes when each iteration began, and ends the run when solved or when time is up."""

    def __init__(self, seconds: float, target: float | None) -> None:
        super().__init__()
        self.seconds = seconds
        self.target = target
        self.marks: list[tuple[float, int]] = []
        self.solved_at: float | None = None
        self.over = False

    def _on_rollout_start(self) -> None:
        now = time.time()
        self.marks.append((now, self.num_timesteps))
        # The first iteration warms up.
        if len(self.marks) > 1 and now - self.marks[1][0] > self.seconds:
            self.over = True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if self.target is not None and len(returns) == 100 and np.mean(returns) >= self.target:
            self.solved_at = time.time()
            self.over = True

    def _on_step(self) -> bool:
        return not self.over


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--setting", required=True, help="JSON: n_envs, threads, vectorised, PPO's own arguments")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--target", type=float)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    setting = json.loads(flags.setting)
    torch.set_num_threads(setting.pop("threads"))
    n_envs = setting.pop("n_envs")
    if setting.pop("vectorised", False):
        env: VecEnv = VectorisedCartPole(n_envs, flags.seed)
    else:
        env = make_vec_env("CartPole-v1", n_envs=n_envs, seed=flags.seed)
    net_arch = {"pi": [64, 64], "vf": [64, 64]}
    decay = setting.pop("decay_steps", None)
    if decay:
        rate = setting["learning_rate"]
        total = max(decay, 1)
        setting["learning_rate"] = lambda left: rate * max(left, 0.01)
    model = PPO("MlpPolicy", env, device="cpu", seed=flags.seed, policy_kwargs={"net_arch": net_arch}, **setting)
    watch = Watch(flags.seconds, flags.target)
    model.learn(total if decay else 10**9, callback=watch)
    (t1, s1), (t2, s2) = watch.marks[min(1, len(watch.marks) - 1)], watch.marks[-1]
    returns = [episode["r"] for episode in model.ep_info_buffer]
    result = {
        "steps_per_s": (s2 - s1) / max(t2 - t1, 1e-9),
        "mean_return": float(np.mean(returns)) if returns else None,
        "solved_at": watch.solved_at,
        "steps": s2,
        "versions": {"torch": torch.__version__, "gymnasium": gymnasium.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
