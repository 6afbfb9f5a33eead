"""A model of a run with workers: what each part could do alone, and a simulation of all parts together.

A run with workers is a ring of queues: workers collect a segment, send it when the learner asks for it, the learner unpacks
it, and trains on Q of them. `limits` gives what each part could do alone; `simulate` plays all of them together, with
processors that are shared by whoever is busy on a machine, and a link into the learner's machine.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import heapq
import itertools
import statistics
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs of one setting.

    Attributes:
      steps: environment steps in a segment, T * B.
      queue: Q, segments in a batch of the learner.
      collect_secs: processor seconds of a worker for a segment.
      send_secs: processor seconds of a worker to hand a segment over.
      unpack_secs: processor seconds of the learner's process to take one in.
      learn_secs: seconds of the learner for a batch, weights published.
      learn_processors: how many processors it keeps busy meanwhile.
      segment_bytes: size of a segment.
      weights_bytes: size of the weights.
      link_bytes_per_sec: of the network into, and out of, the learner's machine.
      in_flight: k, requests that a worker has from the learner.
      sharing: what the processors of a machine are worth while several parts run there, as a share of what they are worth
        to parts that are measured one after the other; see `sharing`.
    """

    steps: int
    queue: int
    collect_secs: float
    send_secs: float
    unpack_secs: float
    learn_secs: float
    learn_processors: float = 1.0
    segment_bytes: int = 0
    weights_bytes: int = 0
    link_bytes_per_sec: float = 1.25e9
    in_flight: int = 2
    sharing: float = 1.0


def sharing(costs: Costs, steps_per_sec: float, processors: float) -> float:
    """What processors are worth to parts that share them, from a run without workers that keeps all of them busy.

    The run collects and learns in one process, with no Ray in it: the processor seconds that its parts took when they ran
    one after the other, over those that went by.

    Args:
      costs: of the parts.
      steps_per_sec: environment steps/s of that run.
      processors: of the machine.
    """
    batch_secs = costs.queue * costs.steps / steps_per_sec
    needed = costs.queue * costs.collect_secs + costs.learn_secs * costs.learn_processors
    return needed / (batch_secs * processors)


class Limits(NamedTuple):
    """Environment steps/s that one worker gives, and that each part of the learner's side can take."""

    worker: float
    learner: float
    unpacking: float
    link: float

    def workers(self) -> dict[str, float]:
        """How many workers saturate each part."""
        return {name: rate / self.worker for name, rate in self._asdict().items() if name != "worker"}


def limits(costs: Costs, nodes: int = 1) -> Limits:
    """What each part could do alone; weights go once a version to each of `nodes` machines, over the same link."""
    batch_bytes = costs.queue * costs.segment_bytes + nodes * costs.weights_bytes
    batch_steps = costs.queue * costs.steps
    return Limits(
        worker=costs.steps / (costs.collect_secs + costs.send_secs),
        learner=batch_steps / costs.learn_secs,
        unpacking=costs.steps / costs.unpack_secs,
        link=batch_steps * costs.link_bytes_per_sec / batch_bytes if batch_bytes else float("inf"),
    )


def store_bytes(costs: Costs, workers: int) -> int:
    """What the object stores of all machines hold at most: segments that are asked for, and two versions of the weights."""
    return workers * costs.in_flight * costs.segment_bytes + 2 * costs.weights_bytes


def segment_bytes(length: int, rows: int, observation_bytes: int, actions: int) -> int:
    """Size of a segment [T, B] of PPO with one of so many actions, feed-forward networks and a single agent.

    A step has its type, reward, discount, environment and value (4 bytes each), the action before and after it and the version
    of the weights (8 each), a logit for each action (4 each), what episode metrics need (12), and the observation.
    The step after the last has no result of acting but the observation, and a segment has its versions once more.
    """
    seen = 16 + 8 + observation_bytes
    step = seen + 4 + 8 + 8 + 4 * actions + 12
    return rows * (length * step + seen) + 8 * length


def store_workers(costs: Costs, capacity: float) -> float:
    """How many workers fill an object store of `capacity` bytes, that of the learner's machine."""
    return (capacity - 2 * costs.weights_bytes) / (costs.in_flight * costs.segment_bytes)


class Outcome(NamedTuple):
    """What a simulated run came to: steps/s, share of time that the learner trained, mean and largest lag in versions."""

    steps_per_sec: float
    learner_busy: float
    lag_mean: float
    lag_max: int


class _Job:
    """Work on a machine, which all jobs there share."""

    def __init__(self, work: float, width: float, then: Callable[[], None]) -> None:
        self.work, self.width, self.then = work, width, then


class _Machine:
    def __init__(self, processors: float, sharing: float) -> None:
        self.processors, self.sharing = processors, sharing
        self.jobs: list[_Job] = []

    def speed(self) -> float:
        """At which each job runs, as a share of what it would have alone."""
        wanted = sum(job.width for job in self.jobs)
        there = self.processors if len(self.jobs) < 2 else self.processors * self.sharing
        return 1.0 if wanted <= there else there / wanted


class _Run:
    """The simulated run; time advances from one finished job or transfer to the next."""

    def __init__(self, costs: Costs, workers: int, worker_nodes: list[int], processors: list[float]) -> None:
        self.costs = costs
        self.machines = [_Machine(p, costs.sharing) for p in processors]
        self.home = worker_nodes
        self.now = 0.0
        self.transfers: list[tuple[float, int, int, int]] = []
        self.link_free = 0.0
        self.number = itertools.count()
        self.version = 0
        self.learn_queue: list[int] = []
        self.arrived: list[tuple[int, int]] = []
        self.outbox: list[list[int]] = [[] for _ in range(workers)]
        self.asked = [costs.in_flight] * workers
        self.collecting = [False] * workers
        self.unpacking = self.learning = False
        self.batches = 0
        self.busy = 0.0
        self.lags: list[int] = []

    def run(self, seconds: float) -> Outcome:
        for worker in range(len(self.home)):
            self._collect(worker)
        while self.now < seconds:
            self._advance()
        steps = self.batches * self.costs.queue * self.costs.steps
        mean = statistics.fmean(self.lags) if self.lags else 0.0
        return Outcome(steps / self.now, self.busy / self.now, mean, max(self.lags, default=0))

    def _advance(self) -> None:
        ends = [(job.work / machine.speed(), machine, job) for machine in self.machines for job in machine.jobs]
        wait = min((end for end, _, _ in ends), default=float("inf"))
        if self.transfers:
            wait = min(wait, max(0.0, self.transfers[0][0] - self.now))
        for machine in self.machines:
            speed = machine.speed()
            for job in machine.jobs:
                job.work -= wait * speed
        self.busy += wait if self.learning else 0.0
        self.now += wait
        for machine in self.machines:
            done = [job for job in machine.jobs if job.work <= 1e-12]
            machine.jobs = [job for job in machine.jobs if job.work > 1e-12]
            for job in done:
                job.then()
        while self.transfers and self.transfers[0][0] <= self.now + 1e-12:
            _, _, worker, version = heapq.heappop(self.transfers)
            self.arrived.append((worker, version))
        self._unpack()

    def _begin(self, machine: int, work: float, then: Callable[[], None], width: float = 1.0) -> None:
        self.machines[machine].jobs.append(_Job(work, width, then))

    def _collect(self, worker: int) -> None:
        # A worker holds one finished segment for each request it may get, and goes on once one of them has left.
        if self.collecting[worker] or len(self.outbox[worker]) >= self.costs.in_flight:
            return
        self.collecting[worker] = True
        version = self.version

        def done() -> None:
            self.collecting[worker] = False
            self.outbox[worker].append(version)
            self._send(worker)
            self._collect(worker)

        self._begin(self.home[worker], self.costs.collect_secs + self.costs.send_secs, done)

    def _send(self, worker: int) -> None:
        while self.asked[worker] and self.outbox[worker]:
            self.asked[worker] -= 1
            version = self.outbox[worker].pop(0)
            begin = max(self.now, self.link_free)
            self.link_free = begin + self.costs.segment_bytes / self.costs.link_bytes_per_sec
            heapq.heappush(self.transfers, (self.link_free, next(self.number), worker, version))

    def _unpack(self) -> None:
        if self.unpacking or not self.arrived or len(self.learn_queue) >= self.costs.queue:
            return
        self.unpacking = True
        worker, version = self.arrived.pop(0)

        def done() -> None:
            self.unpacking = False
            self.learn_queue.append(version)
            self.asked[worker] += 1
            self._send(worker)
            self._collect(worker)
            self._learn()
            self._unpack()

        self._begin(0, self.costs.unpack_secs, done)

    def _learn(self) -> None:
        if self.learning or len(self.learn_queue) < self.costs.queue:
            return
        self.learning = True
        self.lags += [self.version - version for version in self.learn_queue]
        self.learn_queue.clear()

        def done() -> None:
            self.learning = False
            self.batches += 1
            self.version += 1
            weights = len(set(self.home) - {0}) * self.costs.weights_bytes / self.costs.link_bytes_per_sec
            self.link_free = max(self.now, self.link_free) + weights
            self._learn()
            self._unpack()

        self._begin(0, self.costs.learn_secs, done, self.costs.learn_processors)


def simulate(costs: Costs, workers: int, processors: float, machines: int = 0, seconds: float = 30.0) -> Outcome:
    """Plays a run of some simulated seconds.

    Args:
      costs: of its parts.
      workers: W.
      processors: of each machine.
      machines: that the workers are spread over, beside the learner's; 0 puts all of them on the learner's.
      seconds: how long.
    """
    home = [1 + worker % machines if machines else 0 for worker in range(workers)]
    return _Run(costs, workers, home, [processors] * (machines + 1)).run(seconds)
