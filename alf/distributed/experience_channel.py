"""Segments on their way from workers to the learner: which requests to send, and in which order answers arrive.

A channel calls nobody. The thread that calls the workers asks it what is `due`, and tells it what was `answered`; the
learner's side fetches. So it is the same over every engine.
"""

from __future__ import annotations

import abc
import collections
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from alf.distributed.policy_channel import Published
from alf.drivers.pumping import WireSegment
from alf.drivers.queues import QueueClosed, QueueEmpty, SegmentQueue

_COUNTS = ("cut_segments", "purged_segments", "repeated_answers", "malformed_answers")


class Request(NamedTuple):
    """What to ask a worker: `number` of the request, how many segments, acted under `policy` where it is given."""

    number: int
    segments: int
    policy: Published | None = None


class MalformedAnswer(ValueError):
    """An answer of a worker that is none."""


class Delivery(NamedTuple):
    """A segment that can be fetched; `fetched` is called when it was, or was dropped."""

    segment: WireSegment
    fetched: Callable[[], None] | None = None

    def done(self) -> None:
        """Says that the learner takes care of it."""
        if self.fetched is not None:
            self.fetched()


class ExperienceChannel(abc.ABC):
    """What channels have in common: the learner's side, and the counts.

    `fetch` and `subscribe` belong to one thread, `due` to `lost` to another; the rest may be called from any.

    Attributes:
      needs_loads: whether workers get newer weights beside the requests, which then have no policy.
      fetched: int64 [W], segments that the learner got, of each worker.
      lost_requests: int64 [W], requests that workers took with them when they were lost.
      counts: `cut_segments` that had arrived, but after others of their worker that never did; `purged_segments`;
        `repeated_answers`, which were dropped; `malformed_answers`.
    """

    needs_loads = True

    def __init__(self, workers: int, threads: int) -> None:
        """Creates an empty channel.

        Args:
          workers: W.
          threads: N, environment threads of each.
        """
        self._workers, self._threads = workers, threads
        self._changed = threading.Condition()
        self._ready: collections.deque[Delivery] = collections.deque()
        self._handing: tuple[Delivery, list[SegmentQueue]] | None = None
        self._subscribers: list[SegmentQueue] = []
        self._closed = False
        self._error: BaseException | None = None
        self.fetched = np.zeros(workers, np.int64)
        self.lost_requests = np.zeros(workers, np.int64)
        self.counts = dict.fromkeys(_COUNTS, 0)

    # ---- the workers' side ----

    @abc.abstractmethod
    def due(self, worker: int) -> list[Request]:
        """What to ask a worker now; it counts as asked from then on."""

    @abc.abstractmethod
    def unanswered(self, worker: int, number: int) -> None:
        """The answer to a request got lost, or was empty: it is due again."""

    @abc.abstractmethod
    def lost(self, worker: int) -> None:
        """A worker is gone with what it had; its next life begins with request 0."""

    @abc.abstractmethod
    def _arrived(self, worker: int, number: int, segments: list[WireSegment]) -> bool:
        """Takes in an answer; returns whether it was waited for."""

    def answered(self, worker: int, number: int, answer: Any) -> None:
        """Takes in what a worker has answered.

        Args:
          worker: its number.
          number: of the request.
          answer: list of (thread of the worker, arrays); an empty one is none.

        Raises:
          MalformedAnswer: it is not such a list.
        """
        with self._changed:
            try:
                segments = self._segments(worker, answer)
                if not segments:
                    self.unanswered(worker, number)
                elif not self._arrived(worker, number, segments):
                    self.counts["repeated_answers"] += 1
            except MalformedAnswer:
                self.counts["malformed_answers"] += 1
                raise
            self._changed.notify_all()

    def _segments(self, worker: int, answer: Any) -> list[WireSegment]:
        if not isinstance(answer, (list, tuple)) or not all(self._is_segment(x) for x in answer):
            raise MalformedAnswer(
                f"Worker {worker} has sent something else than segments of its {self._threads} environment threads: it "
                "runs another version of alf, or another configuration."
            )
        return [WireSegment(worker * self._threads + thread, list(arrays)) for thread, arrays in answer]

    def _is_segment(self, x: Any) -> bool:
        if not isinstance(x, (list, tuple)) or len(x) != 2 or not isinstance(x[1], (list, tuple)):
            return False
        thread, arrays = x
        return (
            isinstance(thread, int) and 0 <= thread < self._threads and all(isinstance(a, np.ndarray) for a in arrays)
        )

    # ---- the learner's side ----

    def fetch(self, timeout: float) -> WireSegment:
        """The next segment, its thread counted over all workers; every subscriber has got it before.

        Raises:
          QueueEmpty: none has come within `timeout` seconds, or a subscriber is full.
          QueueClosed: the channel was closed.
          Exception: what it was closed with.
        """
        deadline = time.monotonic() + timeout
        delivery, missing = self._next(timeout)
        while missing:
            try:
                missing[0].enqueue(delivery.segment, max(0.0, deadline - time.monotonic()))
            except QueueClosed:
                self._subscribers.remove(missing[0])
            except TimeoutError as e:
                raise QueueEmpty(f"The next segment waits for a subscriber: {e}") from None
            del missing[0]
        with self._changed:
            self._handing = None
            self.fetched[delivery.segment.thread // self._threads] += 1
            delivery.done()
        return delivery.segment

    def _next(self, timeout: float) -> tuple[Delivery, list[SegmentQueue]]:
        """The segment to hand out now, and the subscribers that have not got it yet."""
        with self._changed:
            if self._handing is None:
                self._changed.wait_for(lambda: self._closed or self._ready, timeout)
            if self._error is not None:
                raise self._error
            if self._closed:
                raise QueueClosed("experience channel")
            if self._handing is None:
                if not self._ready:
                    raise QueueEmpty(f"No segment has come within {timeout:g} s.")
                self._handing = self._ready.popleft(), list(self._subscribers)
            return self._handing

    def subscribe(self, queue: SegmentQueue) -> None:
        """Has every segment that is fetched from now on put into `queue` too.

        While it is full nobody gets further; when it is closed the subscription is over.
        """
        self._subscribers.append(queue)

    def purge(self) -> int:
        """Drops what is under way, as what was collected by weights that nobody learns from any more.

        Returns:
          the segments dropped now. Those that arrive later in answer to requests that are out are dropped then; all are
          counted in `purged_segments`.
        """
        with self._changed:
            dropped = len(self._ready)
            for delivery in self._ready:
                delivery.done()
            self._ready.clear()
            self.counts["purged_segments"] += dropped
            self._purge_requests()
            return dropped

    @abc.abstractmethod
    def _purge_requests(self) -> None:
        """Has the answers dropped that come to the requests which are out."""

    def close(self, error: BaseException | None = None) -> None:
        """Wakes the learner, with the first error that is given; any number of times.

        One that ran out of time comes as a RuntimeError: to the learner a TimeoutError says only that there is no segment
        yet.
        """
        if isinstance(error, TimeoutError):
            cause, error = error, RuntimeError(str(error))
            error.__cause__ = cause
        with self._changed:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()
