"""What the training service costs: the bare driver in a loop, and the command line with everything on, in turns.

Both train CartPole-v1 with the same algorithm, sizes and seed. The bare loop calls `run_async` and `train`, nothing
else. The command line writes summaries, CSV and JSON lines, draws the live display on a (pseudo) terminal, saves a
checkpoint every ten seconds, and evaluates beside training.

    python -m benchmarks.service_overhead [--seconds 40] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import pathlib
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from alf.utils import gin_utils

from benchmarks import _machine

EXAMPLE = "async_ppo_cart_pole"
SIZES = (
    "TrainerConfig.num_env_steps=0",
    "TrainerConfig.num_iterations=1000000000",
    "TrainerConfig.num_envs=1",
    "create_environment.num_parallel_environments=256",
    "TrainerConfig.unroll_length=64",
    "TrainerConfig.mini_batch_size=2048",
    "TrainerConfig.random_seed=0",
)
SERVICE = (
    "TrainerConfig.checkpoint_save_secs=10",
    "TrainerConfig.evaluate=True",
    "TrainerConfig.evaluate_beside=True",
    "TrainerConfig.eval_interval=200",
    "TrainerConfig.num_eval_episodes=5",
)
# The first seconds are start-up, compilation and filling caches; the first checkpoint, after ten of them, also traces the
# exported model, once in a run.
WARM_UP = 15.0


def bare(seconds: float) -> dict[str, Any]:
    """Steps/s learned from by the driver alone, in this process."""
    from alf import _tf

    _tf.configure_threads()
    from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
    from alf.environments.utils import create_environment
    from alf.trainers.building import build_algorithm
    from alf.trainers.config import TrainerConfig
    import alf.trainers.configurables  # noqa: F401

    gin_utils.parse_gin([EXAMPLE], SIZES)
    config = TrainerConfig(root_dir="")
    envs = [create_environment(seed=i) for i in range(config.num_envs)]
    algorithm = build_algorithm(config, envs[0])
    driver = AsyncOffPolicyDriver(envs, algorithm, unroll_length=config.unroll_length, random_seed=0)
    driver.start()
    steps, begun = 0, time.monotonic()
    try:
        while (now := time.monotonic()) - begun < WARM_UP + seconds:
            if now - begun < WARM_UP:
                steps, since = 0, now
            steps += driver.run_async()
            algorithm.train(
                num_updates=config.num_updates_per_train_step,
                mini_batch_size=config.mini_batch_size,
                mini_batch_length=config.mini_batch_length,
            )
        rate = steps / (time.monotonic() - since)
    finally:
        driver.stop()
    return {"steps_per_s": rate}


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def service(seconds: float) -> dict[str, Any]:
    """Steps/s learned from by the command line, told by its own statistics."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "alf.bin.train", f"--gin_file={EXAMPLE}", f"--root_dir={folder}/run"]
        command += [f"--gin_param={param}" for param in (*SIZES, *SERVICE)]
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=_machine.ROOT)
        os.close(theirs)
        threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        stats = pathlib.Path(folder, "run", "train", "stats.csv")
        while not stats.exists() and process.poll() is None:
            time.sleep(0.2)
        time.sleep(WARM_UP + seconds)
        process.send_signal(2)
        process.wait(60)
        with stats.open(newline="") as file:
            rows = list(csv.DictReader(file))
        evaluations = pathlib.Path(folder, "run", "eval", "stats.csv")
        played = len(evaluations.read_text().splitlines()) - 1 if evaluations.exists() else 0
        saved = len(list(pathlib.Path(folder, "run", "train", "algorithm").glob("*.index")))
    points = [(float(r["seconds"]), float(r["env_steps"])) for r in rows]
    late = [p for p in points if p[0] - points[0][0] >= WARM_UP]
    rate = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    shares = {k: float(v) for k, v in rows[-2].items() if k.startswith("Time/") and v}
    return {"steps_per_s": rate, "checkpoints": saved, "evaluations": played, "summaries": len(rows), "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.bare:
        print(json.dumps(bare(flags.seconds)))
        return
    head = _machine.announce(
        "what the service costs: the bare driver and the command line with everything on, in turns"
    )
    command = [sys.executable, "-m", "benchmarks.service_overhead", "--bare", "--seconds", str(flags.seconds)]
    rows = []
    for i in range(flags.rounds):
        alone = _machine.last_json(command, flags.seconds + 120)
        with_all = service(flags.seconds)
        cost = 1.0 - with_all["steps_per_s"] / alone["steps_per_s"]
        rows.append({"round": i + 1, "bare": alone["steps_per_s"], "service": with_all["steps_per_s"], "cost": cost})
        rows[-1] |= {k: with_all[k] for k in ("checkpoints", "evaluations", "summaries", "shares")}
        _machine.progress(json.dumps(rows[-1]))
    # Either is as fast as the machine of the moment, so a round is judged by its own pair.
    rows.append(
        {"round": "median", **{k: statistics.median(row[k] for row in rows) for k in ("bare", "service", "cost")}}
    )
    shown = [{k: row[k] for k in ("round", "bare", "service", "cost")} for row in rows]
    _machine.save("service_overhead", head, shown, runs=rows)


if __name__ == "__main__":
    main()
