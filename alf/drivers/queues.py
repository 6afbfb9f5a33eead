"""The queues between environment threads, actor threads, the learner and the log thread.

Single steps cross a `NestFIFOQueue`, inside traced functions. Whole segments cross a `SegmentQueue`, which lives in
Python: a waiting learner then still gets signals (TensorFlow's queue operations do not return for SIGINT), the fill
level is exact, and a segment is handed over by reference instead of being copied.
"""

from __future__ import annotations

import collections
import numbers
import threading
import time
from typing import Any

import tensorflow as tf

from alf.data_structures import Nest
from alf.utils.common import add_outer_dims


class QueueClosed(Exception):
    """The queue was closed while, or before, somebody waited on it."""


class QueueEmpty(TimeoutError):
    """What was asked for did not come in time."""


class NestFIFOQueue:
    """TensorFlow's FIFOQueue for nests of tensors.

    After `close`, a waiting or later enqueue raises tf.errors.CancelledError, and a dequeue that cannot be served
    tf.errors.OutOfRangeError.
    """

    def __init__(self, capacity: int, sample_element: Nest, name: str = "nest_fifo") -> None:
        """Creates the queue.

        Args:
          capacity: how many elements it holds.
          sample_element: an element or its specs; gives structure, dtypes and static shapes.
          name: for messages.

        Raises:
          ValueError: the capacity is not positive.
        """
        if capacity < 1:
            raise ValueError(f"Queue {name} needs a capacity of at least 1, got {capacity}.")
        self._capacity = capacity
        self._structure = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), sample_element)
        flat = tf.nest.flatten(self._structure)
        self._dtypes = [s.dtype for s in flat]
        self._shapes = [s.shape for s in flat]
        self._queue = tf.queue.FIFOQueue(capacity, self._dtypes, self._shapes, name=name)

    @property
    def capacity(self) -> int:
        """How many elements the queue holds."""
        return self._capacity

    @property
    def handle(self) -> tf.Tensor:
        """The resource, to be passed to a traced function that serves several queues of one structure."""
        return self._queue.queue_ref

    def enqueue(self, vals: Nest, handle: tf.Tensor | None = None) -> Any:
        """Adds one element; waits while the queue is full."""
        tf.nest.assert_same_structure(vals, self._structure)
        flat = [tf.convert_to_tensor(v, d) for v, d in zip(tf.nest.flatten(vals), self._dtypes, strict=True)]
        for value, shape in zip(flat, self._shapes, strict=True):
            if not value.shape.is_compatible_with(shape):
                raise ValueError(f"An element of shape {value.shape} does not fit the queue's {shape}.")
        return tf.raw_ops.QueueEnqueueV2(handle=self.handle if handle is None else handle, components=flat)

    def dequeue(self, handle: tf.Tensor | None = None) -> Nest:
        """Takes one element; waits while the queue is empty."""
        flat = tf.raw_ops.QueueDequeueV2(handle=self.handle if handle is None else handle, component_types=self._dtypes)
        return self._pack(flat, [])

    def dequeue_many(self, n: int, handle: tf.Tensor | None = None) -> Nest:
        """Takes n elements, stacked on a new first axis; waits until there are n."""
        flat = tf.raw_ops.QueueDequeueManyV2(
            handle=self.handle if handle is None else handle, n=n, component_types=self._dtypes
        )
        return self._pack(flat, [n])

    def dequeue_all(self) -> Nest:
        """Takes `capacity` elements; waits until the queue is full."""
        return self.dequeue_many(self._capacity)

    def _pack(self, flat: list[tf.Tensor], outer: list[int]) -> Nest:
        shaped = [tf.ensure_shape(x, outer + s.as_list()) for x, s in zip(flat, self._shapes, strict=True)]
        return tf.nest.pack_sequence_as(self._structure, shaped)

    def size(self) -> int:
        """Elements stored now."""
        return int(self._queue.size())

    def close(self, cancel_pending_enqueues: bool = True) -> None:
        """Wakes everybody who waits; closing twice is fine."""
        self._queue.close(cancel_pending_enqueues)

    def is_closed(self) -> bool:
        """Whether the queue was closed."""
        return bool(self._queue.is_closed())


class SegmentQueue:
    """A bounded first-in first-out queue of Python objects, passed by reference.

    Counts what went in and out; `close` wakes every waiter, and what is stored then can still be taken.

    Attributes:
      name: for messages.
      entered: items that were ever put in.
      left: items that were ever taken.
      waited_secs: how long those who put items in have waited for room.
    """

    def __init__(self, capacity: int, name: str = "segments") -> None:
        if capacity < 1:
            raise ValueError(f"Queue {name} needs a capacity of at least 1, got {capacity}.")
        self.name = name
        self._capacity = capacity
        self._items: collections.deque[Any] = collections.deque()
        self._closed = False
        self._changed = threading.Condition()
        self.entered = 0
        self.left = 0
        self.waited_secs = 0.0

    @property
    def capacity(self) -> int:
        """How many items the queue holds."""
        return self._capacity

    def enqueue(self, item: Any, timeout: float | None = None) -> None:
        """Adds an item; waits while the queue is full.

        Raises:
          QueueClosed: it is closed.
          TimeoutError: there was no room within `timeout` seconds.
        """
        with self._changed:
            if len(self._items) >= self._capacity and not self._closed:
                begin = time.monotonic()
                ready = self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity, timeout)
                self.waited_secs += time.monotonic() - begin
                if not ready:
                    raise TimeoutError(f"Queue {self.name} is full ({self._capacity} items) after {timeout} s.")
            if self._closed:
                raise QueueClosed(self.name)
            self._items.append(item)
            self.entered += 1
            self._changed.notify_all()

    def dequeue_many(self, n: int, timeout: float | None = None) -> list[Any]:
        """Takes n items.

        Raises:
          QueueClosed: it is closed and holds fewer than n.
          QueueEmpty: n items did not come within `timeout` seconds; with 0 nobody waits.
        """
        if n > self._capacity:
            raise ValueError(f"Queue {self.name} holds {self._capacity} items: {n} at once will never be there.")
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or len(self._items) >= n, timeout):
                raise QueueEmpty(f"Queue {self.name} has {len(self._items)} of {n} items after {timeout} s.")
            if len(self._items) < n:
                raise QueueClosed(self.name)
            return self._take(n)

    def dequeue(self, timeout: float | None = None) -> Any:
        """Takes one item; raises as `dequeue_many`."""
        return self.dequeue_many(1, timeout)[0]

    def dequeue_all(self, timeout: float | None = None) -> list[Any]:
        """Takes `capacity` items; raises as `dequeue_many`."""
        return self.dequeue_many(self._capacity, timeout)

    def _take(self, n: int) -> list[Any]:
        items = [self._items.popleft() for _ in range(n)]
        self.left += n
        self._changed.notify_all()
        return items

    def size(self) -> int:
        """Items stored now."""
        return len(self._items)

    def is_empty(self) -> bool:
        """Whether nothing is stored now."""
        return not self._items

    def close(self) -> None:
        """Wakes everybody who waits; closing twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def is_closed(self) -> bool:
        """Whether the queue was closed."""
        return self._closed


class TFQueues:
    """All queues of an asynchronous driver.

    Attributes:
      learn_queue: SegmentQueue of capacity Q, from environment threads to the learner.
      log_queue: SegmentQueue, from the learner to the log thread.
      actor_queues: K NestFIFOQueues of capacity A; elements (time step [B, ...], policy state [B, ...], thread []).
      action_return_queues: N NestFIFOQueues of capacity 1; elements (PolicyStep [B, ...], version []). Empty when K = 0.
    """

    def __init__(
        self,
        num_envs: int,
        env_batch_size: int,
        learn_queue_cap: int,
        actor_queue_cap: int,
        time_step_spec: Nest,
        policy_step_spec: Nest,
        unroll_length: int,
        num_actor_queues: int = 1,
        policy_state_spec: Nest = (),
    ) -> None:
        """Creates the queues.

        Args:
          num_envs: N, environment threads.
          env_batch_size: B.
          learn_queue_cap: Q, segments in one learner batch.
          actor_queue_cap: A, requests in one forward pass.
          time_step_spec: specs of one transformed time step, without batch axis.
          policy_step_spec: specs of one PolicyStep, distributions as parameters, without batch axis.
          unroll_length: T.
          num_actor_queues: K, actor threads; 0 acts in the environment threads.
          policy_state_spec: specs of the recurrent state, without batch axis.

        Raises:
          ValueError: a size is not positive, or the actors would wait for more requests than there are environments.
        """
        check_sizes(num_envs, env_batch_size, learn_queue_cap, actor_queue_cap, unroll_length, num_actor_queues)
        batch = [env_batch_size]
        request = (
            add_outer_dims(time_step_spec, batch),
            add_outer_dims(policy_state_spec, batch),
            tf.TensorSpec([], tf.int32),
        )
        reply = (add_outer_dims(policy_step_spec, batch), tf.TensorSpec([], tf.int64))
        self.learn_queue = SegmentQueue(learn_queue_cap, "learn_queue")
        self.log_queue = SegmentQueue(max(num_envs, learn_queue_cap), "log_queue")
        self.actor_queues = [
            NestFIFOQueue(actor_queue_cap, request, f"actor_queue_{k}") for k in range(num_actor_queues)
        ]
        self.action_return_queues = [
            NestFIFOQueue(1, reply, f"action_return_queue_{i}") for i in range(num_envs if num_actor_queues else 0)
        ]

    def close_all(self) -> None:
        """Closes every queue but the log queue, which the log thread still drains."""
        self.learn_queue.close()
        for queue in [*self.actor_queues, *self.action_return_queues]:
            queue.close()


def check_sizes(
    num_envs: int,
    env_batch_size: int,
    learn_queue_cap: int,
    actor_queue_cap: int,
    unroll_length: int,
    num_actor_queues: int,
) -> None:
    """Raises ValueError with the numbers when the sizes of a driver cannot work."""
    sizes = {
        "num_envs": num_envs,
        "batch size of the environments": env_batch_size,
        "learn_queue_cap": learn_queue_cap,
        "actor_queue_cap": actor_queue_cap,
        "unroll_length": unroll_length,
    }
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}.")
    if num_actor_queues < 0:
        raise ValueError(
            f"num_actor_queues must be 0 (act in the environment threads) or more, got {num_actor_queues}."
        )
    if actor_queue_cap * num_actor_queues > num_envs:
        raise ValueError(
            f"Not enough environments: actor_queue_cap={actor_queue_cap} times num_actor_queues={num_actor_queues} is more "
            f"than num_envs={num_envs}, so an actor would wait for ever; lower the first two or raise num_envs."
        )
