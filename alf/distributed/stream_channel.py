"""Segments as they come, from a few requests that are in flight to each worker all the time: mode "async"."""

from __future__ import annotations

from collections.abc import Sequence

from alf.distributed.experience_channel import Delivery, ExperienceChannel, Request
from alf.drivers.pumping import WireSegment


class _Window:
    """The requests of one life: numbers below `first` have arrived, those from `sent` on were not sent yet."""

    def __init__(self) -> None:
        self.first = self.sent = 0
        # How many answers the learner has taken.
        self.taken = 0
        self.again: set[int] = set()
        self.arrived: dict[int, list[WireSegment]] = {}
        # Answers to requests below this number are spent.
        self.spent = 0

    def done(self) -> None:
        self.taken += 1


class StreamChannel(ExperienceChannel):
    """Segments as they come: each worker's in its order, from a few requests that are in flight to it all the time.

    A request counts as in flight until the learner has fetched what it brought. So a worker is held up when the learner
    is slow.
    """

    def __init__(self, workers: int, threads: int, requests_in_flight: int) -> None:
        """Creates an empty channel.

        Args:
          workers: W.
          threads: N, environment threads of each; an answer has at most as many segments.
          requests_in_flight: to each worker.

        Raises:
          ValueError: `requests_in_flight` is below 1.
        """
        if requests_in_flight < 1:
            raise ValueError(f"requests_in_flight must be at least 1, got {requests_in_flight}.")
        super().__init__(workers, threads)
        self._in_flight = requests_in_flight
        self._windows = [_Window() for _ in range(workers)]

    def due(self, worker: int) -> list[Request]:
        """See `ExperienceChannel.due`."""
        with self._changed:
            window = self._windows[worker]
            numbers = sorted(window.again)
            window.again.clear()
            while window.sent < window.taken + self._in_flight:
                numbers.append(window.sent)
                window.sent += 1
            return [Request(number, self._threads) for number in numbers]

    def unanswered(self, worker: int, number: int) -> None:
        """See `ExperienceChannel.unanswered`."""
        with self._changed:
            self._windows[worker].again.add(number)

    def _arrived(self, worker: int, number: int, segments: list[WireSegment]) -> bool:
        window = self._windows[worker]
        if number < window.first or number in window.arrived:
            return False
        window.again.discard(number)
        window.arrived[number] = segments
        while window.first in window.arrived:
            self._deliver(window, window.arrived.pop(window.first))
            window.first += 1
        return True

    def _deliver(self, window: _Window, segments: Sequence[WireSegment]) -> None:
        if window.first < window.spent:
            self.counts["purged_segments"] += len(segments)
            window.done()
            return
        last = len(segments) - 1
        self._ready.extend(Delivery(s, window.done if i == last else None) for i, s in enumerate(segments))

    def lost(self, worker: int) -> None:
        """See `ExperienceChannel.lost`; what has arrived without gaps is still delivered."""
        with self._changed:
            window = self._windows[worker]
            self.lost_requests[worker] += window.sent - window.first - len(window.arrived)
            self.counts["cut_segments"] += sum(len(x) for x in window.arrived.values())
            self._windows[worker] = _Window()

    def _purge_requests(self) -> None:
        for window in self._windows:
            window.spent = window.sent
