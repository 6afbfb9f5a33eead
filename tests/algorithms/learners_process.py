"""One learner against several on logical devices of the processor, which have to be set up before TensorFlow starts.

Prints, as one JSON object, for each case how far the variables, those of the optimisers too, are from the ones of a single
learner, how far that one has moved them, and what both report.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.networks.encoding_network import EncodingNetwork

from alf.algorithms.agent import Agent
from alf.algorithms.learners import Learners
from alf.data_structures import Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv, RNNPolicyUnittestEnv
from alf.trainers.config import TrainerConfig
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer
from tests.algorithms.networks import ppo, specs_of
from tests.algorithms.off_policy import adam, make
from tests.trainers.small_run import make_algorithm

DEVICES = 3


def all_variables(algorithm: Any) -> list[tf.Variable]:
    return [
        *algorithm.variables,
        *(v for optimizer, _ in algorithm.optimized_variables() for v in optimizer.variables()),
    ]


def apart(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(one, other, strict=True) if a.size)


def compare(algorithm: Any, train: Callable[[], Any], learners: int = 2, calls: int = 3) -> dict[str, Any]:
    algorithm.build_optimizers()
    variables = all_variables(algorithm)
    start = [v.numpy() for v in variables]
    weights = algorithm.trainable_variables
    begun = [v.numpy() for v in weights]
    trained, moved, metrics = [], [], []
    for count in (1, learners):
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        algorithm.set_learners(count)
        for _ in range(calls):
            train()
        trained.append([v.numpy() for v in variables])
        moved.append(apart(begun, [v.numpy() for v in weights]))
        metrics.append({k: float(v) for k, v in algorithm.last_train_metrics.items()})
    return {"moved": min(moved), "apart": apart(*trained), "metrics": metrics}


def of_segments(env_f: Callable[[int], Any], algorithm: Any, size: int | None, learners: int, length: int) -> Any:
    """PPO on one batch of 8 segments of 8 steps."""
    driver = AsyncOffPolicyDriver(
        [env_f(0), env_f(1)], algorithm, 0, 8, 2, mode="sync", random_seed=3, stepping="graph"
    )
    driver.start()
    try:
        driver.run_async()
    finally:
        driver.stop()
    return compare(algorithm, lambda: algorithm.train(2, size, length, clear_replay_buffer=False), learners)


def encoded(name: str, obs: Any, act: Any) -> Agent:
    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        return make(name, observation_spec, action_spec)

    encoder = EncodingNetwork(obs, fc_layer_params=(8,), activation_fn=tf.nn.tanh)
    return Agent(obs, act, inner, encoding_network=encoder, optimizer=adam(1e-2))


def in_loss() -> list[Any]:
    """Whether learners of an algorithm that runs all its networks in the loss share anything, and what is told."""
    told: list[str] = []
    algorithm = make("dqn", *specs_of(PolicyUnittestEnv(4, 5, seed=0)))
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("absl").addHandler(handler)
    algorithm.set_learners(2)
    logging.getLogger("absl").removeHandler(handler)
    return [algorithm._volatile.learners is not None, *told]


def of_samples(name: str) -> dict[str, Any]:
    """An algorithm that learns from samples of a memory, behind a network that encodes what it sees."""
    kind = ActionType.Discrete if name == "dqn" else ActionType.Continuous
    env = PolicyUnittestEnv(4, 5, action_type=kind, seed=0)
    algorithm = encoded(name, *specs_of(env))
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="uniform", random_seed=0)
    for _ in range(4):
        driver.run()
    return compare(algorithm, lambda: algorithm.train(4, 8, 2, whole_replay_buffer_training=False))


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as e:
        return str(e)
    return ""


def resumed(root_dir: str) -> list[list[int]]:
    """A run of two learners that one goes on with, and two again; the iterations that each began and ended at."""
    gin.bind_parameter("create_environment.num_parallel_environments", 4)
    gin.bind_parameter("AsyncOffPolicyDriver.num_actor_queues", 0)
    seen = []
    for learners, iterations in ((2, 2), (1, 3), (2, 4)):
        config = TrainerConfig(
            root_dir,
            AsyncOffPolicyTrainer,
            make_algorithm,
            random_seed=1,
            num_iterations=iterations,
            unroll_length=4,
            num_updates_per_train_step=2,
            mini_batch_length=1,
            mini_batch_size=8,
            num_learners=learners,
        )
        with config.create_trainer() as trainer:
            trainer.initialize()
            begun = int(trainer.algorithm.iterations)
            trainer.train()
            seen.append([begun, int(trainer.algorithm.iterations)])
    return seen


def main() -> None:
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    tf.keras.utils.set_random_seed(0)
    plain, recurrent = (
        (lambda seed: PolicyUnittestEnv(4, 5, seed=seed)),
        (lambda seed: RNNPolicyUnittestEnv(4, 6, seed=seed)),
    )
    with_memory = ppo(recurrent(0), rnn=True)
    with_memory.use_rollout_state = True
    found = {
        "too many": refused(lambda: ppo(plain(0)).set_learners(DEVICES + 1)),
        "too few": refused(lambda: Learners(DEVICES).run(lambda exp, state: (), Experience(tf.zeros([1, 2])), None)),
        "whole": of_segments(plain, ppo(plain(0)), None, 2, 1),
        # 64 sequences: a last minibatch of a single one, of which two of three learners get nothing.
        "ragged": of_segments(plain, ppo(plain(0)), 9, 3, 1),
        "recurrent": of_segments(recurrent, with_memory, 5, 2, 4),
        "dqn": of_samples("dqn"),
        "ddpg": of_samples("ddpg"),
        "in loss": in_loss(),
        "resumed": resumed(sys.argv[1]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
