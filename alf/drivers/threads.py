"""The threads of the asynchronous driver. Each ends when the coordinator asks, or takes the others down with its error."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context
from tf_agents.trajectories import trajectory

from alf.drivers.acting import Server
from alf.drivers.base import waited_until
from alf.drivers.collector import Collector
from alf.drivers.coordinator import Coordinator
from alf.drivers.pacing import Pacer
from alf.drivers.queues import QueueClosed, SegmentQueue, TFQueues
from alf.drivers.unroll import Segment, StopUnroll, Unroller
from alf.utils.exits import not_an_exit

# What a thread runs into when the driver stops while it waits or steps.
_STOPPED = (QueueClosed, StopUnroll, tf.errors.CancelledError, tf.errors.OutOfRangeError)
_POLL_SECS = 0.05


class DriverThread(threading.Thread):
    """A thread whose first error stops all threads of the driver."""

    def __init__(self, name: str, coord: Coordinator, works_on: str) -> None:
        # A thread stuck in an environment must not keep the interpreter from ending; stop() joins all others.
        super().__init__(name=name, daemon=True)
        self._works_on = works_on
        self._coord = coord
        self._device = context.context().device_name

    @property
    def works_on(self) -> str:
        """Whose code it runs that may hang, for messages."""
        return self._works_on

    @property
    def busy_secs(self) -> float:
        """How long what it works on has been running by now, as far as the process did; 0 while it is not."""
        since = self._busy_since()
        return 0.0 if since is None else self._coord.awake.secs_since(since)

    def _busy_since(self) -> float | None:
        return None

    def run(self) -> None:
        """Works until the coordinator stops."""
        try:
            with tf.device(self._device):
                self._work()
        except BaseException as raised:  # whatever it is, the learner has to hear of it
            e = not_an_exit(raised, self.works_on.capitalize())
            if not self._coord.request_stop(e) and not isinstance(e, _STOPPED):
                logging.warning("%s failed while the driver was stopping: %s: %s", self.name, type(e).__name__, e)
        finally:
            self._leave()

    def _work(self) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        """Frees what the thread owns."""


class EnvThread(DriverThread):
    """Steps one batched environment and ships its segments to the learner."""

    def __init__(
        self,
        name: str,
        coord: Coordinator,
        collector: Collector,
        tf_queues: TFQueues,
        unrollers: Mapping[bool, Unroller],
        pacer: Pacer,
    ) -> None:
        """Creates the thread; the environment inside `collector` is its own from now on.

        Args:
          name: of the thread.
          coord: stops it.
          collector: of its environment.
          tf_queues: of the driver.
          unrollers: how to act by the policy, under False, and at random, under True once it is asked for.
          pacer: tells how each segment acts, and when it may start and arrive.
        """
        super().__init__(name, coord, f"environment {collector.thread}")
        self.collector = collector
        self._queue = tf_queues.learn_queue
        self._unrollers = unrollers
        self._pacer = pacer

    def _work(self) -> None:
        thread, round_ = self.collector.thread, 0
        while not self._coord.should_stop():
            asked = time.monotonic()
            turn = self._pacer.turn_of(thread, round_)
            begun = time.monotonic()
            segment = self.collector.collect(self._unrollers[turn.at_random], turn.snapshot)
            ready = time.monotonic()
            self._pacer.deliver(thread, round_, functools.partial(self._queue.enqueue, LogEntry(thread, segment)))
            self.collector.held_secs += begun - asked + time.monotonic() - ready
            round_ += 1

    @property
    def works_on(self) -> str:
        """See `DriverThread`."""
        return self.collector.works_on

    def _busy_since(self) -> float | None:
        since = self.collector.busy_since
        return None if since is None else max(since, waited_until(self.collector.env))

    def _leave(self) -> None:
        self.collector.close()


class ActorThread(DriverThread):
    """Answers the requests of one actor queue, A at a time."""

    def __init__(
        self,
        name: str,
        coord: Coordinator,
        server: Server,
        tf_queues: TFQueues,
        id: int,
        pacer: Pacer,
        unroll_length: int,
        seed: np.random.SeedSequence,
    ) -> None:
        super().__init__(name, coord, "acting")
        self._server = server
        self._handle = tf_queues.actor_queues[id].handle
        self._first_thread = id
        self._pacer = pacer
        self._unroll_length = unroll_length
        self._rng = np.random.default_rng(seed)

    def _work(self) -> None:
        forwards = 0
        while not self._coord.should_stop():
            requests = self._server.take(self._handle)
            # When paced, every forward pass serves one step of each of the actor's environments.
            snapshot = self._pacer.turn_of(self._first_thread, forwards // self._unroll_length).snapshot
            seed = tf.constant(self._rng.integers(0, 2**30, 2, dtype=np.int32))
            self._server.answer(requests, snapshot, seed)
            forwards += 1


class LogEntry(NamedTuple):
    """A segment on its way to metrics and observers."""

    thread: int
    segment: Segment


class LogThread(DriverThread):
    """Feeds metrics and observers with every segment that the learner took, in order per environment.

    Attributes:
      fed: segments that they have got.
    """

    def __init__(
        self,
        name: str,
        observers: Sequence[Callable[..., Any]],
        metrics: Sequence[Callable[..., Any]],
        coord: Coordinator,
        queue: SegmentQueue,
    ) -> None:
        """Creates the thread; metrics and observers are called as `m(trajectory [T, B, ...], env_thread_id)`."""
        super().__init__(name, coord, "an observer or metric")
        self._observers = list(observers)
        self._metrics = list(metrics)
        self._queue = queue
        self._feeding_since: float | None = None
        self.fed = 0

    @property
    def metrics(self) -> list[Any]:
        """The metrics that are fed."""
        return self._metrics

    def _work(self) -> None:
        while True:
            try:
                entry = self._queue.dequeue()
            except QueueClosed:
                return  # closed and drained
            self._feeding_since = time.monotonic()
            try:
                feed(self._metrics, self._observers, entry.segment, entry.thread)
            except Exception as e:
                # Draining after a stop goes on with the other segments; the error is told all the same.
                self._coord.request_stop(e)
                self._coord.keep(e)
            self._feeding_since = None
            self.fed += 1

    def drain(self, timeout_secs: float) -> None:
        """Waits for the end of the thread, unless an error ends the run or a segment takes longer than `timeout_secs`."""
        while self.is_alive() and self._coord.exception is None and self.busy_secs < timeout_secs:
            self.join(_POLL_SECS)

    def _busy_since(self) -> float | None:
        return self._feeding_since


def stall_of(threads: Iterable[DriverThread], timeout_secs: float) -> TimeoutError | None:
    """What ends a driver of which a thread has been busy with one thing for longer than allowed; None where none has."""
    for thread in threads:
        if (busy := thread.busy_secs) > timeout_secs:
            return TimeoutError(
                f"{thread.works_on} has not returned for {busy:.0f} s "
                f"(stall_timeout_secs={timeout_secs:g}): it hangs, or needs a longer limit."
            )
    return None


def feed(
    metrics: Sequence[Callable[..., Any]],
    observers: Sequence[Callable[..., Any]],
    segment: Segment,
    *args: Any,
) -> None:
    """Calls metrics and observers with the trajectory of a segment and `args`; metrics get no observations."""
    if metrics:
        numbers = trajectory_of(segment, with_data=False)
        for metric in metrics:
            metric(numbers, *args)
    if observers:
        full = trajectory_of(segment, with_data=True)
        for observer in observers:
            observer(full, *args)


def trajectory_of(segment: Segment, with_data: bool) -> trajectory.Trajectory:
    """The segment as a TF-Agents Trajectory [T, B, ...]: reward and discount are those that the action led to."""
    exp, outcome = segment.experience, segment.outcome.numpy()
    return trajectory.Trajectory(
        step_type=exp.step_type.numpy(),
        observation=exp.observation if with_data else (),
        action=exp.action if with_data else (),
        policy_info=exp.rollout_info if with_data else (),
        next_step_type=outcome[:, 0].astype(np.int32),
        reward=outcome[:, 1],
        discount=outcome[:, 2],
    )
