"""The asynchronous driver: environment and actor threads collect while the learner learns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience, PolicyStep
from alf.drivers.arguments import (
    check_mode,
    check_options,
    check_workers,
    closed_if_it_fails,
    count_environments,
    make_environments,
)
from alf.drivers.base import Driver, waited_until
from alf.drivers.collection import Collection, EnvironmentHost
from alf.drivers.collector import driver_seeds
from alf.drivers.coordinator import Coordinator
from alf.drivers.lag import LagStats
from alf.drivers.local_collection import LocalCollection
from alf.drivers.pacing import Pacer
from alf.drivers.policy_store import PolicyStore
from alf.drivers.pumping import SegmentSource, WireSegment, to_wire
from alf.drivers.queues import QueueClosed, TFQueues, check_sizes
from alf.drivers.remote_collection import RemoteCollection
from alf.drivers.teaching import Teacher, TeacherFn
from alf.drivers.threads import DriverThread, LogEntry, LogThread, stall_of
from alf.drivers.unroll import Segment, sequential
from alf.metrics.time_shares import Timings, together
from alf.replay.experience_replayer import stack_segments
from alf.utils.tracing import Traced
from alf.utils.uninterrupted import held_up, whole

# The learner waits in slices of this length, so that signals and failures of other threads get through.
_WAIT_SECS = 0.25
# Between two looks whether the log thread has caught up.
_LOOK_SECS = 1e-3


@gin.configurable(module="alf")
class AsyncOffPolicyDriver(Driver):
    """Collects with N environment threads and K actor threads, beside a learner in the calling thread.

    Use: `start()`, then in a loop `run_async()` and `algorithm.train(...)`, and `stop()` in a `finally`. The axis
    letters are those of `alf.data_structures`, with K actor queues of capacity A.
    """

    def __init__(
        self,
        envs: Sequence[Any] | None = None,
        algorithm: OffPolicyAlgorithm | None = None,
        num_actor_queues: int = 1,
        unroll_length: int = 8,
        learn_queue_cap: int = 1,
        actor_queue_cap: int = 1,
        observers: Sequence[Callable[..., Any]] | None = None,
        metrics: Sequence[Callable[..., Any]] | None = None,
        exp_replayer: str | None = None,
        *,
        env_f: Callable[[], Any] | None = None,
        num_envs: int | None = None,
        mode: str = "async",
        max_policy_lag: int | None = None,
        random_seed: int | None = None,
        stepping: str = "auto",
        stall_timeout_secs: float = 300.0,
        stop_timeout_secs: float = 4.0,
        workers: SegmentSource | None = None,
        host: EnvironmentHost | None = None,
        teacher: TeacherFn | None = None,
    ) -> None:
        """Checks everything and builds queues; threads start at `start()`.

        Args:
          envs: N batched environments of equal specs and batch size B. The driver owns them from now on, and closes them.
          algorithm: acts and learns.
          num_actor_queues: K, actor threads; thread i asks actor i mod K. 0 acts inside the environment threads, which is
            faster for small networks.
          unroll_length: T, steps in a segment.
          learn_queue_cap: Q, segments in one learner batch.
          actor_queue_cap: A, requests that make one forward pass of A*B rows; exactly A.
          observers: called in the log thread as `f(trajectory [T, B, ...], env_thread_id)` for every segment.
          metrics: called likewise, with a trajectory that has no observations; reported after the four standard ones.
          exp_replayer: "one_time", "cycle_one_time", "uniform", "prioritized" or "hindsight". None: what the trainer says,
            "one_time" without one.
          env_f: makes one batched environment; with `num_envs` the other way to give the environments.
          num_envs: N, how often `env_f` is called.
          mode: "async"; "lockstep" (actors exactly one version behind) or "sync" (lag 0), both reproducible from the seed.
          max_policy_lag: segments with an older step than this many versions are dropped and counted.
          random_seed: as in SyncOffPolicyDriver.
          stepping: "graph" steps environments inside traced code, "host" in Python, "auto" measures and chooses for each.
          stall_timeout_secs: a step or reset of an environment, or an observer, that takes longer, or a learner that
            waits longer for a batch, ends the run with an error; time in which the process was stopped does not count.
          stop_timeout_secs: how long `stop()` waits for threads, and for each segment of observers; not for what has stalled.
          workers: collect in this driver's place, in other processes; `envs` then only tell what the environments are like.
          host: other processes that step `envs`, which ask them: this driver acts for them, and `stepping` "auto" is "host".
          teacher: as in SyncOffPolicyDriver; asked for one environment after the other, each from its own thread.

        Raises:
          ValueError: sizes, specs or options that do not fit together; the message names them.
        """
        check_options(stepping, mode, max_policy_lag, stall_timeout_secs)
        if algorithm is None:
            raise ValueError("AsyncOffPolicyDriver needs an algorithm.")
        here = count_environments(envs, env_f, num_envs)
        if workers is not None:
            check_workers(mode, workers.threads, learn_queue_cap, teacher is not None)
            num_actor_queues, actor_queue_cap = 0, 1
        count = here if workers is None else workers.threads
        check_sizes(count, 1, learn_queue_cap, actor_queue_cap, unroll_length, num_actor_queues)
        check_mode(mode, count, learn_queue_cap, actor_queue_cap, num_actor_queues)
        self._envs = make_environments(envs, env_f, here, algorithm)
        with closed_if_it_fails([] if env_f is None else self._envs):
            self._batch_size = self._envs[0].batch_size
            super().__init__(algorithm, count, self._batch_size, observers, metrics)
            self._unroll_length = unroll_length
            self._learn_queue_cap = learn_queue_cap
            self._num_actor_queues = num_actor_queues
            self._max_policy_lag = max_policy_lag
            self._has_workers = workers is not None or host is not None
            self._stall_timeout_secs = stall_timeout_secs
            self._stop_timeout_secs = stop_timeout_secs
            algorithm.set_exp_replayer(exp_replayer, count * self._batch_size, count, unroll_length, learn_queue_cap)

            self._coord = Coordinator()
            self._store = PolicyStore(algorithm.acting_variables(), on_host=num_actor_queues == 0)
            self._pacer = Pacer(mode, count, learn_queue_cap, self._store)
            self._queues = self._make_queues(count, actor_queue_cap)
            self._coord.on_stop(self._queues.close_all)
            self._coord.on_stop(self._pacer.close)
            self._lag = LagStats()
            self._teacher = None if teacher is None else Teacher(teacher, algorithm.action_spec)
            self._collection = self._make_collection(workers, host, stepping, driver_seeds(random_seed, algorithm))
            self._threads: list[DriverThread] = []
            self._log_thread: LogThread | None = None
            # Re-entrant: a signal handler may call stop() while the same thread is in it.
            self._stop_lock = threading.RLock()
            # Re-entrant: an interrupt may leave it taken, and the next call of the same thread goes on.
            self._learner = threading.RLock()
            self._pending: list[Segment] = []
            self._stacked = Traced(stack_segments)
            self._requested = False
            # The segment that is being taken, and whether the log thread has it.
            self._taken: LogEntry | None = None
            self._logged = False
            self._waiting_since = self._waited_secs = 0.0
            self._state = "new"
            self._raised: BaseException | None = None
            self._dropped_steps = 0
            self._steps = 0

    def _make_queues(self, count: int, actor_queue_cap: int) -> TFQueues:
        algorithm = self._algorithm
        spec = algorithm.experience_spec
        return TFQueues(
            count,
            self._batch_size,
            self._learn_queue_cap,
            actor_queue_cap,
            algorithm.transformed_time_step_spec,
            PolicyStep(spec.action, algorithm.train_state_spec, spec.rollout_info),
            self._unroll_length,
            self._num_actor_queues,
            algorithm.train_state_spec,
        )

    def _make_collection(
        self,
        workers: SegmentSource | None,
        host: EnvironmentHost | None,
        stepping: str,
        seeds: np.random.SeedSequence,
    ) -> Collection:
        coord, store, pacer, length = self._coord, self._store, self._pacer, self._unroll_length
        if workers is None:
            return LocalCollection(
                self._envs,
                self._algorithm,
                coord,
                store,
                pacer,
                self._queues,
                length,
                seeds,
                stepping,
                host,
                self._teacher,
            )
        queue = self._queues.learn_queue
        return RemoteCollection(workers, self._envs, self._algorithm, coord, store, pacer, queue, length)

    # ---- life ----

    def start(self) -> None:
        """Traces everything, publishes the first weights and starts the threads, or the workers.

        Raises:
          RuntimeError: the driver was started before; a new run needs a new driver.
        """
        if self._state != "new":
            raise RuntimeError(f"The driver is {self._state}: it can be started only once; make a new one.")
        if self._store.empty:
            self._store.publish(int(self._algorithm.iterations))
        log = LogThread("alf-log", self._observers, self._metrics, self._coord, self._queues.log_queue)
        self._log_thread = log
        self._threads = self._collection.make_threads()
        self._algorithm.add_after_train_hook(self.publish)
        self._state = "running"
        for thread in [log, *self._threads]:
            thread.start()

    def publish(self) -> None:
        """Has segments act by the present weights from now on; `train` and `train_from` of the algorithm do so themselves.

        The version that steps are stamped with is the algorithm's `iterations`.

        Raises:
          ValueError: the algorithm's `iterations` are fewer than when it was published last.
        """
        self._collection.published(self._store.publish(int(self._algorithm.iterations)))

    def stop(self) -> None:
        """Ends all threads, closes the environments, and gives metrics and observers all that the learner took.

        Returns in bounded time from every state, any number of times, from any thread.

        Raises:
          Exception: the one that ended the driver, unless `run_async` has raised it before.
        """
        with self._stop_lock:
            if self._state != "stopped":
                if self._state == "running":
                    self._algorithm.remove_after_train_hook(self.publish)
                self._state = "stopping"
                self._coord.request_stop()
                self._join()
                self._collection.close()
                self._state = "stopped"
        if self._coord.exception is not self._raised:
            self._raised = self._coord.exception
            self._coord.raise_if_failed()

    def catch_up(self) -> None:
        """See `Driver.catch_up`; ends with a driver that fails."""
        log = self._log_thread
        while log is not None and log.is_alive() and log.fed < self._queues.log_queue.entered:
            self._check_stall()
            if self._coord.should_stop():
                return
            time.sleep(_LOOK_SECS)

    def _join(self) -> None:
        # Only the learner fills the log queue, and it fills it no more.
        self._queues.log_queue.close()
        deadline = time.monotonic() + self._stop_timeout_secs
        threads = [t for t in self._all_threads() if t.ident is not None and t is not threading.current_thread()]
        for thread in threads:
            stalled = stall_of([thread], self._stall_timeout_secs)
            thread.join(0.1 if stalled else max(0.1, deadline - time.monotonic()))
        if self._log_thread in threads:
            self._log_thread.drain(self._stop_timeout_secs)
        for thread in threads:
            if thread.is_alive():
                logging.warning(
                    "%s has not ended and is left behind (%s, %d segments not logged).",
                    thread.name,
                    self._who_is_busy(),
                    self._queues.log_queue.size(),
                )

    @property
    def reproducible(self) -> bool:
        """True in modes "lockstep" and "sync", but for workers, any of which may be lost."""
        return self._pacer.paced and not self._has_workers

    # ---- learner's side ----

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Not for this driver.

        Raises:
          RuntimeError: always; it names `run_async`.
        """
        raise RuntimeError("The asynchronous driver has no run(): call start() once and run_async() for each batch.")

    def act_at_random(self, at_random: bool = True) -> None:
        """Has segments act at random within the action specs from now on, or by the policy again.

        What else is recorded of acting (`rollout_info`) is the policy's; what recurrent critics remember is of what was done,
        but with actor queues. Random acting is traced when it is first asked for. What is on its way when this changes is
        delivered as it was collected: up to Q + N segments in mode "async" (more where workers act, whose queues come
        before), one batch in "lockstep", nothing in "sync". Before `start` it is for all segments.
        """
        if at_random != self._pacer.at_random:
            self._collection.act_at_random(at_random)

    def run_async(self) -> int:
        """Waits for the next batch of Q segments and has the algorithm observe it.

        Returns:
          its steps, Q * T * B.

        Raises:
          RuntimeError: the driver is not running.
          TimeoutError: an environment or observer has not answered for `stall_timeout_secs`.
          Exception: whatever a thread failed with, with its own traceback.
        """
        exp = self._next_batch()
        with whole():
            steps = self._delivered()
            self._algorithm.observe(exp)
        return steps

    def get_training_exps(self) -> tuple[Experience, int]:
        """Waits for the next batch: Experience [Q, T, B, ...] and its steps Q * T * B; raises as `run_async`."""
        exp = self._next_batch()
        return exp, self._delivered()

    def _next_batch(self) -> Experience:
        """Waits for the Q segments of the next batch; until it is `_delivered`, the next call goes on with what is pending."""
        if self._state != "running":
            raise RuntimeError(f"The driver is {self._state}: call start() first, and nothing after stop().")
        if not self._learner.acquire(blocking=False):
            raise RuntimeError("Another thread is in run_async(): a driver has one learner.")
        try:
            self._check_stall()
            if not self._requested:
                with held_up():
                    self._collection.request_batch()
                    self._requested = True
            self._waiting_since = time.monotonic()
            while len(self._pending) < self._learn_queue_cap:
                self._patiently(self._take)
            self._waited_secs += time.monotonic() - self._waiting_since
            with sequential():
                return self._stacked([s.experience for s in self._pending])
        except QueueClosed:
            self._raised = self._coord.exception
            self._coord.raise_if_failed()
            raise RuntimeError("The driver was stopped while the learner waited for data.") from None
        finally:
            self._learner.release()

    def _delivered(self) -> int:
        """Counts what is pending as a batch that the learner has, and returns its steps."""
        steps = self._learn_queue_cap * self._unroll_length * self._batch_size
        # Nothing is called from here to the caller: no interrupt comes between.
        self._steps += steps
        self._pending, self._requested = [], False
        return steps

    def _take(self) -> None:
        """Adds the next segment, unless it is too old, to the pending ones; TimeoutError after a slice of waiting."""
        with held_up():
            # What a second signal leaves half done the next call goes on with.
            if self._taken is None:
                self._taken = self._queues.learn_queue.dequeue(_WAIT_SECS)
            if not self._logged:
                self._queues.log_queue.enqueue(self._taken, _WAIT_SECS)
                self._logged = True
            segment = self._taken.segment
            oldest = self._lag.add(int(self._algorithm.iterations), segment.versions.numpy())
            if self._max_policy_lag is not None and oldest > self._max_policy_lag:
                self._dropped_steps += self._unroll_length * self._batch_size
            else:
                self._pending.append(segment)
            self._taken, self._logged = None, False

    def _patiently(self, attempt: Callable[[], None]) -> None:
        """Repeats `attempt` while it times out; ends when another thread has failed, or does not answer any more."""
        self._coord.awake.look()
        while True:
            try:
                attempt()
                return
            except TimeoutError:
                self._check_stall()
                if self._coord.should_stop():
                    raise QueueClosed("driver") from None
                # While an environment's worker is away, nobody counts that as hanging.
                since = max(self._waiting_since, *(waited_until(env) for env in self._envs))
                waited = self._coord.awake.secs_since(since)
                if waited > self._stall_timeout_secs:
                    self._coord.request_stop(
                        TimeoutError(f"The learner has waited {waited:.0f} s for a batch: {self._who_is_busy()}.")
                    )

    def _check_stall(self) -> None:
        """Ends the run when a step of an environment, or an observer, takes longer than allowed; one look of a wait."""
        self._coord.awake.look()
        error = stall_of(self._all_threads(), self._stall_timeout_secs)
        if error is not None:
            self._coord.request_stop(error)

    def _all_threads(self) -> list[DriverThread]:
        return self._threads if self._log_thread is None else [*self._threads, self._log_thread]

    def _who_is_busy(self) -> str:
        busy = [f"{t.works_on} is running" for t in self._all_threads() if t.busy_secs]
        return ", ".join([*busy, *self._collection.who_is_busy()]) or "nothing known"

    # ---- worker's side: another process is the learner ----

    def weights(self) -> list[np.ndarray]:
        """The algorithm's present weights, as `load` takes them."""
        return [v.numpy() for v in self._store.variables]

    def load(self, version: int, weights: Sequence[np.ndarray], at_random: bool = False) -> None:
        """Has segments act by these weights, or at random, from now on; the first ones are given before `start`.

        Args:
          version: what the steps are stamped with; not below the one before.
          weights: values of `algorithm.acting_variables()`, in that order.
          at_random: see `act_at_random`.

        Raises:
          ValueError: they are not those of this algorithm.
        """
        self._store.load(version, weights)
        self.act_at_random(at_random)

    def ask(self, count: int) -> None:
        """Asks for the next batch in mode "sync" or "lockstep", as `run_async` does, without waiting for it.

        Raises:
          ValueError: `count` is not the Q segments of a batch.
        """
        if count != self._learn_queue_cap:
            raise ValueError(
                f"A batch of this driver has {self._learn_queue_cap} segments, and {count} were asked for."
            )
        self._pacer.request_batch()

    def next_segment(self, timeout: float) -> WireSegment:
        """The next segment, in place of `run_async`: neither metrics nor observers see it.

        Raises:
          QueueEmpty: there is none within `timeout` seconds.
          QueueClosed: the driver was stopped.
          Exception: whatever a thread failed with, with its own traceback.
        """
        self._coord.awake.look()
        try:
            return to_wire(self._queues.learn_queue.dequeue(timeout))
        except TimeoutError:
            self._check_stall()
            raise
        except QueueClosed:
            self._raised = self._coord.exception
            self._coord.raise_if_failed()
            raise

    # ---- telling ----

    def adopt(self, previous: Driver) -> None:
        """See `Driver.adopt`; lag, steps and drops are those of the whole run too."""
        super().adopt(previous)
        if isinstance(previous, AsyncOffPolicyDriver):
            self._steps, self._dropped_steps, self._lag = previous._steps, previous._dropped_steps, previous._lag

    def stats(self) -> dict[str, float]:
        """Scalars for displays: steps, lag, queue fill, restarts, drops, step time."""
        collected = self._collection.stats()
        if "restarts" in collected:
            collected["restarts"] += self._restarts_before
        return {
            "env_steps": float(self._steps),
            "policy_version": float(self._store.version),
            "learn_queue_fill": self._queues.learn_queue.size() / self._queues.learn_queue.capacity,
            "log_queue_fill": self._queues.log_queue.size() / self._queues.log_queue.capacity,
            "log_queue_wait_secs": self._queues.log_queue.waited_secs,
            "dropped_steps": float(self._dropped_steps),
            **self._lag.stats(),
            **collected,
        }

    def timings(self) -> Timings:
        """What the time went to so far: the learner's, and that of all environment threads together."""
        here = {"training": self._algorithm.train_secs, "waiting_for_data": self._waited_secs}
        return together(self._timings_before, self._collection.timings()._replace(**here))

    def lag_histogram(self) -> np.ndarray:
        """See `Driver.lag_histogram`."""
        return self._lag.histogram

    def describe(self) -> str:
        """How the driver acts and steps, and why."""
        return self._collection.describe()
