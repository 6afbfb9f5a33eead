"""The three modes of the asynchronous driver: under which weights a segment acts, and in which order segments arrive.

`async`: every segment acts under the newest weights, and arrives when it is done.
`sync`: the segments of a batch start when the learner asks for that batch, under the weights of that moment (lag 0).
`lockstep`: they start one request earlier, so that collecting overlaps with learning and is exactly one version behind.

In `sync` and `lockstep` segments arrive in a fixed order: round 0 of threads 0..N-1, round 1, ... Batch k is the
segments [k*Q, (k+1)*Q) of that order. So a run follows from its seed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from alf.drivers.policy_store import PolicyStore, Snapshot
from alf.drivers.queues import QueueClosed

MODES = ("async", "lockstep", "sync")


class Turn(NamedTuple):
    """How a segment acts: under which weights, or `at_random`."""

    snapshot: Snapshot
    at_random: bool


class Pacer:
    """Gives environment threads their weights and their turn.

    Attributes:
      at_random: whether segments that are asked for, or in mode "async" begin, from now on act at random; set by the
        learner.
    """

    def __init__(self, mode: str, num_envs: int, learn_queue_cap: int, store: PolicyStore) -> None:
        self._mode = mode
        self._num_envs = num_envs
        self._learn_queue_cap = learn_queue_cap
        self._store = store
        self._changed = threading.Condition()
        self._granted: dict[int, Turn] = {}
        self.at_random = False
        self._requests = 0
        self._arrived = 0
        self._closed = False

    @property
    def paced(self) -> bool:
        """Whether order and weights are fixed (`sync`, `lockstep`)."""
        return self._mode != "async"

    def request_batch(self) -> None:
        """Says that the learner asks for its next batch; the weights published by now are those of the request."""
        if not self.paced:
            return
        with self._changed:
            request = self._requests
            turn = self._newest()
            ahead = 0 if self._mode == "sync" else 1
            if request == 0:
                self._granted[0] = turn
            self._granted[request + ahead] = turn
            self._granted.pop(request - 1, None)
            self._requests += 1
            self._changed.notify_all()

    def batch_of(self, thread: int, round_: int) -> int:
        """The batch that segment `round_` of thread `thread` belongs to."""
        return (round_ * self._num_envs + thread) // self._learn_queue_cap

    def _newest(self) -> Turn:
        return Turn(self._store.latest(), self.at_random)

    def turn_of(self, thread: int, round_: int) -> Turn:
        """How a segment acts; waits until it may start. Raises QueueClosed at a stop."""
        if not self.paced:
            return self._newest()
        batch = self.batch_of(thread, round_)
        with self._changed:
            self._wait(lambda: batch in self._granted)
            return self._granted[batch]

    def deliver(self, thread: int, round_: int, put: Callable[[], None]) -> None:
        """Calls `put` when it is this segment's turn to arrive. Raises QueueClosed at a stop."""
        if not self.paced:
            put()
            return
        turn = round_ * self._num_envs + thread
        with self._changed:
            self._wait(lambda: self._arrived == turn)
        put()
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._closed or ready())
        if self._closed:
            raise QueueClosed("pacer")

    def close(self) -> None:
        """Wakes everybody who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
