"""Drivers that collect in the calling thread, one segment at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gin

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver, batched, check_env, restarts
from alf.drivers.collector import Collector, driver_seeds
from alf.drivers.policy_store import PolicyStore
from alf.drivers.queues import check_sizes
from alf.drivers.random_policy import random_policy
from alf.drivers.teaching import Teacher, TeacherFn
from alf.drivers.threads import feed
from alf.drivers.unroll import Segment, Unroller, inline_call_spec, inline_decision, inline_policy
from alf.metrics.time_shares import Timings, together
from alf.replay.experience_replayer import stack_segments
from alf.utils.common import check_range, is_stateless
from alf.utils.devices import on_host
from alf.utils.tracing import Traced
from alf.utils.uninterrupted import whole


@gin.configurable(module="alf")
class SyncOffPolicyDriver(Driver):
    """Collects segments of `unroll_length` steps from one batched environment and has the algorithm observe them.

    The same traced unroll as the asynchronous driver's, without threads. Train between calls of `run`.
    """

    # Whether the algorithm observes what is collected, and is made ready for it.
    _learns = True

    def __init__(
        self,
        env: Any,
        algorithm: OffPolicyAlgorithm,
        unroll_length: int = 8,
        exp_replayer: str | None = None,
        observers: Sequence[Callable[..., Any]] | None = None,
        metrics: Sequence[Callable[..., Any]] | None = None,
        *,
        random_seed: int | None = None,
        stepping: str = "auto",
        teacher: TeacherFn | None = None,
    ) -> None:
        """Checks everything; the environment is first touched by `run`.

        Args:
          env: a batched environment, owned by the driver from now on.
          algorithm: acts and learns.
          unroll_length: T, steps in a segment.
          exp_replayer: "one_time", "cycle_one_time", "uniform", "prioritized" or "hindsight". None: what the trainer says,
            "one_time" without one.
          observers: called as `f(trajectory [T, B, ...])`.
          metrics: called likewise, with a trajectory that has no observations; reported after the four standard ones.
          random_seed: seeds action sampling and training; None draws one, for training only where `set_seed` has not.
          stepping: as in AsyncOffPolicyDriver.
          teacher: called at every step, as `f(transformed time step [B, ...], the policy's action [B, ...])`, numpy arrays;
            the action that it gives is played and recorded, with the policy's own distribution.

        Raises:
          ValueError: sizes or specs that do not fit.
        """
        env = batched(env)
        check_sizes(1, env.batch_size, 1, 1, unroll_length, 0)
        check_env(env, algorithm)
        super().__init__(algorithm, 1, env.batch_size, observers, metrics)
        self._unroll_length = unroll_length
        self._batch_size = env.batch_size
        if self._learns:
            algorithm.set_exp_replayer(exp_replayer, env.batch_size, 1, unroll_length, 1)
        self._store = PolicyStore(algorithm.acting_variables())
        seed = driver_seeds(random_seed, algorithm, self._learns)
        self._teacher = None if teacher is None else Teacher(teacher, algorithm.action_spec)
        self._stacked = Traced(stack_segments)
        self._collector = Collector(env, 0, 0, seed.spawn(1)[0], (), stepping, teacher=self._teacher)
        self._stepping = self._collector.stepping
        self._unrollers: dict[bool, Unroller] = {}
        self._position: tuple[ActionTimeStep, Nest] | None = None
        self._steps = 0
        self._stopped = False
        self._steppers: list[Callable[..., Any]] = []

    def run(
        self, max_num_steps: int | None = None, time_step: ActionTimeStep | None = None, policy_state: Nest = None
    ) -> tuple[ActionTimeStep, Nest]:
        """Collects whole segments until at least `max_num_steps` single steps are made; one segment by default.

        Args:
          max_num_steps: steps of single environments, rounded up to whole segments.
          time_step: None, or what the last call returned: a driver goes on where its environment stands.
          policy_state: likewise.

        Returns:
          the time step [B, ...] and the policy state after the last step.

        Raises:
          ValueError: `time_step` or `policy_state` is not that of the last call, or `max_num_steps` is below 1.
        """
        check_range(1, max_num_steps=max_num_steps)
        given = {"time_step": time_step, "policy_state": None if is_stateless(policy_state) else policy_state}
        for (name, value), last in zip(given.items(), self._position or (None, None), strict=True):
            if value is not None and value is not last:
                raise ValueError(
                    f"The driver goes on where its environment stands: pass the {name} that the last run() returned, or None."
                )
        per_segment = self._unroll_length * self._batch_size
        self._collect(1 if max_num_steps is None else math.ceil(max_num_steps / per_segment))
        assert self._position is not None
        return self._position

    def gather(self, at_random: bool = False) -> int:
        """Collects one segment and has the algorithm observe it; nothing is learned from it here.

        Args:
          at_random: act at random within the action specs instead of by the policy.

        Returns:
          its steps, T * B.
        """
        self._observe([self._next_segment(at_random)])
        return self._unroll_length * self._batch_size

    def _collect(self, segments: int) -> None:
        """Collects `segments` segments, and has the algorithm observe them as one batch: also those before one that fails."""
        collected: list[Segment] = []
        try:
            for _ in range(segments):
                collected.append(self._next_segment())
        finally:
            if collected:
                self._observe(collected)

    def _next_segment(self, at_random: bool = False) -> Segment:
        if self._stopped:
            raise RuntimeError("The driver was stopped, and its environment is closed: make another one.")
        if at_random not in self._unrollers:
            self._unrollers[at_random] = self._trace(at_random)
        snapshot = self._store.publish(int(self._algorithm.iterations))
        segment = self._collector.collect(self._unrollers[at_random], snapshot)
        feed(self._metrics, self._observers, segment)
        bootstrap = segment.experience.bootstrap
        self._position = (bootstrap.time_step, bootstrap.state)
        self._steps += self._unroll_length * self._batch_size
        return segment

    def _observe(self, segments: list[Segment]) -> None:
        if not self._learns:
            return
        parts = [segment.experience for segment in segments]
        with on_host():
            # Traced, it would be a graph for each number of segments, as large as they are many.
            exp = self._stacked(parts) if len(parts) == 1 else stack_segments(parts)
        with whole():
            self._algorithm.observe(exp)

    def _trace(self, at_random: bool) -> Unroller:
        variables = self._store.variables
        # TensorFlow keeps what a graph calls for ever: it gets a list that stop() empties.
        steppers = self._steppers
        steppers[:] = [self._collector.step_flat]
        policy = inline_policy(self._algorithm, variables)
        decide = inline_decision(self._algorithm, variables)
        if at_random:
            policy = random_policy(policy, self._algorithm.random_action, decide)
        elif self._teacher is not None:
            policy = self._teacher.policy(policy, decide)
        unroller = Unroller(
            self._algorithm,
            self._batch_size,
            self._unroll_length,
            policy,
            inline_call_spec(variables),
            lambda thread, *action: steppers[int(thread)](*action),
        )
        # Not by what the collector has chosen by now: a driver that adopts this begins to choose anew.
        unroller.trace(["graph", "host"] if self._stepping == "auto" else [self._stepping])
        return unroller

    def adopt(self, previous: Driver) -> None:
        """See `Driver.adopt`; what the other driver has traced is used again."""
        super().adopt(previous)
        if not isinstance(previous, SyncOffPolicyDriver):
            return
        self._steps = previous._steps
        if previous._unrollers and self._teacher is None and previous._teacher is None:
            self._unrollers, self._steppers = previous._unrollers, previous._steppers
            self._steppers[:] = [self._collector.step_flat]

    def stats(self) -> dict[str, float]:
        """Steps, restarts and step time."""
        return {
            "env_steps": float(self._steps),
            "policy_version": float(int(self._algorithm.iterations)),
            "restarts": self._restarts_before + restarts(self._collector.env),
            "env_step_ms": 1e3 * self._collector.step_secs,
        }

    def timings(self) -> Timings:
        """What the time went to so far."""
        collector = self._collector
        now = Timings(
            training=self._algorithm.train_secs,
            environment=collector.env_secs,
            inference=max(0.0, collector.collect_secs - collector.env_secs),
        )
        return together(self._timings_before, now)

    def stop(self) -> None:
        """Closes the environment; may be called any number of times."""
        self._stopped = True
        self._collector.close()
        self._steppers.clear()
