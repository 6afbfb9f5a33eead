"""Collecting in other processes: their segments enter the learn queue of this one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.drivers.coordinator import Coordinator
from alf.drivers.pacing import Pacer
from alf.drivers.policy_store import PolicyStore, Snapshot
from alf.drivers.pumping import SegmentSource, Unpacker
from alf.drivers.queues import QueueEmpty, SegmentQueue
from alf.drivers.threads import DriverThread
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.time_shares import Timings
from alf.utils.closing import close_all

# How long the pump waits for a segment before it looks whether the driver stops.
_POLL_SECS = 0.25


class PumpThread(DriverThread):
    """Brings the segments of a source into the learn queue, which holds it up when it is full."""

    def __init__(
        self, name: str, coord: Coordinator, source: SegmentSource, unpack: Unpacker, queue: SegmentQueue
    ) -> None:
        super().__init__(name, coord, "the workers")
        self._source = source
        self._unpack = unpack
        self._queue = queue

    def _work(self) -> None:
        while not self._coord.should_stop():
            with contextlib.suppress(QueueEmpty):
                self._queue.enqueue(self._unpack(self._source.fetch(_POLL_SECS)))


class RemoteCollection:
    """A pump beside the workers of a `SegmentSource`; a `Collection`."""

    def __init__(
        self,
        workers: SegmentSource,
        envs: Sequence[BatchedEnvironment],
        algorithm: OffPolicyAlgorithm,
        coord: Coordinator,
        store: PolicyStore,
        pacer: Pacer,
        queue: SegmentQueue,
        unroll_length: int,
    ) -> None:
        """Prepares; no worker is started.

        Args:
          workers: collect; they are stopped with the driver.
          envs: environments of this process, which are not stepped, only closed.
          algorithm: gives the structure of segments.
          coord: stops the pump.
          store: holds the weights that workers get.
          pacer: says whether they act at random, and whether batches are asked for one by one.
          queue: the learn queue, of capacity Q.
          unroll_length: T.
        """
        self._workers = workers
        self._envs = envs
        self._algorithm = algorithm
        self._coord = coord
        self._store = store
        self._pacer = pacer
        self._queue = queue
        self._unroll_length = unroll_length
        self._threads: list[DriverThread] = []

    def make_threads(self) -> list[DriverThread]:
        """See `Collection`; the workers begin."""
        unpack = Unpacker(self._algorithm, self._envs[0].batch_size, self._unroll_length)
        self._threads.append(PumpThread("alf-pump", self._coord, self._workers, unpack, self._queue))
        self._workers.start(*self._acting(self._store.latest()))
        return self._threads

    def _acting(self, snapshot: Snapshot) -> tuple[int, list[np.ndarray], bool]:
        return snapshot.version, [w.numpy() for w in snapshot.weights], self._pacer.at_random

    def published(self, snapshot: Snapshot) -> None:
        """See `Collection`."""
        self._workers.publish(*self._acting(snapshot))

    def act_at_random(self, at_random: bool) -> None:
        """See `Collection`."""
        self._pacer.at_random = at_random
        if self._threads:
            self.published(self._store.latest())

    def request_batch(self) -> None:
        """See `Collection`."""
        if self._pacer.paced:
            self._workers.request_batch(self._queue.capacity)

    def close(self) -> None:
        """See `Collection`."""
        self._workers.stop()
        close_all(env.close for env in self._envs)

    def stats(self) -> dict[str, float]:
        """Those of the workers."""
        return self._workers.stats()

    def timings(self) -> Timings:
        """See `Collection`."""
        return self._workers.timings()

    def who_is_busy(self) -> list[str]:
        """See `Collection`."""
        return [self._workers.who_is_waited_for()]

    def describe(self) -> str:
        """See `Collection`."""
        return self._workers.describe() + "."
