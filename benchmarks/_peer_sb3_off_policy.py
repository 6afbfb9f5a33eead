"""Runs in the peers' environment: an off-policy learner of Stable-Baselines3, or its replay memory; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time

from gymnasium import spaces
import numpy as np
import stable_baselines3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
import torch

WARM_UP = 500


class Watch(BaseCallback):
    """Notes at each environment step how many updates there were, and the wall and processor seconds until then."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[int, float, float]] = []

    def _on_step(self) -> bool:
        self.marks.append((self.model._n_updates, time.perf_counter(), time.process_time()))
        return True


def learn(setting: dict, steps: int, over: int, seed: int) -> dict:
    """Trains for `steps` environment steps; updates/s after the warm-up, and the mean return of the last episodes."""
    torch.set_num_threads(setting.pop("threads"))
    name, env = setting.pop("algorithm"), setting.pop("env")
    noise = setting.pop("noise", None)
    if noise:
        setting["action_noise"] = NormalActionNoise(np.zeros(1), noise * np.ones(1))
    model = getattr(stable_baselines3, name)("MlpPolicy", env, device="cpu", seed=seed, **setting)
    watch = Watch()
    model.learn(steps, callback=watch)
    first = next((m for m in watch.marks if m[0] >= WARM_UP), watch.marks[0])
    updates, wall, cpu = (b - a for a, b in zip(first, watch.marks[-1], strict=True))
    returns = [episode["r"] for episode in model.ep_info_buffer][-over:]
    return {
        "updates_per_s": updates / wall,
        "cpu_ms": 1e3 * cpu / updates,
        "processors_busy": cpu / wall,
        "mean_return": float(np.mean(returns)),
        "steps": steps,
    }


def replay(batch: int, rows: int, pictures: bool, seconds: float) -> dict:
    """Transitions stored and samples of `batch` transitions drawn, each per second; `rows` environments add at a time."""
    shape = (84, 84, 4) if pictures else (3,)
    space = spaces.Box(0, 255, shape, np.uint8) if pictures else spaces.Box(-1, 1, shape)
    buffer = ReplayBuffer(10_000, space, spaces.Box(-1, 1, (1,)), device="cpu", n_envs=rows)
    observation = np.ones((rows, *shape), space.dtype)
    step = (observation, observation, np.ones((rows, 1)), np.ones(rows), np.zeros(rows), [{}] * rows)
    rates = {}
    for what, act, size in (("stored", lambda: buffer.add(*step), rows), ("sampled", lambda: buffer.sample(batch), 1)):
        act()
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            act()
            count += size
        rates[what] = count / (time.perf_counter() - begun)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--setting", required=True, help="JSON: algorithm, env, threads, noise, its own arguments")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--over", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    setting = json.loads(flags.setting)
    if "batch" in setting:
        torch.set_num_threads(1)
        print(json.dumps(replay(**setting)))
        return
    print(json.dumps(learn(setting, flags.steps, flags.over, flags.seed)))


if __name__ == "__main__":
    main()
