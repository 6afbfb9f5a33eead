"""The learner's workers that only step environments: it acts in them itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import gin

from alf.distributed.engine import Engine
from alf.distributed.environment_keeper import EnvironmentKeeper
from alf.distributed.keeper import Limits, check_needs, check_positive, describe, totals
from alf.distributed.member import Member
from alf.distributed.remote_environment import ReconnectingEnvironment
from alf.distributed.remote_evaluator import RemoteEvaluator
from alf.utils import gin_utils


@gin.configurable(module="alf")
class EnvironmentPool:
    """Workers that step environments for environment threads of this process; an `EnvironmentHost` of a driver.

    A worker that is lost, or silent, is killed and started again after a pause of 1 s, doubled up to 30 s. The open
    episodes of its environments are truncated, and they begin anew.

    Attributes:
      evaluator: the worker for evaluations; None without one.
    """

    def __init__(
        self,
        engine: Engine,
        num_workers: int,
        num_envs: int,
        maker: str,
        settings: dict[str, Any] | None = None,
        heartbeat_timeout_secs: float = 30.0,
        start_timeout_secs: float = 120.0,
        num_cpus: float = 1.0,
        resources: dict[str, float] | None = None,
        max_failures: int = 3,
    ) -> None:
        """Prepares; nothing is started.

        Args:
          engine: runs the workers; stopped with the pool.
          num_workers: W.
          num_envs: N, environments of each worker, of which it steps one at a time.
          maker: "module:function" that makes a worker's environments, see `EnvironmentWorker`.
          settings: arguments of the maker: numbers, strings, arrays, and lists, tuples and dicts of these.
          heartbeat_timeout_secs: a worker that gives no sign of life for so long is lost.
          start_timeout_secs: a worker that takes longer to begin is lost; when none has begun by then the run ends.
          num_cpus: processors that are set aside for a worker.
          resources: further resources that a worker takes, by name; they choose machines.
          max_failures: a worker that comes back and fails as often in a row to make its environments, with the same
            error, ends the run with it.

        Raises:
          ValueError: a size or limit is not positive, or there are no such resources.
        """
        check_positive(
            self,
            num_workers=num_workers,
            num_envs=num_envs,
            heartbeat_timeout_secs=heartbeat_timeout_secs,
            start_timeout_secs=start_timeout_secs,
            max_failures=max_failures,
        )
        check_needs(self, num_cpus, resources)
        self.evaluator: RemoteEvaluator | None = None
        self._engine = engine
        self._num_envs = num_envs
        self._members = [Member(i, num_envs, time.monotonic()) for i in range(num_workers)]
        worker_settings = {"maker": maker, "settings": settings or {}}
        limits = Limits(heartbeat_timeout_secs, start_timeout_secs, max_failures, num_cpus, resources or {})
        self._keeper = EnvironmentKeeper(engine, self._members, num_envs, worker_settings, limits)

    # ---- life ----

    def start(self) -> list[ReconnectingEnvironment]:
        """Starts the workers, and waits until one has begun.

        Returns:
          W * N environments: worker w's environment i is at w * N + i. The first use of one waits for its worker.

        Raises:
          RuntimeError: none has begun within `start_timeout_secs`, or the pool was started before.
          QueueClosed: the pool was stopped.
          Exception: what a worker cannot make its environments for.
        """
        self._keeper.start()
        layout = self._keeper.layout()
        # This process makes no such environments, and writes down by what configuration the run goes on.
        gin_utils.count_as_used(self._keeper.used_bindings)
        places = itertools.product(range(len(self._members)), range(self._num_envs))
        return [ReconnectingEnvironment(self._keeper, worker, i, layout) for worker, i in places]

    def start_evaluator(self, make: Callable[[Engine], RemoteEvaluator]) -> RemoteEvaluator:
        """Starts one more worker, for evaluations, over the same engine; stopped with the pool.

        Args:
          make: makes it.
        """
        self.evaluator = make(self._engine)
        self.evaluator.start()
        return self.evaluator

    def wake(self) -> None:
        """Ends all waiting for workers, for good."""
        self._keeper.wake()

    def stop(self) -> None:
        """Ends all workers, and the engine, in bounded time; any number of times, from any thread."""
        self._keeper.stop()
        if self.evaluator is not None:
            self.evaluator.stop()
        self._engine.stop()

    # ---- telling ----

    def stats(self) -> dict[str, float]:
        """Scalars for displays: workers alive and lost, steps and their rate, calls without an answer."""
        return {
            **totals(self._members),
            "lost_requests": float(self._keeper.lost_calls.sum()),
            **({} if self.evaluator is None else self.evaluator.stats()),
        }

    def facts(self) -> list[dict[str, Any]]:
        """What displays show of each worker, the one for evaluations last; made for JSON."""
        now, lost = time.monotonic(), self._keeper.lost_calls
        rows = [{**member.facts(now), "lost_requests": int(lost[member.number])} for member in self._members]
        return rows if self.evaluator is None else [*rows, self.evaluator.facts()]

    def describe(self) -> str:
        """Who steps the environments, without a full stop."""
        return (
            f"{len(self._members)} workers that step {self._num_envs} environments each, on {self._engine.describe()}"
        )

    def who_is_waited_for(self) -> str:
        """Where each worker stands."""
        return describe(self._members)
