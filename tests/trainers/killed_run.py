"""Starts training runs, each in a process forked from this one, which has imported everything and started nothing.

Reads `{"root_dir": ..., "driver": "sync" | "lockstep", "iterations": n}` from standard input, a line for each run. Writes
`pid <n>` when one starts, `event` each time it begins an iteration or touches the disk, `exit <status>` when it ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import gin
import numpy as np

from alf.drivers import async_off_policy_driver as async_off_policy_driver
from alf.environments import utils as utils
from alf.trainers.config import TrainerConfig
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from tests.trainers.small_run import make_algorithm


def _tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _telling(function):
    def call(*args, **kwargs):
        _tell("event")
        return function(*args, **kwargs)

    return call


def train(root_dir: str, driver: str, iterations: int) -> None:
    """Trains to the end, or until somebody kills this process; the result goes to ROOT/result.npz."""
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    gin.bind_parameter("AsyncOffPolicyDriver.num_actor_queues", 0)
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    trainer = TrainerConfig(
        root_dir=root_dir,
        trainer=SyncOffPolicyTrainer if driver == "sync" else AsyncOffPolicyTrainer,
        algorithm_ctor=make_algorithm,
        random_seed=3,
        num_iterations=iterations,
        unroll_length=4,
        num_updates_per_train_step=1,
        mini_batch_size=4,
        checkpoint_interval=1,
        checkpoint_max_to_keep=2,
        export_saved_model=False,
        exact_resume=True,
    ).create_trainer()
    os.fsync, os.replace, os.remove = _telling(os.fsync), _telling(os.replace), _telling(os.remove)
    trainer._train_iter = _telling(trainer._train_iter)
    trainer.train()
    np.savez(os.path.join(root_dir, "result.npz"), *[v.numpy() for v in trainer.algorithm.variables])


def main() -> None:
    """Serves until standard input ends."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                train(**json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _tell(f"pid {child}")
        _tell(f"exit {os.waitpid(child, 0)[1]}")


if __name__ == "__main__":
    main()
