"""Segments in batches that are asked for one by one, in a fixed order: mode "sync"."""

from __future__ import annotations

import collections

from alf.distributed.experience_channel import Delivery, ExperienceChannel, MalformedAnswer, Request
from alf.distributed.policy_channel import Published
from alf.drivers.pumping import WireSegment


def check_batch(count: int, workers: int, threads: int) -> None:
    """Raises ValueError when `count` segments cannot be shared by W workers of N environment threads each."""
    if count < 1 or count % (workers * threads):
        raise ValueError(
            f"A batch of {count} segments cannot be shared by {workers} workers of {threads} environment threads each, so that "
            f"all collect the same: make AsyncOffPolicyDriver.learn_queue_cap a multiple of {workers * threads}."
        )


class _Batch:
    """One batch: `share` segments of each worker, acted under `policy`.

    Workers in `begun` have got the request in their present life; those in `asked` need not be asked now.
    """

    def __init__(self, share: int, policy: Published) -> None:
        self.share, self.policy = share, policy
        self.begun: set[int] = set()
        self.asked: set[int] = set()
        self.parts: dict[int, list[WireSegment]] = {}


class BatchChannel(ExperienceChannel):
    """Delivers a batch when all of it is there: round 0 of worker 0, threads 0..N-1, of worker 1, ..., then round 1.

    The part of a worker that is lost meanwhile is asked anew from its next life.
    """

    needs_loads = False

    def __init__(self, workers: int, threads: int) -> None:
        """Creates an empty channel.

        Args:
          workers: W.
          threads: N, environment threads of each.
        """
        super().__init__(workers, threads)
        self._batches: collections.deque[_Batch] = collections.deque()
        # Of the next request, in the life of each worker.
        self._numbers = [0] * workers

    def request(self, count: int, policy: Published) -> None:
        """Has the next `count` segments collected under a policy; batches are collected one after the other.

        Raises:
          ValueError: the count cannot be shared.
        """
        check_batch(count, self._workers, self._threads)
        with self._changed:
            self._batches.append(_Batch(count // self._workers, policy))

    def due(self, worker: int) -> list[Request]:
        """See `ExperienceChannel.due`."""
        with self._changed:
            if not self._batches or worker in self._batches[0].asked:
                return []
            batch = self._batches[0]
            batch.asked.add(worker)
            batch.begun.add(worker)
            return [Request(self._numbers[worker], batch.share, batch.policy)]

    def unanswered(self, worker: int, number: int) -> None:
        """See `ExperienceChannel.unanswered`."""
        with self._changed:
            if self._waits_for(worker, number):
                self._batches[0].asked.discard(worker)

    def _waits_for(self, worker: int, number: int) -> bool:
        batch = self._batches[0] if self._batches else None
        return batch is not None and worker not in batch.parts and number == self._numbers[worker]

    def _arrived(self, worker: int, number: int, segments: list[WireSegment]) -> bool:
        if not self._waits_for(worker, number):
            return False
        batch, threads = self._batches[0], self._threads
        first = worker * threads
        if [s.thread for s in segments] != [first + i % threads for i in range(batch.share)]:
            raise MalformedAnswer(
                f"Worker {worker} has sent {len(segments)} segments of threads {[s.thread - first for s in segments]} for its "
                f"part of a batch, which is {batch.share} segments of threads 0..{threads - 1} in turn: is its driver in mode "
                "'sync'?"
            )
        batch.parts[worker] = segments
        self._numbers[worker] += 1
        if len(batch.parts) == self._workers:
            self._batches.popleft()
            for begin in range(0, batch.share, threads):
                for w in range(self._workers):
                    self._ready.extend(Delivery(s) for s in batch.parts[w][begin : begin + threads])
        return True

    def lost(self, worker: int) -> None:
        """See `ExperienceChannel.lost`; a part that has arrived stays."""
        with self._changed:
            self._numbers[worker] = 0
            batch = self._batches[0] if self._batches else None
            if batch is not None and worker in batch.begun and worker not in batch.parts:
                batch.begun.discard(worker)
                batch.asked.discard(worker)
                self.lost_requests[worker] += 1

    def purge(self) -> int:
        """Drops nothing: the learner has asked for each of these segments, under its newest weights."""
        return 0

    def _purge_requests(self) -> None:
        """Nothing is out that was not asked for."""
