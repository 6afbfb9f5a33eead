"""Collecting with environment and actor threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.drivers.acting import Server, queue_policy
from alf.drivers.base import restarts
from alf.drivers.collection import EnvironmentHost
from alf.drivers.collector import SLOW_STEP_SECS, Collector
from alf.drivers.coordinator import Coordinator
from alf.drivers.pacing import Pacer
from alf.drivers.policy_store import PolicyStore, Snapshot
from alf.drivers.queues import TFQueues
from alf.drivers.random_policy import random_policy
from alf.drivers.teaching import Teacher
from alf.drivers.threads import ActorThread, DriverThread, EnvThread
from alf.drivers.unroll import (
    Unroller,
    inline_call_spec,
    inline_decision,
    inline_policy,
    queue_call_spec,
    queue_decision,
)
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.time_shares import Timings


class LocalCollection:
    """N environment threads and K actor threads; a `Collection`."""

    def __init__(
        self,
        envs: Sequence[BatchedEnvironment],
        algorithm: OffPolicyAlgorithm,
        coord: Coordinator,
        store: PolicyStore,
        pacer: Pacer,
        queues: TFQueues,
        unroll_length: int,
        seeds: np.random.SeedSequence,
        stepping: str,
        host: EnvironmentHost | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """Prepares; nothing is traced, and no environment touched.

        Args:
          envs: N environments of batch size B, owned from now on.
          algorithm: acts.
          coord: stops the threads.
          store: holds the weights that act.
          pacer: says when a segment may start and arrive.
          queues: of the driver; environment thread i asks actor i mod K, or acts itself where K = 0.
          unroll_length: T.
          seeds: source of the seeds of environment threads, then of actors.
          stepping: see `Collector`.
          host: steps the environments in other processes; "auto" is "host" then: inside the graph the way there would
            hold a thread of TensorFlow's.
          teacher: gives the actions of all steps but random ones.
        """
        if host is not None:
            coord.on_stop(host.wake)
            stepping = "host" if stepping == "auto" else stepping
        self._envs = envs
        self._algorithm = algorithm
        self._coord = coord
        self._store = store
        self._pacer = pacer
        self._queues = queues
        self._unroll_length = unroll_length
        self._seeds = seeds
        self._host = host
        self._teacher = teacher
        self._batch_size = envs[0].batch_size
        self._num_actors = len(queues.actor_queues)
        self._steppers: list[Callable[..., Any]] = []
        self._threads: list[DriverThread] = []
        self.unrollers: dict[bool, Unroller] = {}
        self.collectors = [
            Collector(env, i, i * self._batch_size, seed, self._handles(i), stepping, coord.should_stop, teacher)
            for i, (env, seed) in enumerate(zip(envs, seeds.spawn(len(envs)), strict=True))
        ]

    def _handles(self, thread: int) -> tuple[tf.Tensor, ...]:
        if not self._num_actors:
            return ()
        queues = self._queues
        return queues.actor_queues[thread % self._num_actors].handle, queues.action_return_queues[thread].handle

    def make_threads(self) -> list[DriverThread]:
        """See `Collection`."""
        # TensorFlow keeps what a graph calls for ever: it gets a list that close() empties.
        self._steppers[:] = [collector.step_flat for collector in self.collectors]
        for at_random in sorted({False, self._pacer.at_random}):
            self.unrollers[at_random] = self._trace(at_random)
        if self._num_actors:
            server = Server(self._algorithm, self._store.variables, self._queues, self._pacer.paced)
            for k, seed in enumerate(self._seeds.spawn(self._num_actors)):
                self._threads.append(
                    ActorThread(
                        f"alf-actor-{k}", self._coord, server, self._queues, k, self._pacer, self._unroll_length, seed
                    )
                )
        for collector in self.collectors:
            self._threads.append(
                EnvThread(
                    f"alf-env-{collector.thread}", self._coord, collector, self._queues, self.unrollers, self._pacer
                )
            )
        return self._threads

    def _trace(self, at_random: bool) -> Unroller:
        inline = self._num_actors == 0
        variables, steppers = self._store.variables, self._steppers
        call_spec = inline_call_spec(variables) if inline else queue_call_spec()
        policy = inline_policy(self._algorithm, variables) if inline else queue_policy(self._queues)
        decide = inline_decision(self._algorithm, variables) if inline else queue_decision
        if at_random:
            policy = random_policy(policy, self._algorithm.random_action, decide)
        elif self._teacher is not None:
            policy = self._teacher.policy(policy, decide)
        unroller = Unroller(
            self._algorithm,
            self._batch_size,
            self._unroll_length,
            policy,
            call_spec,
            lambda thread, *action: steppers[int(thread)](*action),
        )
        stepping = {c.stepping for c in self.collectors}
        unroller.trace(["graph", "host"] if "auto" in stepping else sorted(stepping))
        return unroller

    def act_at_random(self, at_random: bool) -> None:
        """See `Collection`; random acting is traced when it is first asked for."""
        if self._threads and at_random not in self.unrollers:
            self.unrollers[at_random] = self._trace(at_random)
        self._pacer.at_random = at_random

    def published(self, snapshot: Snapshot) -> None:
        """Nothing to do: the threads read the store."""

    def request_batch(self) -> None:
        """See `Collection`."""
        self._pacer.request_batch()

    def close(self) -> None:
        """See `Collection`."""
        self._steppers.clear()
        begun = {t.collector.thread for t in self._threads if isinstance(t, EnvThread) and t.ident is not None}
        for collector in self.collectors:
            if collector.thread not in begun:
                collector.close()

    def stats(self) -> dict[str, float]:
        """Restarts of environments, and the mean time of a step in ms; what their host tells."""
        return {
            **({} if self._host is None else self._host.stats()),
            "restarts": float(sum(restarts(env) for env in self._envs)),
            "env_step_ms": 1e3 * sum(c.step_secs for c in self.collectors) / len(self.collectors),
        }

    def timings(self) -> Timings:
        """See `Collection`."""
        stepping = sum(c.env_secs for c in self.collectors)
        return Timings(
            environment=stepping,
            inference=max(0.0, sum(c.collect_secs for c in self.collectors) - stepping),
            waiting_for_learner=sum(c.held_secs for c in self.collectors),
            threads=len(self.collectors),
        )

    def who_is_busy(self) -> list[str]:
        """Nobody beside the threads, and the host that they ask."""
        return [] if self._host is None else [self._host.who_is_waited_for()]

    def describe(self) -> str:
        """See `Collection`."""
        acting = f"{self._num_actors} actor threads" if self._num_actors else "acting inside the environment threads"
        how = "; ".join(
            f"environment {c.thread} is stepped "
            + {"graph": "inside the graph", "host": "outside the graph", "auto": "on trial"}[c.stepping]
            + f" ({1e3 * c.step_secs:.2f} ms a step, limit {1e3 * SLOW_STEP_SECS:g} ms)"
            for c in self.collectors
        )
        where = "" if self._host is None else f" of {self._host.describe()}"
        return f"{len(self._envs)} environments of batch {self._batch_size}{where}, {acting}; {how}."
