"""Runs in the peers' environment: Sample Factory's APPO on CartPole-v1 or EnvPool's Pong-v5; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
import torch


class Watch(AlgoObserver):
    """Notes the environment steps learned from over time, and when the last 100 episodes reached the target."""

    def __init__(self, seconds: float, target: float | None) -> None:
        self.seconds = seconds
        self.target = target
        self.marks: list[tuple[float, int]] = []
        self.solved_at: float | None = None
        self.mean_return: float | None = None

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        now = time.time()
        steps = sum(runner.env_steps.values())
        self.marks.append((now, steps))
        if "reward" in runner.policy_avg_stats:
            returns = runner.policy_avg_stats["reward"][0]
            self.mean_return = float(np.mean(returns)) if returns else None
            if self.target is not None and len(returns) >= 100 and self.mean_return >= self.target:
                self.solved_at = self.solved_at or now
        # The first two seconds of learning warm up.
        if self.solved_at or now - self.marks[0][0] > self.seconds + 2.0:
            runner.cfg.train_for_env_steps = 0


class VectorisedCartPole(gymnasium.Env):
    """Gymnasium's numpy-vectorised CartPole as the batched environment that Sample Factory takes EnvPool for."""

    def __init__(self, num_envs: int) -> None:
        self._env = CartPoleVectorEnv(num_envs=num_envs, max_episode_steps=500)
        self.num_agents = num_envs
        self.is_multiagent = True
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space

    def reset(self, *, seed=None, options=None):
        return self._env.reset(seed=seed)[0].copy(), [{}] * self.num_agents

    def step(self, action):
        obs, reward, terminated, truncated, _ = self._env.step(np.asarray(action))
        return obs.copy(), reward.astype(np.float32), terminated, truncated, [{}] * self.num_agents


class PooledPong(gymnasium.Env):
    """EnvPool's Pong as a batched environment, whose next episode begins in the step that ends the last."""

    def __init__(self, num_envs: int) -> None:
        import envpool

        self._env = envpool.make_gymnasium("Pong-v5", num_envs=num_envs, num_threads=1, reward_clip=True)
        self.num_agents = num_envs
        self.is_multiagent = True
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    def reset(self, *, seed=None, options=None):
        return self._env.reset()[0], [{}] * self.num_agents

    def step(self, action):
        obs, reward, terminated, truncated, _ = self._env.step(np.asarray(action))
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            obs[ended] = self._env.reset(ended)[0]
        return obs, reward, terminated, truncated, [{}] * self.num_agents


def make_env(full_env_name, cfg=None, env_config=None, render_mode=None):
    if full_env_name == "Pong-v5":
        return PooledPong(cfg.env_agents)
    if cfg is not None and cfg.batched_sampling:
        return VectorisedCartPole(cfg.env_agents)
    return gymnasium.make(full_env_name, render_mode=render_mode)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", choices=("CartPole-v1", "Pong-v5"), default="CartPole-v1")
    parser.add_argument("--setting", required=True, help="JSON: Sample Factory's own arguments")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--target", type=float)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    logging.disable(logging.INFO)
    register_env(flags.env, make_env)
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "env": flags.env,
            "experiment": "peer",
            "train_dir": folder,
            "device": "cpu",
            "seed": flags.seed,
            "stats_avg": 100,
            "save_every_sec": 10**6,
            "experiment_summaries_interval": 10**6,
            "train_for_env_steps": 10**10,
            **json.loads(flags.setting),
        }
        argv = []
        for key, value in arguments.items():
            argv += [f"--{key}", *map(str, value)] if isinstance(value, list) else [f"--{key}={value}"]
        sf_parser, _ = parse_sf_args(argv=argv)
        sf_parser.add_argument("--env_agents", type=int, default=1)
        _, runner = make_runner(parse_full_cfg(sf_parser, argv))
        watch = Watch(flags.seconds, flags.target)
        runner.register_observer(watch)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            runner.run()
    start = next((m for m in watch.marks if m[0] - watch.marks[0][0] >= 2.0), watch.marks[0])
    end = watch.marks[-1]
    result = {
        "steps_per_s": (end[1] - start[1]) / max(end[0] - start[0], 1e-9),
        "mean_return": watch.mean_return,
        "solved_at": watch.solved_at,
        "steps": end[1],
        "versions": {"torch": torch.__version__, "gymnasium": gymnasium.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
