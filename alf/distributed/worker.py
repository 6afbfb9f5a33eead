"""A rollout worker: a driver in another process, whose segments the learner fetches by numbered requests."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from alf.distributed.engine import resolve
from alf.distributed.run_marks import RunMarks
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.pumping import WireSegment
from alf.drivers.queues import QueueEmpty

# A segment as it crosses: the number of its thread within the worker, and its arrays.
Plain = tuple[int, list[np.ndarray]]

# How long a worker waits for a segment before it looks whether it is to end.
_WAIT_SECS = 0.25


class RolloutWorker:
    """Collects in its process and answers the learner's requests.

    `begin`, `take` and `collect` are called one at a time; `load`, `beat` and `end` at any time beside them.

    Requests are numbered from 0. The answers to the last ones are kept: asked for the same number again the worker gives
    the same answer, so that nothing is lost or doubled with an answer that got lost on its way. An empty answer is none:
    the same number is to be asked again.
    """

    def __init__(
        self, number: int, life: int, maker: str, settings: dict[str, Any], requests_in_flight: int = 2
    ) -> None:
        """Creates a worker that has not begun.

        Args:
          number: of the worker, from 0.
          life: how many workers of this number came before.
          maker: "module:function" that makes the driver, called as `maker(number=number, life=life, **settings)`; it draws
            other random numbers for each worker and each life.
          settings: further arguments of the maker.
          requests_in_flight: how many answers are kept.
        """
        self._number, self._life = number, life
        self._maker, self._settings = maker, settings
        self._kept = requests_in_flight
        self._marks = RunMarks()
        self._driver: AsyncOffPolicyDriver | None = None
        self._having = threading.Lock()
        self._loading = threading.Lock()
        self._taking = threading.Lock()
        self._answers: dict[int, list[Plain]] = {}
        self._next = 0
        self._version = -1
        self._steps = self._segments = 0

    def _name(self) -> str:
        return f"Worker {self._number} (life {self._life})"

    # ---- life ----

    def begin(self, version: int, at_random: bool, weights: list[np.ndarray]) -> dict[str, Any]:
        """Makes the driver and lets it collect; called again it only answers.

        Args:
          version: of the first weights.
          at_random: whether to act at random.
          weights: values of the acting variables, in their order.

        Returns:
          `threads`, environment threads of this worker; `pid`; `host`.
        """
        with self._taking:
            if self._driver is None:
                driver = resolve(self._maker)(number=self._number, life=self._life, **self._settings)
                try:
                    driver.load(version, weights, at_random)
                    driver.start()
                    self._version = version
                    self._keep(driver)
                except BaseException:
                    with contextlib.suppress(Exception):
                        driver.stop()
                    raise
            self._marks.signal_ready()
            return {**place(), "threads": self._begun().timings().threads}

    def _keep(self, driver: AsyncOffPolicyDriver) -> None:
        with self._having:
            if self._marks.finished is not None:
                raise RuntimeError(f"{self._name()} was ended while it began.")
            self._driver = driver

    def _begun(self) -> AsyncOffPolicyDriver:
        if self._driver is None:
            raise RuntimeError(f"{self._name()} has not begun: call begin() first.")
        return self._driver

    def end(self) -> None:
        """Ends the driver; any number of times."""
        self._marks.signal_finished("the learner has ended it")
        with self._having:
            driver = self._driver
        if driver is None:
            return
        try:
            driver.stop()
        except Exception as e:
            # Whoever asks for segments hears of it; there may be nobody any more.
            logging.warning("%s ended with %s: %s", self._name(), type(e).__name__, e)

    def load(self, version: int, at_random: bool, weights: list[np.ndarray]) -> None:
        """Has segments that begin from now on act by these weights; older ones than the present are ignored.

        Args: as of `begin`.
        """
        with self._loading:
            if version >= self._version:
                self._begun().load(version, weights, at_random)
                self._version = version

    def beat(self) -> dict[str, Any]:
        """A sign of life: `pid`, `host`, `version`, `steps` and `segments` handed out, `timings`, `stats`."""
        driver = self._driver
        facts = {**place(), "version": self._version, "steps": self._steps, "segments": self._segments}
        if driver is not None:
            facts |= {"timings": dict(driver.timings()._asdict()), "stats": driver.stats()}
        return facts

    # ---- segments ----

    def take(self, number: int, most: int, timeout: float) -> list[Plain]:
        """Waits for a segment and takes those that are there by then, in the order of collecting.

        Args:
          number: of the request.
          most: takes no more than these.
          timeout: in seconds; without a segment by then the answer is empty. So it is while a request of a smaller number
            has no answer yet.

        Raises:
          TimeoutError: the learner has not let this worker begin.
          Exception: what has ended the driver.
        """
        if not self._taking.acquire(timeout=timeout):
            return []
        try:
            self._marks.wait_ready(timeout, self._name())
            return self._answer(number, lambda driver: _those_there(driver, most, timeout))
        finally:
            self._taking.release()

    def collect(self, number: int, count: int, version: int, at_random: bool, weights: list[np.ndarray]) -> list[Plain]:
        """The next batch of a driver of mode "sync", collected by these weights.

        Args:
          number: of the request.
          count: segments of the batch.
          version: of the weights.
          at_random: as of `begin`.
          weights: as of `begin`.

        Raises:
          Exception: what has ended the driver.
        """

        def collected(driver: AsyncOffPolicyDriver) -> list[WireSegment]:
            self.load(version, at_random, weights)
            driver.ask(count)
            return [self._patiently(driver) for _ in range(count)]

        with self._taking:
            return self._answer(number, collected)

    def _patiently(self, driver: AsyncOffPolicyDriver) -> WireSegment:
        while True:
            with contextlib.suppress(QueueEmpty):
                return driver.next_segment(_WAIT_SECS)

    def _answer(self, number: int, get: Callable[[AsyncOffPolicyDriver], list[WireSegment]]) -> list[Plain]:
        if number in self._answers:
            return self._answers[number]
        if number < self._next:
            raise ValueError(
                f"{self._name()} has forgotten its answer to request {number}: it keeps {self._kept}, and request "
                f"{self._next} is the next."
            )
        if number > self._next:
            return []
        segments = get(self._begun())
        if segments:
            self._answers[number] = [(s.thread, s.arrays) for s in segments]
            self._answers.pop(number - self._kept, None)
            self._next += 1
            self._segments += len(segments)
            # The first array of a segment is its step types [T, B].
            self._steps += sum(s.arrays[0].size for s in segments)
            return self._answers[number]
        return []


def _those_there(driver: AsyncOffPolicyDriver, most: int, timeout: float) -> list[WireSegment]:
    try:
        segments = [driver.next_segment(timeout)]
    except QueueEmpty:
        return []
    # What ends the driver is raised at the next request again, and must not take along what was collected before.
    with contextlib.suppress(Exception):
        while len(segments) < most:
            segments.append(driver.next_segment(0.0))
    return segments


def place() -> dict[str, Any]:
    """Where this process is: `pid` and `host`."""
    return {"pid": os.getpid(), "host": socket.gethostname()}
