"""One environment's stream of segments, for the thread that owns the environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import TimeStep
from alf.drivers.policy_store import Snapshot
from alf.drivers.teaching import Teacher
from alf.drivers.unroll import Call, Carry, Segment, StopUnroll, Unroller, control_of
from alf.environments.array_reuse import ReuseWatch
from alf.environments.batched_environment import BatchedEnvironment
from alf.utils import nest_utils
from alf.utils.common import as_array, check_range, packer
from alf.utils.devices import for_host
from alf.utils.exits import not_an_exit

# An environment whose batched step takes longer is stepped between calls of TensorFlow: the calls cost about 0.2 ms,
# and Python is then free to watch the environment.
SLOW_STEP_SECS = 2e-3
MEASURED_STEPS = 8

_SEED_TAG = 0xA1F

STEPPING = ("auto", "graph", "host")

_CONTROL = ("step type", "reward", "discount")


class FreshObservations:
    """Time steps with observations as specified, that the environment does not write to again.

    Environments of `alf` hand out fresh arrays; one of a user that reuses its own would change recorded steps.

    Attributes:
      leaves: the flat observation of the last time step.
    """

    def __init__(self, env: BatchedEnvironment) -> None:
        """Takes the environment for its specs."""
        self._spec = env.observation_spec()
        self._specs = tf.nest.flatten(self._spec)
        self._rows = (env.batch_size,)
        self._wanted = [((env.batch_size, *spec.shape), spec.dtype) for spec in self._specs]
        # What a reset gives once, and a step, they give always.
        self._to_check = 2
        self._reuse = ReuseWatch()
        self.leaves: list[np.ndarray] = []

    def __call__(self, time_step: TimeStep) -> TimeStep:
        """`time_step`, its observation copied where `ReuseWatch` says so.

        Raises:
          ValueError: the observation has another structure, shape or type than its specs say, or step type, reward or
            discount is not [B].
        """
        self._check_control(time_step)
        leaves = tf.nest.flatten(time_step.observation)
        if self._to_check:
            self._to_check -= 1
            self._check_structure(time_step.observation)
        try:
            given = [(leaf.shape, leaf.dtype) for leaf in leaves]
        except AttributeError:
            (kind, *_) = (type(leaf).__name__ for leaf in leaves if not isinstance(leaf, np.ndarray))
            raise ValueError(
                f"An observation has a {kind} where its spec has an array of {self._rows[0]} rows: correct the environment."
            ) from None
        if given != self._wanted:
            raise ValueError(self._misfit(given))
        if self._reuse(leaves):
            self.leaves = [np.array(leaf) for leaf in leaves]
            return time_step._replace(observation=tf.nest.pack_sequence_as(time_step.observation, self.leaves))
        self.leaves = leaves
        return time_step

    def _check_control(self, time_step: TimeStep) -> None:
        for name, value in zip(_CONTROL, (time_step.step_type, time_step.reward, time_step.discount), strict=True):
            if np.shape(value) != self._rows:
                raise ValueError(
                    f"The {name} of a time step has shape {list(np.shape(value))}, and takes one number a row, "
                    f"{list(self._rows)}: correct the environment."
                )

    def _check_structure(self, observation: Any) -> None:
        given, wanted = _paths(observation), _paths(self._spec)
        if given != wanted and len(given) == len(wanted):
            raise ValueError(f"An observation has the parts {given}, and its spec {wanted}: correct the environment.")

    def _misfit(self, given: list[Any]) -> str:
        if len(given) != len(self._specs):
            return f"An observation has {len(given)} arrays, and its specs are {len(self._specs)}: correct the environment."
        i = next(i for i, (leaf, wanted) in enumerate(zip(given, self._wanted, strict=True)) if leaf != wanted)
        is_, should = (f"{np.dtype(dtype).name} {list(shape)}" for shape, dtype in (given[i], self._wanted[i]))
        return f"{self._specs[i].name or 'The observation'} is {is_}; its spec says {should}: correct the environment."


def _paths(nested: Any) -> list[str]:
    return [".".join(path) for path, _ in nest_utils.paths(nested)]


class Collector:
    """Steps one batched environment; the carry between segments is here, and nobody else touches the environment."""

    def __init__(
        self,
        env: BatchedEnvironment,
        thread: int,
        first_env_id: int,
        seed: np.random.SeedSequence,
        handles: Sequence[tf.Tensor] = (),
        stepping: str = "auto",
        should_stop: Callable[[], bool] = lambda: False,
        teacher: Teacher | None = None,
    ) -> None:
        """Creates the collector without touching the environment.

        Args:
          env: the environment, owned from now on.
          thread: its number among the driver's environments.
          first_env_id: id of its row 0.
          seed: source of the seeds of its segments.
          handles: the queues to ask an actor through; none when acting inline.
          stepping: "graph", "host", or "auto": the first steps are taken on the host and their time decides; with a teacher,
            who may take as long as people do, "host".
          should_stop: asked at each step.
          teacher: whom the unroller asks, if anybody.

        Raises:
          ValueError: `stepping` is none of these.
        """
        check_stepping(stepping)
        self.env = env
        self.thread = thread
        self.stepping = "host" if stepping == "auto" and teacher is not None else stepping
        self.failure: BaseException | None = None
        self.step_secs = 0.0
        # Seconds since the start: in steps of the environment; collecting, steps included; waiting for the learner.
        self.env_secs = self.collect_secs = self.held_secs = 0.0
        self._stepped_since: float | None = None
        self._constants = (tf.constant(thread), tf.constant(first_env_id))
        self._handles = tuple(handles)
        self._rng = np.random.default_rng(seed)
        self._should_stop = should_stop
        self._teacher = teacher
        self._carry: Carry | None = None
        self._pack_action = packer(env.action_spec())
        self._steps = 0
        self._fresh = FreshObservations(env)

    @property
    def works_on(self) -> str:
        """Whose code it runs, or ran last, that may hang, for messages."""
        return f"environment {self.thread}" if self._asked_since() is None else f"teacher of environment {self.thread}"

    @property
    def busy_since(self) -> float | None:
        """Since when that has been running; None while it is not."""
        asked = self._asked_since()
        return self._stepped_since if asked is None else asked

    def _asked_since(self) -> float | None:
        return None if self._teacher is None else self._teacher.asked_since.get(self.thread)

    @for_host
    def collect(self, unroller: Unroller, snapshot: Snapshot) -> Segment:
        """The stream's next segment, acted under `snapshot`.

        Raises:
          StopUnroll: the driver is stopping.
          Exception: what the environment raised, or the teacher.
        """
        self.failure = None
        if self._carry is None:
            self._carry = unroller.initial_carry(self._guarded(self.env.reset))
        seed = self._rng.integers(0, 2**30, 2, dtype=np.int32)
        thread, first_env_id = self._constants
        # An actor has weights of its own.
        weights = () if self._handles else snapshot.weights
        version = tf.constant(as_array(snapshot.version, np.int64))
        call = Call(weights, version, self._handles, tf.constant(seed), thread, first_env_id)
        begin = time.monotonic()
        try:
            if self.stepping == "graph":
                segment, self._carry = unroller.unroll(call, self._carry, self._should_stop)
            else:
                segment, self._carry = unroller.unroll_on_host(call, self._carry, self.step)
                self._choose_stepping()
        except BaseException as e:
            # The environment has moved on within a segment that nobody gets: the stream starts anew.
            self._carry = None
            if not isinstance(e, tf.errors.OpError):
                raise
            # What was raised inside the graph comes out as an error of TensorFlow.
            failure = self.failure
            if failure is None and self._teacher is not None:
                failure = self._teacher.failures.pop(self.thread, None)
            if failure is not None:
                raise failure from failure.__cause__
            raise
        self.collect_secs += time.monotonic() - begin
        return segment

    def step(self, action: Any) -> TimeStep:
        """Steps the environment, watching how long it takes."""
        if self._should_stop():
            self.failure = StopUnroll()
            raise self.failure
        begin = time.monotonic()
        time_step = self._guarded(self.env.step, action)
        secs = time.monotonic() - begin
        self._steps += 1
        # A moving average that starts as a plain one.
        self.step_secs += max(0.1, 1 / self._steps) * (secs - self.step_secs)
        self.env_secs += secs
        return time_step

    def step_flat(self, *flat_action: np.ndarray) -> list[np.ndarray]:
        """Steps the environment from inside the graph: control and flat observation."""
        # What the graph gives is its own memory, which an environment may change.
        time_step = self.step(self._pack_action([np.array(leaf) for leaf in flat_action]))
        return [control_of(time_step), *self._fresh.leaves]

    def _guarded(self, function: Callable[..., TimeStep], *args: Any) -> TimeStep:
        self._stepped_since = time.monotonic()
        try:
            return self._fresh(function(*args))
        except SystemExit as e:
            self.failure = not_an_exit(e, f"Environment {self.thread}")
            raise self.failure from e
        except BaseException as e:
            self.failure = e
            raise
        finally:
            self._stepped_since = None

    def _choose_stepping(self) -> None:
        if self.stepping == "auto" and self._steps >= MEASURED_STEPS:
            self.stepping = "host" if self.step_secs > SLOW_STEP_SECS else "graph"

    def close(self) -> None:
        """Closes the environment; what it raises then is logged, since everything is over."""
        try:
            self.env.close()
        except Exception:
            logging.exception("Closing environment %d failed.", self.thread)


def check_stepping(stepping: str) -> None:
    """Raises ValueError when it is none of the ways to step an environment."""
    if stepping not in STEPPING:
        raise ValueError(f"stepping={stepping!r} is not one of {', '.join(STEPPING)}.")


def driver_seeds(random_seed: int | None, algorithm: OffPolicyAlgorithm, learns: bool = True) -> np.random.SeedSequence:
    """The source of a driver's seeds: other ones than whatever else uses `random_seed`, and others after a resume.

    Seeds training too, where `learns`; with a seed that is drawn only where nobody has.
    """
    if random_seed is None:
        drawn = np.random.SeedSequence()
        if learns:
            algorithm.set_seed(int(drawn.generate_state(1)[0]), again=False)
        return drawn
    check_range(0, random_seed=random_seed)
    if learns:
        algorithm.set_seed(random_seed)
    return np.random.SeedSequence([random_seed, int(algorithm.iterations), _SEED_TAG])
