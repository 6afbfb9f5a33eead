"""Workers over Ray: speed with learning on an emulated cluster of three nodes, lag, and what each part of the way costs.

Everything runs on this machine: nodes of the cluster are processes, and workers, learner and Ray share its processors.

    python -m benchmarks.workers [--seconds 10] [--workers 1 2 4]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import os
import time
from typing import Any

from alf.distributed.pool import WorkerPool
from alf.distributed.ray_engine import RayEngine
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.queues import QueueEmpty
import psutil
import tensorflow as tf

from benchmarks import _machine, _scale_model, _setup

T, B, Q = 64, 256, 4
# One pass over the data: it is collecting and the way to the learner that are measured.
ITERATION = {"num_updates": 1, "mini_batch_size": 64}
NODES = 3
LAG = 8


def make_driver(number: int, life: int) -> AsyncOffPolicyDriver:
    """The driver of a worker, or of a learner that collects for itself."""
    env = _setup.cart_pole(B, seed=1000 * number + life)
    return AsyncOffPolicyDriver([env], _setup.ppo(env), num_actor_queues=0, unroll_length=T, learn_queue_cap=1)


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """An emulated cluster that this process has joined."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(NODES - 1):
        made.add_node(**node)
    ray.init(made.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


@contextlib.contextmanager
def pool_of(workers: int) -> Iterator[WorkerPool]:
    """Workers on the cluster; ended afterwards, whoever started them."""
    pool = WorkerPool(RayEngine("auto"), workers, 1, "benchmarks.workers:make_driver")
    try:
        yield pool
    finally:
        pool.stop()


def with_learning(workers: int, seconds: float) -> dict[str, Any]:
    """Steps/s that a learner trains on, with lag, from so many workers, or from threads of its own with 0."""
    envs = [_setup.cart_pole(B, seed=i) for i in range(1 if workers else Q)]
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(pool_of(workers)) if workers else None
        driver = AsyncOffPolicyDriver(
            envs,
            _setup.ppo(envs[0]),
            num_actor_queues=0,
            unroll_length=T,
            learn_queue_cap=Q,
            max_policy_lag=LAG,
            workers=pool,
        )
        driver.start()
        stack.callback(driver.stop)
        while pool is not None and pool.stats()["workers_alive"] < workers:
            time.sleep(0.1)
        _learn(driver, 2.0)
        before = driver.lag_histogram().copy()
        steps_per_s = _learn(driver, seconds)
        lags = driver.lag_histogram() - before
        found = [lag for lag, count in enumerate(lags) if count]
        return {
            "workers": workers,
            "steps_per_s": steps_per_s,
            "lag_mean": float(sum(lag * lags[lag] for lag in found) / lags.sum()),
            "lag_max": found[-1],
            "dropped_steps": int(driver.stats()["dropped_steps"]),
        }


def _learn(driver: AsyncOffPolicyDriver, seconds: float) -> float:
    begin, steps = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        steps += driver.run_async()
        driver.algorithm.train(**ITERATION)
    return steps / (time.monotonic() - begin)


def costs(seconds: float) -> _scale_model.Costs:
    """What each part of the way costs, one after the other."""
    collect_secs, segment_bytes = _collecting(seconds)
    learn_secs, learn_processors, weights_bytes = _learning(seconds)
    sent = _sending(seconds)
    return _scale_model.Costs(
        steps=T * B,
        queue=Q,
        collect_secs=collect_secs,
        send_secs=max(0.0, sent["worker"] - collect_secs),
        unpack_secs=sent["learner"],
        learn_secs=learn_secs,
        learn_processors=learn_processors,
        segment_bytes=segment_bytes,
        weights_bytes=weights_bytes,
    )


def _collecting(seconds: float) -> tuple[float, int]:
    driver = make_driver(0, 0)
    driver.start()
    try:
        wire = driver.next_segment(60.0)
        for _ in range(20):
            driver.next_segment(60.0)
        begin, cpu, segments = time.monotonic(), time.process_time(), 0
        while time.monotonic() < begin + seconds:
            driver.next_segment(60.0)
            segments += 1
        return (time.process_time() - cpu) / segments, sum(x.nbytes for x in wire.arrays)
    finally:
        driver.stop()


def _learning(seconds: float) -> tuple[float, float, int]:
    env = _setup.cart_pole(B)
    algorithm = _setup.ppo(env)
    driver = AsyncOffPolicyDriver([env], algorithm, num_actor_queues=0, unroll_length=T, learn_queue_cap=Q)
    driver.start()
    exp, _ = driver.get_training_exps()
    weights = driver.weights()
    driver.stop()

    def learn() -> None:
        algorithm.observe(exp)
        algorithm.train(**ITERATION)
        [v.numpy() for v in algorithm.acting_variables()]

    for _ in range(10):
        learn()
    begin, cpu, batches = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begin + seconds:
        learn()
        batches += 1
    wall = time.monotonic() - begin
    return wall / batches, max(1.0, (time.process_time() - cpu) / wall), sum(x.nbytes for x in weights)


def _sending(seconds: float) -> dict[str, float]:
    """Processor seconds a segment, of the worker's process and of this one, when nothing is learned."""
    driver = make_driver(0, 0)
    with pool_of(1) as pool:
        pool.start(0, driver.weights(), False)
        driver.stop()
        for _ in range(20):
            _fetched(pool)
        worker = psutil.Process(pool.facts()[0]["pid"])
        begin, here, there, segments = time.monotonic(), time.process_time(), _cpu(worker), 0
        while time.monotonic() < begin + seconds:
            _fetched(pool)
            segments += 1
        return {"worker": (_cpu(worker) - there) / segments, "learner": (time.process_time() - here) / segments}


def _fetched(pool: WorkerPool) -> None:
    while True:
        with contextlib.suppress(QueueEmpty):
            for x in pool.fetch(1.0).arrays:
                tf.constant(x)
            return


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Prints and keeps the table, and the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    head = _machine.announce(f"workers over Ray, CartPole-v1, T={T}, B={B}, Q={Q}, {NODES} emulated nodes")
    rows = [with_learning(0, args.seconds)]
    with cluster():
        for workers in args.workers:
            _machine.progress(f"{workers} workers")
            rows.append(with_learning(workers, args.seconds))
        measured = dataclasses.asdict(costs(args.seconds))
    print(_machine.table([{"cost": name, "value": value} for name, value in measured.items()]))
    _machine.save("workers", head, rows, costs=measured)


if __name__ == "__main__":
    main()
