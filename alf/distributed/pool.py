"""The learner's workers: starts them, brings them back when they are lost, and fetches what they collect."""

from __future__ import annotations

import time
from typing import Any

import gin
import numpy as np

from alf.distributed.batch_channel import BatchChannel
from alf.distributed.engine import Engine
from alf.distributed.experience_channel import ExperienceChannel
from alf.distributed.keeper import Limits, check_needs, check_positive, describe, totals
from alf.distributed.member import Member
from alf.distributed.policy_channel import PolicyChannel
from alf.distributed.remote_evaluator import RemoteEvaluator
from alf.distributed.rollout_keeper import RolloutKeeper
from alf.distributed.stream_channel import StreamChannel
from alf.drivers.pumping import WireSegment
from alf.drivers.queues import SegmentQueue
from alf.metrics.time_shares import Timings


@gin.configurable(module="alf")
class WorkerPool:
    """Rollout workers in other processes; a `SegmentSource` of an `AsyncOffPolicyDriver`.

    One thread of the pool calls the workers, and hears them also while the learner trains. A worker that is lost, silent
    or fails is killed and started again after a pause of 1 s, doubled up to 30 s. What it had not handed over is lost, and
    counted; its environments begin anew.

    Attributes:
      threads: W * N, environment threads of all workers.
      evaluator: the worker for evaluations; None without one.
    """

    def __init__(
        self,
        engine: Engine,
        num_workers: int,
        num_envs: int,
        maker: str,
        settings: dict[str, Any] | None = None,
        sync: bool = False,
        requests_in_flight: int = 2,
        heartbeat_timeout_secs: float = 30.0,
        start_timeout_secs: float = 120.0,
        num_cpus: float = 1.0,
        resources: dict[str, float] | None = None,
        max_failures: int = 3,
        evaluator: RemoteEvaluator | None = None,
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the workers; stopped with the pool.
          num_workers: W.
          num_envs: N, environment threads of each worker.
          maker: "module:function" that makes a worker's driver, see `RolloutWorker`.
          settings: arguments of the maker: numbers, strings, arrays, and lists, tuples and dicts of these.
          sync: whether batches are asked for one by one (`request_batch`), for a driver in mode "sync".
          requests_in_flight: to each worker, not in mode "sync"; more hide a slow network and make data older.
          heartbeat_timeout_secs: a worker that gives no sign of life for so long is lost.
          start_timeout_secs: a worker that takes longer to begin is lost; when none has begun by then the run ends.
          num_cpus: processors that are set aside for a worker.
          resources: further resources that a worker takes, by name; they choose machines.
          max_failures: a worker that fails as often in a row with the same error of its own code ends the run with it.
          evaluator: a worker for evaluations over the same engine, started and stopped with the pool.

        Raises:
          ValueError: a size or limit is not positive, or there are no such resources.
        """
        check_positive(
            self,
            num_workers=num_workers,
            num_envs=num_envs,
            requests_in_flight=requests_in_flight,
            heartbeat_timeout_secs=heartbeat_timeout_secs,
            start_timeout_secs=start_timeout_secs,
            max_failures=max_failures,
        )
        check_needs(self, num_cpus, resources)
        self.threads = num_workers * num_envs
        self._engine = engine
        self._num_envs = num_envs
        self._batches = BatchChannel(num_workers, num_envs) if sync else None
        self._channel: ExperienceChannel = self._batches or StreamChannel(num_workers, num_envs, requests_in_flight)
        self._policies = PolicyChannel()
        self._members = [Member(i, num_envs, time.monotonic()) for i in range(num_workers)]
        worker_settings = {"maker": maker, "settings": settings or {}, "requests_in_flight": requests_in_flight}
        limits = Limits(heartbeat_timeout_secs, start_timeout_secs, max_failures, num_cpus, resources or {})
        self._keeper = RolloutKeeper(
            engine, self._members, num_envs, self._channel, self._policies, worker_settings, limits
        )
        self.evaluator = evaluator

    # ---- the learner's side ----

    def start(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        """Starts the workers and returns at once; arguments as of `publish`.

        Raises:
          RuntimeError: the pool was started or stopped before.
        """
        self._policies.publish(version, weights, at_random)
        self._keeper.start()
        if self.evaluator is not None:
            self.evaluator.start()

    def publish(self, version: int, weights: list[np.ndarray], at_random: bool) -> None:
        """Has workers act by newer weights as soon as they can; returns at once.

        Args:
          version: not below the one before.
          weights: values of the acting variables, in their order; they must not be changed any more.
          at_random: whether to act at random.

        Raises:
          ValueError: the version is older.
        """
        self._policies.publish(version, weights, at_random)

    def request_batch(self, count: int) -> None:
        """Has the next `count` segments collected by the weights published last; only with `sync`.

        Raises:
          ValueError: the count is not a multiple of `threads`.
          RuntimeError: without `sync`.
        """
        if self._batches is None:
            raise RuntimeError("Only workers in mode 'sync' are asked for batches: these collect all the time.")
        self._batches.request(count, self._policies.latest())

    def fetch(self, timeout: float) -> WireSegment:
        """The next segment, its thread counted over all workers: worker w's thread i is w * N + i.

        Raises:
          QueueEmpty: none has come within `timeout` seconds.
          QueueClosed: the pool was stopped.
          Exception: what has ended the pool.
        """
        return self._channel.fetch(timeout)

    def purge(self) -> int:
        """Drops what is under way, as spent; see `ExperienceChannel.purge`."""
        return self._channel.purge()

    def subscribe(self, queue: SegmentQueue) -> None:
        """Has every fetched segment put into `queue` too; see `ExperienceChannel.subscribe`."""
        self._channel.subscribe(queue)

    def stop(self) -> None:
        """Ends all workers, and the engine, in bounded time; any number of times, from any thread."""
        self._channel.close()
        self._keeper.stop()
        if self.evaluator is not None:
            self.evaluator.stop()
        self._engine.stop()

    # ---- telling ----

    def stats(self) -> dict[str, float]:
        """Scalars for displays: workers alive and lost, steps and their rate, what was lost and dropped."""
        channel = self._channel
        return {
            **totals(self._members),
            "fetched_segments": float(channel.fetched.sum()),
            "lost_requests": float(channel.lost_requests.sum()),
            **{name: float(count) for name, count in channel.counts.items()},
            **({} if self.evaluator is None else self.evaluator.stats()),
        }

    def facts(self) -> list[dict[str, Any]]:
        """What displays show of each worker, the one for evaluations last; made for JSON."""
        now, channel = time.monotonic(), self._channel
        rows = [
            {
                **member.facts(now),
                "segments": int(channel.fetched[member.number]),
                "lost_requests": int(channel.lost_requests[member.number]),
            }
            for member in self._members
        ]
        return rows if self.evaluator is None else [*rows, self.evaluator.facts()]

    def timings(self) -> Timings:
        """What the time of all environment threads went to, as of the workers' last signs of life."""
        all_of_them = [member.timings for member in self._members]
        return Timings(
            environment=sum(t.environment for t in all_of_them),
            inference=sum(t.inference for t in all_of_them),
            waiting_for_learner=sum(t.waiting_for_learner for t in all_of_them),
            threads=self.threads,
        )

    def describe(self) -> str:
        """Who collects, without a full stop."""
        how = "batches on request" if self._batches is not None else "segments as they come"
        return (
            f"{len(self._members)} workers of {self._num_envs} environment threads each, {how}, on "
            f"{self._engine.describe()}"
        )

    def who_is_waited_for(self) -> str:
        """Where each worker stands."""
        return describe(self._members)
