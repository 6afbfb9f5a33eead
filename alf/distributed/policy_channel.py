"""Weights on their way to workers: one shared object a version, the newest wins."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from alf.distributed.engine import Engine, Shared


class Published:
    """Weights that workers act by: values of the acting variables, or `at_random` with these beside.

    Attributes:
      version: grows with the learner's iterations.
      at_random: whether workers act at random.
      edition: how many were published before: of two of one version the later one counts.
    """

    def __init__(self, version: int, weights: list[np.ndarray], at_random: bool, edition: int) -> None:
        self.version, self.at_random, self.edition = version, at_random, edition
        self._weights = Shared(weights)

    def arguments(self, engine: Engine) -> tuple[Any, ...]:
        """Version, whether at random, and the weights; one thread."""
        return self.version, self.at_random, self._weights.ref(engine)


class PolicyChannel:
    """Says which worker is to get which weights: at most one load is under way to each, and the newest wins.

    `publish` may be called from any thread; the rest belongs to the thread that calls the workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Published | None = None
        self._held: dict[int, Published] = {}
        self._under_way: dict[int, Published] = {}

    def publish(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        """Makes weights the newest; returns at once.

        Raises:
          ValueError: `version` is older than the newest.
        """
        with self._lock:
            last = self._latest
            if last is not None and version < last.version:
                raise ValueError(
                    f"Version {version} is older than the published {last.version}: versions only grow within a run."
                )
            self._latest = Published(version, weights, at_random, 0 if last is None else last.edition + 1)

    def latest(self) -> Published:
        """The newest; RuntimeError before the first is published."""
        with self._lock:
            if self._latest is None:
                raise RuntimeError("No weights are published yet: call publish() first.")
            return self._latest

    def due(self, worker: int) -> Published | None:
        """What to send to a worker now; it counts as under way from then on. None when there is nothing to send."""
        newest, held = self.latest(), self._held.get(worker)
        if worker in self._under_way or (held is not None and held.edition >= newest.edition):
            return None
        self._under_way[worker] = newest
        return newest

    def arrived(self, worker: int) -> None:
        """What was under way to a worker has arrived."""
        self._held[worker] = self._under_way.pop(worker)

    def failed(self, worker: int) -> None:
        """What was under way to a worker may not have arrived."""
        self._under_way.pop(worker, None)

    def forget(self, worker: int) -> None:
        """The worker is gone: its next life holds nothing."""
        self._under_way.pop(worker, None)
        self._held.pop(worker, None)
