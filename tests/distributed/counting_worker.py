"""Workers of the counting environment, made by name in their process, and what a learner must see of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.testing import CountingEnvironment
from tests.drivers.counting import LENGTHS, TERMINATE, CountingAlgorithm, check_batches

MAKER = "tests.distributed.counting_worker:make_driver"

# The streams of a life are numbered from here on times its number: no two lives have a stream in common.
LIFE_STREAMS = 1000

# Keras does not bear being used by several threads at once.
_one_at_a_time = threading.Lock()


def make_driver(
    number: int,
    life: int,
    num_envs: int,
    batch_size: int,
    unroll_length: int,
    mode: str = "async",
    learn_queue_cap: int | None = None,
    seed: int = 7,
) -> AsyncOffPolicyDriver:
    """A worker's driver; its streams are those of its place among all workers and of its life."""
    first = life * LIFE_STREAMS + number * num_envs * batch_size
    envs = [CountingEnvironment(batch_size, first + i * batch_size, LENGTHS, TERMINATE) for i in range(num_envs)]
    with _one_at_a_time:
        return AsyncOffPolicyDriver(
            envs,
            CountingAlgorithm(envs[0]),
            num_actor_queues=0,
            unroll_length=unroll_length,
            learn_queue_cap=learn_queue_cap or num_envs,
            mode=mode,
            random_seed=int(np.random.SeedSequence(seed, spawn_key=(1 + number, life)).generate_state(1)[0]),
        )


def make_learner(workers: Any, batch_size: int, unroll_length: int, queue: int, **kwargs: Any) -> AsyncOffPolicyDriver:
    """The driver of a learner whose environment is not stepped."""
    envs = [CountingEnvironment(batch_size)]
    return AsyncOffPolicyDriver(
        envs,
        CountingAlgorithm(envs[0]),
        unroll_length=unroll_length,
        learn_queue_cap=queue,
        workers=workers,
        **kwargs,
    )


def learn(driver: AsyncOffPolicyDriver, batches: int, train: bool = True) -> list[Experience]:
    """Takes and trains; returns all batches that the algorithm has seen so far."""
    algorithm = driver.algorithm
    assert isinstance(algorithm, CountingAlgorithm)
    for _ in range(batches):
        driver.run_async()
        if train:
            algorithm.train()
    return algorithm.batches


def check_lives(batches: Sequence[Experience]) -> dict[tuple[int, int], int]:
    """Asserts that each life of each stream came from its first step on, whole and in order.

    Returns:
      the steps seen, by (env id, life).
    """
    lives: dict[int, int] = {}
    relabelled = []
    for batch in batches:
        streams = batch.observation.numpy()[..., 0].astype(np.int32)
        ids = batch.env_id.numpy()
        np.testing.assert_array_equal(streams % LIFE_STREAMS, ids, "env ids are not those of the global threads")
        for env_id, life in zip(ids[:, 0].ravel(), streams[:, 0].ravel() // LIFE_STREAMS, strict=True):
            assert life >= lives.get(int(env_id), 0), "a life goes on after the next has begun"
            lives[int(env_id)] = int(life)
        following = batch.bootstrap.time_step
        np.testing.assert_array_equal(following.env_id, ids[:, -1])
        bootstrap = batch.bootstrap._replace(time_step=following._replace(env_id=tf.constant(streams[:, -1])))
        relabelled.append(batch._replace(env_id=tf.constant(streams), bootstrap=bootstrap))
    steps = check_batches(relabelled, recurrent=True)
    return {(stream % LIFE_STREAMS, stream // LIFE_STREAMS): count for stream, count in steps.items()}
