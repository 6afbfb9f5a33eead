"""CartPole-v1 beside the peers in one run: steps/s learned from, and seconds from process start until solved.

Same network (two 64x64 MLPs), same epochs (4) for the throughput rows, same machine, one after the other. Every peer
runs in several settings and is quoted in its best one. Solved means: the mean return of the last 100 training
episodes is at least 475.

    python -m benchmarks.peers_cart_pole            # all of it, about 20 minutes
    python -m benchmarks.peers_cart_pole --quick    # 5 s a row, one seed, two settings: only a check of the script
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
from typing import Any

from benchmarks import _events, _machine, _peer_env, examples

TARGET = 475.0
EXAMPLE = "async_ppo_cart_pole"
_HERE = pathlib.Path(__file__).resolve().parent

_SB3 = str(_HERE / "_peer_sb3.py")
_SF = str(_HERE / "_peer_sample_factory.py")

Setting = dict[str, Any]

_FOREVER = ["TrainerConfig.num_env_steps=1000000000", "TrainerConfig.num_iterations=0"]


def _large(envs: int, rows: int, minibatch: int) -> list[str]:
    return [
        *_FOREVER,
        f"TrainerConfig.num_envs={envs}",
        f"create_environment.num_parallel_environments={rows}",
        "TrainerConfig.unroll_length=64",
        f"TrainerConfig.mini_batch_size={minibatch}",
    ]


# The shipped example is tuned for seconds to solve; for steps per second, larger batches.
_OURS_SPEED = [_large(1, 512, 2048), _large(1, 256, 2048), _large(1, 256, 1024), _large(2, 256, 1024)]
_ONE_EPOCH = ["TrainerConfig.num_updates_per_train_step=1"]

_SB3_SPEED: list[Setting] = [
    {"n_envs": 32, "threads": 1, "n_steps": 32, "batch_size": 256, "n_epochs": 4},
    {"n_envs": 64, "threads": 1, "n_steps": 32, "batch_size": 2048, "n_epochs": 4},
    {"n_envs": 128, "threads": 2, "n_steps": 64, "batch_size": 1024, "n_epochs": 4},
    {"n_envs": 128, "threads": 2, "n_steps": 64, "batch_size": 8192, "n_epochs": 4},
    {"n_envs": 256, "threads": 2, "n_steps": 64, "batch_size": 16384, "n_epochs": 4},
]
_SB3_SPEED_VECTORISED: list[Setting] = [{**setting, "vectorised": True} for setting in _SB3_SPEED]
_DISCOUNTS: Setting = {"gae_lambda": 0.9, "gamma": 0.98}
_SB3_SOLVE: list[Setting] = [
    # The first is the setting that the peer's own zoo ships for this environment.
    {"n_envs": 8, "threads": 1, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "learning_rate": 1e-3}
    | {"decay_steps": 100_000, "gae_lambda": 0.8, "gamma": 0.98},
    {"n_envs": 16, "threads": 1, "n_steps": 64, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3, **_DISCOUNTS},
    {"n_envs": 32, "threads": 1, "n_steps": 32, "batch_size": 256, "n_epochs": 4, "learning_rate": 3e-3, **_DISCOUNTS},
    {"n_envs": 32, "threads": 1, "n_steps": 64, "batch_size": 512, "n_epochs": 8, "learning_rate": 2e-3, **_DISCOUNTS},
]
_SF_BASE: Setting = {
    "use_rnn": False,
    "recurrence": 1,
    "encoder_mlp_layers": [64, 64],
    "actor_critic_share_weights": False,
    "num_epochs": 4,
    "normalize_input": False,
    "policy_workers_per_policy": 1,
}
_SF_SPEED: list[Setting] = [
    {**_SF_BASE, "num_workers": 2, "num_envs_per_worker": 32, "rollout": 32, "batch_size": 2048},
    {**_SF_BASE, "num_workers": 2, "num_envs_per_worker": 64, "rollout": 32, "batch_size": 4096},
    {**_SF_BASE, "num_workers": 1, "num_envs_per_worker": 64, "rollout": 32, "batch_size": 2048, "worker_num_splits": 1}
    | {"serial_mode": True},
    {**_SF_BASE, "num_workers": 1, "num_envs_per_worker": 256, "rollout": 32, "batch_size": 8192}
    | {"serial_mode": True, "worker_num_splits": 1},
]
_SF_BATCHED: Setting = {**_SF_BASE, "batched_sampling": True, "worker_num_splits": 1, "num_envs_per_worker": 1}
_SF_SPEED_VECTORISED: list[Setting] = [
    {**_SF_BATCHED, "num_workers": 1, "env_agents": 256, "rollout": 32, "batch_size": 8192, "serial_mode": True},
    {**_SF_BATCHED, "num_workers": 1, "env_agents": 128, "rollout": 64, "batch_size": 8192},
    {**_SF_BATCHED, "num_workers": 2, "env_agents": 128, "rollout": 32, "batch_size": 8192},
    {**_SF_BATCHED, "num_workers": 2, "env_agents": 256, "rollout": 32, "batch_size": 16384},
]
_SF_SOLVE: list[Setting] = [
    {
        **setting,
        "learning_rate": rate,
        "gamma": 0.98,
        "reward_scale": 0.1,
        "num_batches_per_epoch": 4,
        "batch_size": 512,
    }
    for setting in (_SF_SPEED[0], _SF_SPEED[2])
    for rate in (1e-3, 3e-3)
]


def _peer(python: str, script: str, setting: Setting, seconds: float, seed: int, solve: bool) -> dict[str, Any]:
    """One run of a peer; a failed run is reported, not hidden."""
    command = [python, script, "--setting", json.dumps(setting), "--seconds", str(seconds), "--seed", str(seed)]
    if solve:
        command += ["--target", str(TARGET)]
    try:
        result = _machine.last_json(command, timeout=seconds + 120)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        _machine.progress(f"  failed: {error}")
        return {
            "setting": setting,
            "steps_per_s": 0.0,
            "mean_return": None,
            "solve_s": None,
            "failed": _machine.told(error),
        }
    solved = result["solved_at"]
    return {
        "setting": setting,
        "steps_per_s": result["steps_per_s"],
        "mean_return": result["mean_return"],
        "solve_s": None if solved is None else solved - result["started"],
    }


def _ours(params: list[str], seconds: float, seed: int) -> dict[str, Any]:
    """One run of our command line on the shipped example, stopped like Ctrl-C when the time is up."""
    done = examples.run(EXAMPLE, [f"TrainerConfig.random_seed={seed}", *params], seconds)
    returns = examples.returns(done["points"])
    solved = _events.reached(returns, TARGET)
    return {
        "setting": params,
        "steps_per_s": _events.steps_per_second(done["points"]["Driver/env_steps"]),
        "mean_return": max((p.value for p in returns), default=None),
        "solve_s": None if solved is None else solved - done["started"],
    }


def ours_speed(name: str, params: list[str], seconds: float, most: int = 99) -> dict[str, Any]:
    runs = []
    for setting in _OURS_SPEED[:most]:
        _machine.progress(f"{name}: {' '.join(setting[2:] + params)}")
        # The start-up comes before the first iteration; the events' wall times leave it out.
        runs.append(_ours([*setting, *params], seconds + 10, seed=0))
    best = max(runs, key=lambda run: run["steps_per_s"])
    return {"system": name, **best, "runs": runs}


def _best_speed(name: str, python: str, script: str, settings: list[Setting], seconds: float) -> dict[str, Any]:
    runs = []
    for setting in settings:
        _machine.progress(f"{name}: {json.dumps(setting)}")
        runs.append(_peer(python, script, setting, seconds, seed=0, solve=False))
    best = max(runs, key=lambda run: run["steps_per_s"])
    return {"system": name, **best, "runs": runs}


def _best_solve(
    name: str, python: str, script: str, settings: list[Setting], seeds: int, limit: float
) -> dict[str, Any]:
    """Tries every setting with one seed, then takes the fastest for all seeds."""
    tried = []
    for setting in settings:
        _machine.progress(f"{name}, to solve: {json.dumps(setting)}")
        tried.append(_peer(python, script, setting, limit, seed=0, solve=True))
    best = min(tried, key=lambda run: run["solve_s"] or float("inf"))
    runs = [best] + [_peer(python, script, best["setting"], limit, seed, solve=True) for seed in range(1, seeds)]
    return _solve_row(name, runs, tried)


def _solve_row(name: str, runs: list[dict[str, Any]], tried: list[dict[str, Any]]) -> dict[str, Any]:
    times = [run["solve_s"] for run in runs]
    return {
        "system": name,
        "median_s": _machine.median(times),
        "solved": f"{sum(t is not None for t in times)} of {len(times)}",
        "seconds": [None if t is None else round(t, 1) for t in times],
        "setting": runs[0]["setting"],
        "runs": runs,
        "tried": tried,
    }


def _speed_rows(python: str, seconds: float, most: int) -> list[dict[str, Any]]:
    one_epoch = [{**setting, "num_epochs": 1} for setting in _SF_SPEED]
    return [
        ours_speed("alf (async PPO)", [], seconds, most),
        ours_speed("alf (async PPO), 1 epoch", _ONE_EPOCH, seconds, most),
        _best_speed("Stable-Baselines3 PPO", python, _SB3, _SB3_SPEED[:most], seconds),
        _best_speed(
            "Stable-Baselines3, numpy-vectorised CartPole", python, _SB3, _SB3_SPEED_VECTORISED[:most], seconds
        ),
        _best_speed("Sample Factory APPO", python, _SF, _SF_SPEED[:most], seconds),
        _best_speed("Sample Factory APPO, 1 epoch", python, _SF, one_epoch[:most], seconds),
        _best_speed("Sample Factory, numpy-vectorised CartPole", python, _SF, _SF_SPEED_VECTORISED[:most], seconds),
    ]


def _solve_rows(python: str, seeds: int, limit: float, most: int) -> list[dict[str, Any]]:
    ours = [_ours([], limit, seed) for seed in range(seeds)]
    return [
        _solve_row("alf (async PPO)", ours, ours[:1]),
        _best_solve("Stable-Baselines3 PPO", python, _SB3, _SB3_SOLVE[:most], seeds, limit),
        _best_solve("Sample Factory APPO", python, _SF, _SF_SOLVE[:most], seeds, limit),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a check of the script, not a measurement")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a throughput run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers_python", help="use this interpreter for the peers instead of making an environment")
    flags = parser.parse_args()
    seconds, seeds, limit = (5.0, 1, 40.0) if flags.quick else (flags.seconds, flags.seeds, 120.0)
    most = 2 if flags.quick else 99
    head = _machine.announce("CartPole-v1 beside the peers")
    python = _peer_env.python(flags.peers_python)
    head["peer_versions"] = _peer_env.versions(python)
    speed = _speed_rows(python, seconds, most)
    print("\nEnvironment steps learned from, per second, 4 epochs:\n")
    print(_machine.table([{k: r[k] for k in ("system", "steps_per_s", "mean_return")} for r in speed]), flush=True)
    solve = _solve_rows(python, seeds, limit, most)
    print("\nSeconds from process start until the last 100 episodes average 475:\n")
    shown = [{k: r[k] for k in ("system", "median_s", "solved", "seconds")} for r in solve]
    name = "peers_cart_pole_quick" if flags.quick else "peers_cart_pole"
    _machine.save(name, head, shown, throughput=speed, time_to_solve=solve)


if __name__ == "__main__":
    main()
