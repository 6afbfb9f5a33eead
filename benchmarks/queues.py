"""Microseconds of a put and a get through the driver's queues, beside TensorFlow's and Python's own.

python -m benchmarks.queues
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import queue
import threading
import time
from typing import Any

from alf.drivers.queues import NestFIFOQueue, SegmentQueue
import tensorflow as tf

from benchmarks import _machine

T, B = 64, 128


def segment() -> dict[str, tf.Tensor]:
    """What a small segment looks like: five tensors, [T, B, ...]."""
    return {
        "observation": tf.zeros([T, B, 4]),
        "action": tf.zeros([T, B], tf.int64),
        "reward": tf.zeros([T, B]),
        "discount": tf.zeros([T, B]),
        "step_type": tf.zeros([T, B], tf.int32),
    }


def step() -> dict[str, tf.Tensor]:
    """One step of it, [B, ...]."""
    return {name: value[0] for name, value in segment().items()}


def _pairs(put: Callable[[], Any], get: Callable[[], Any], count: int = 2000) -> float:
    """Microseconds of one put and one get in one thread."""
    for _ in range(20):
        put()
        get()
    begun = time.perf_counter()
    for _ in range(count):
        put()
        get()
    return 1e6 * (time.perf_counter() - begun) / count


def _between_threads(put: Callable[[], Any], get: Callable[[], Any], count: int = 2000) -> float:
    """Microseconds an item, when one thread puts and another gets."""
    producer = threading.Thread(target=lambda: [put() for _ in range(count)], daemon=True)
    begun = time.perf_counter()
    producer.start()
    for _ in range(count):
        get()
    producer.join()
    return 1e6 * (time.perf_counter() - begun) / count


def _in_graph(count: int = 2000) -> float:
    """Microseconds of a put and a get of one step inside a traced loop, as between actors and environments."""
    element = step()
    fifo = NestFIFOQueue(1, element)

    @tf.function(autograph=False)
    def loop() -> tf.Tensor:
        def body(i: tf.Tensor) -> tf.Tensor:
            put = fifo.enqueue(element)
            with tf.control_dependencies([put]):
                flat = tf.nest.flatten(fifo.dequeue())
            with tf.control_dependencies(flat):
                return i + 1

        return tf.while_loop(lambda i: i < count, body, [tf.constant(0)], parallel_iterations=1)[0]

    loop()
    begun = time.perf_counter()
    loop()
    return 1e6 * (time.perf_counter() - begun) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    head = _machine.announce("queues")
    item, one = segment(), step()
    mine, fifo, plain = SegmentQueue(2), NestFIFOQueue(2, item), queue.Queue(2)
    small = NestFIFOQueue(2, one)
    ways: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        (f"SegmentQueue, segment [{T}, {B}]", lambda: mine.enqueue(item), mine.dequeue),
        ("queue.Queue of Python, the same", lambda: plain.put(item), plain.get),
        ("NestFIFOQueue, eager, the same", lambda: fifo.enqueue(item), fifo.dequeue),
        (f"NestFIFOQueue, eager, step [{B}]", lambda: small.enqueue(one), small.dequeue),
    ]
    rows = [
        {"queue": name, "one thread, us": _pairs(put, get), "two threads, us": _between_threads(put, get)}
        for name, put, get in ways
    ]
    rows.append({"queue": f"NestFIFOQueue in a traced loop, step [{B}]", "one thread, us": _in_graph()})
    _machine.save("queues", head, rows)


if __name__ == "__main__":
    main()
