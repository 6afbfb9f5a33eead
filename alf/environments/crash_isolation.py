"""An environment that is rebuilt, within limits, when it raises, dies or hangs, and that lets no NaN through."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.environments import agents, finite_check
from alf.environments.array_reuse import ReuseWatch
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.call_thread import CallThread, bounded_call
from alf.environments.seeding import Seed, seed_sequence
from alf.utils.exits import not_an_exit

_START_TIMEOUT_SECS = 300.0
_CLOSE_TIMEOUT_SECS = 4.0
# Simulators and connections raise others, which may pass.
_ERRORS_OF_CODE = (
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)

# Simulators end the program when a window is closed, or a licence is not there.
_FAILURES = (Exception, SystemExit)


class BrokenEnvironmentError(ValueError):
    """What an environment gives is not what environments give; the message says what is wrong."""


class RestartingEnvironment(BatchedEnvironment):
    """Builds a batched environment by a factory, and builds it anew when it fails.

    When a step raises, or takes too long, every open episode is truncated: LAST with discount 1, reward 0 and the
    observation repeated; the rebuilt environment's FIRST comes next. All rows of a batched environment start together,
    so where some rows were LAST when it failed, their FIRST comes at once with a truncated one-step episode after it,
    and the open rows get one more MID before their LAST: each stream stays a sequence FIRST, MID..., LAST. Of agents
    nobody begins or ends again in an observation that is repeated, and rewards are not repeated; see `agents.repeated`.

    One that never took a step, and raises what wrong code raises, would do so again: it is not rebuilt.

    Seeds of the rebuilt environments are spawned from the first one's.
    """

    def __init__(
        self,
        factory: Callable[[Seed], BatchedEnvironment],
        seed: Seed = None,
        step_timeout_secs: float | None = None,
        max_restarts: int = 10,
        max_restarts_per_window: int = 3,
        window_secs: float = 60.0,
        nonfinite: str = "error",
        find_fault: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Builds the first environment; if that fails, its exception is raised at once.

        Args:
          factory: builds an environment from a seed, another one each time. Called in a thread that touches the
            environment from then on where `step_timeout_secs` is set.
          seed: of the first build; None for fresh entropy.
          step_timeout_secs: a step that takes longer counts as failed, and its thread is left behind. None: no limit,
            and no hand-over between threads (some 20 microseconds a step).
          max_restarts: how often the environment may be rebuilt in its life; 0 lets each failure through.
          max_restarts_per_window: how often within `window_secs`.
          window_secs: see above.
          nonfinite: what a NaN or infinity in an observation or a reward does: "error" raises, "truncate" resets the
            environment, which truncates the episodes of all its rows at their last good observations. What a reset shows is
            always an error.
          find_fault: called when such an environment fails that never took a step: says in a sentence what is wrong with
            all of its kind, which is a BrokenEnvironmentError then; None where it finds nothing.

        Raises:
          ValueError: `nonfinite` is neither of these, or a limit is negative.
        """
        super().__init__()
        finite_check.check_policy(nonfinite)
        if max_restarts < 0 or max_restarts_per_window < 0:
            raise ValueError(f"Limits of restarts must be >= 0; got {max_restarts} and {max_restarts_per_window}.")
        self._factory = factory
        self._seeds = seed_sequence(seed)
        self._step_timeout = step_timeout_secs
        self._max_restarts = max_restarts
        self._max_per_window = max_restarts_per_window
        self._window_secs = window_secs
        self._nonfinite = nonfinite
        self._find_fault = find_fault
        self._works = False
        self._restarts = 0
        self._recent: collections.deque[float] = collections.deque()
        self._pending: collections.deque[ts.TimeStep] = collections.deque()
        self._steps = 0
        self._nonfinite_truncations = 0
        self._closed = False
        self._open = False
        self._thread: CallThread | None = None
        self._phase: str | None = None
        self._told_phase: str | None = None
        try:
            self._build(self._seeds if seed is None else seed)
        except SystemExit as e:
            raise not_an_exit(e, "The environment") from e
        self._check_finite = finite_check.finite_check(self._env.observation_spec())
        slots = agents.slots_of(self._env.observation_spec())
        self._repeated: Callable[[Any], Any] = _unchanged
        if slots is not None:
            self._repeated = functools.partial(agents.repeated, slots=slots)

    @property
    def batch_size(self) -> int:
        """B."""
        return self._env.batch_size

    @property
    def restarts(self) -> int:
        """How often the environment was rebuilt."""
        return self._restarts

    @property
    def cuts(self) -> int:
        """See `BatchedEnvironment.cuts`."""
        return self._restarts + self._nonfinite_truncations

    @property
    def successes(self) -> np.ndarray | None:
        """That of the environment."""
        return None if self._pending else self._env.successes

    @property
    def lives(self) -> np.ndarray | None:
        """That of the environment."""
        return self._env.lives

    @property
    def frames_per_step(self) -> int:
        """That of the environment."""
        return self._env.frames_per_step

    @property
    def nonfinite_truncations(self) -> int:
        """How often all rows were truncated because of a NaN or infinity."""
        return self._nonfinite_truncations

    @property
    def env(self) -> BatchedEnvironment:
        """The present environment, for reading only: a failure replaces it."""
        return self._env

    def before_building(self) -> None:
        """Tells the environment, in the thread that steps it where it has its own."""
        self._run(self._env.before_building, self._start_timeout())

    def after_building(self) -> None:
        """Tells the environment, in the thread that steps it where it has its own."""
        self._run(self._env.after_building, self._start_timeout())

    def enter_phase(self, phase: str) -> None:
        """Tells the environment before its next step or reset, in the thread that steps it; one that is rebuilt too.

        Args:
          phase: see `BatchedEnvironment`; from any thread.
        """
        self._phase = phase

    def _tell_phase(self) -> None:
        phase = self._phase
        if phase is not None and phase != self._told_phase:
            self._run(functools.partial(self._env.enter_phase, phase), self._start_timeout())
            self._told_phase = phase

    def _reset_env(self) -> ts.TimeStep:
        self._tell_phase()
        return self._run(self._env.reset, self._start_timeout())

    def observation_spec(self) -> Any:
        """That of the environment."""
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        """That of the environment."""
        return self._env.action_spec()

    def _reset(self) -> ts.TimeStep:
        self._check_open()
        self._pending.clear()
        try:
            first = self._reset_env()
        except _FAILURES as error:
            first = self._rebuild(error)
        return self._owned(self._first(first))

    def _step(self, action: Any) -> ts.TimeStep:
        if self._pending:
            self._steps += 1
            return self._pending.popleft()
        self._check_open()
        try:
            if self._phase is not self._told_phase:
                self._tell_phase()
            if self._thread is None:
                step = self._env.step(action)
            else:
                step = self._thread.call(functools.partial(self._env.step, action), self._step_timeout)
        except _FAILURES as error:
            self._check_action(action, error)
            return self._truncate(self._rebuild(error))
        self._works = True
        self._steps += 1
        if self._check_finite(step):
            return self._owned(step)
        return self._handle_nonfinite(step, action)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("The environment is closed: build another one.")

    def _check_action(self, action: Any, error: BaseException) -> None:
        """Raises where the caller is to blame: another environment would not take the action either."""
        acting = self._current_time_step.step_type != ts.StepType.LAST

        def check(spec: Any, value: Any) -> None:
            if np.shape(value) != (self.batch_size, *spec.shape):
                raise ValueError(
                    f"The environment takes actions of shape {(self.batch_size, *spec.shape)} ({spec.name}); "
                    f"got {np.shape(value)}."
                ) from error
            bounded, value = array_spec.BoundedArraySpec.from_spec(spec), np.asarray(value)
            low, high = bounded.minimum, bounded.maximum
            # Numbers beyond the bounds of a Box are brought back to them on their way.
            floating = np.issubdtype(spec.dtype, np.floating)
            wrong = np.isnan(value) if floating else (value < low) | (value > high)
            rows = np.flatnonzero(wrong.reshape(self.batch_size, -1).any(axis=1) & acting)
            if rows.size:
                raise ValueError(
                    f"The environment failed on {spec.name} = {value[rows[0]]} in row {rows[0]}, which is outside of its spec, "
                    f"{low} to {high}: correct the algorithm that chose it, and look whether its loss is finite."
                ) from error

        tf.nest.map_structure(check, self.action_spec(), action)

    def _first(self, first: ts.TimeStep) -> ts.TimeStep:
        """Counts the first step of new episodes, which cannot be truncated and so must be finite."""
        self._steps += 1
        if not self._check_finite(first):
            raise finite_check.nonfinite_error(
                first, self._env.observation_spec(), self.first_env_id, self._steps - 1, first=True
            )
        return first

    def _owned(self, step: ts.TimeStep) -> ts.TimeStep:
        """`step` as the environment cannot change it any more: a failure shows it again after other steps or a reset."""
        observation = step.observation
        arrays = [observation] if isinstance(observation, np.ndarray) else tf.nest.flatten(observation)
        if self._reuse(arrays):
            observation = tf.nest.map_structure(_copied, observation)
        return ts.TimeStep(*map(np.array, step[:3]), observation)

    def _handle_nonfinite(self, step: ts.TimeStep, action: Any) -> ts.TimeStep:
        error = finite_check.nonfinite_error(step, self._env.observation_spec(), self.first_env_id, self._steps - 1)
        self._check_action(action, error)
        if self._nonfinite == "error":
            raise error
        self._nonfinite_truncations += 1
        logging.log_every_n_seconds(logging.WARNING, "Truncated all rows of an environment: %s", 10, error)
        self._steps -= 1
        try:
            first = self._reset_env()
        except _FAILURES as again:
            first = self._rebuild(again)
        return self._truncate(first)

    def _truncate(self, first: ts.TimeStep) -> ts.TimeStep:
        """Ends all open episodes; queues what comes after, up to `first` of the new ones; returns the first of it."""
        if not self._check_finite(first):
            raise finite_check.nonfinite_error(
                first, self._env.observation_spec(), self.first_env_id, self._steps, first=True
            )
        self._pending.extend(_truncation(self._current_time_step, first, self._repeated))
        self._pending.append(self._owned(first))
        self._steps += 1
        return self._pending.popleft()

    def _rebuild(self, error: BaseException) -> ts.TimeStep:
        """Replaces the environment by a new one, as often as the limits allow, and resets it."""
        while True:
            error = not_an_exit(error, "The environment")
            if self._closed:
                raise error
            if not self._works and isinstance(error, _ERRORS_OF_CODE):
                self._refuse(error)
            self._count_restart(error)
            hung = self._thread is not None and isinstance(error, TimeoutError)
            self._close_env(0.0 if hung else _CLOSE_TIMEOUT_SECS)
            spawned = np.random.SeedSequence(
                self._seeds.entropy, spawn_key=(*self._seeds.spawn_key, self._restarts), pool_size=self._seeds.pool_size
            )
            try:
                self._build(spawned)
                return self._reset_env()
            except _FAILURES as again:
                error = again

    def _refuse(self, error: BaseException) -> NoReturn:
        """Raises what is wrong with an environment that has never worked."""
        try:
            fault = bounded_call(self._find_fault, _START_TIMEOUT_SECS, "alf-environment-check")
        except Exception as another:
            logging.warning("The environment that failed cannot be looked at: %r", another)
            fault = None
        if fault is not None:
            raise BrokenEnvironmentError(f"The environment cannot be used: {fault}") from error
        error.add_note("The environment has failed before its first step was over, so it is not rebuilt: correct it.")
        raise error

    def _count_restart(self, error: BaseException) -> None:
        now = time.monotonic()
        while self._recent and now - self._recent[0] > self._window_secs:
            self._recent.popleft()
        failed = f"The environment of streams {self.first_env_id} to {self.first_env_id + self.batch_size - 1} failed"
        if self._restarts >= self._max_restarts or len(self._recent) >= self._max_per_window:
            error.add_note(
                f"{failed} after {self._restarts} restarts, {len(self._recent)} of them in the last "
                f"{self._window_secs:g} s: the limits are max_restarts={self._max_restarts} and "
                f"{self._max_per_window} in that time. `python -m alf.bin.doctor --env_name=...` looks for what is wrong."
            )
            raise error
        self._restarts += 1
        self._recent.append(now)
        logging.warning("%s and is rebuilt (restart %d of %d): %r", failed, self._restarts, self._max_restarts, error)

    def _build(self, seed: Seed) -> None:
        """Builds the environment: in a thread of its own where steps are timed, else in a thread only when anew."""
        build = functools.partial(self._factory, seed)
        self._told_phase = None
        self._reuse = ReuseWatch()
        if self._step_timeout is not None:
            thread = CallThread("alf-environment")
            try:
                self._env = thread.call(build, self._start_timeout())
            except BaseException:
                thread.stop()
                raise
            self._thread = thread
        elif self._restarts:
            self._env = bounded_call(build, _START_TIMEOUT_SECS, "alf-environment-build")
        else:
            self._env = build()
        self._open = True

    def _start_timeout(self) -> float:
        return max(_START_TIMEOUT_SECS, self._step_timeout or 0.0)

    def _run(self, function: Callable[[], Any], timeout_secs: float) -> Any:
        return function() if self._thread is None else self._thread.call(function, timeout_secs)

    def _close_env(self, timeout_secs: float) -> None:
        """Closes the environment in bounded time; a hung one is left to its thread, which closes it when it wakes."""
        thread, self._thread = self._thread or CallThread("alf-environment-close"), None
        was_open, self._open = self._open, False
        try:
            if was_open:
                thread.call(self._env.close, timeout_secs)
        except _FAILURES as error:
            logging.warning("An environment did not close: %r", error)
        finally:
            thread.stop()

    def render(self, mode: str = "rgb_array") -> np.ndarray | None:
        """See `BatchedEnvironment.render`."""
        self._check_open()
        return self._run(functools.partial(self._env.render, mode), self._start_timeout())

    def close(self) -> None:
        """Closes the environment within seconds, once; a failure after this is no reason to build another."""
        if not self._closed:
            self._closed = True
            self._close_env(_CLOSE_TIMEOUT_SECS)


def _unchanged(observation: Any) -> Any:
    return observation


def _copied(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array


def _truncation(last: ts.TimeStep, first: ts.TimeStep, repeated: Callable[[Any], Any]) -> list[ts.TimeStep]:
    """The steps that end all rows at the same time, so that all may begin anew together.

    Args:
      last: what the rows showed last, [B].
      first: what they begin with, [B].
      repeated: makes of an observation the one that is shown when it is shown again.

    Returns:
      One step, LAST in all rows; or two where some rows were LAST: these are FIRST and LAST, the others MID and LAST.
    """
    ended = last.step_type == ts.StepType.LAST
    size = len(ended)
    again = repeated(last.observation)

    def select(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.where(ended.reshape((size,) + (1,) * (old.ndim - 1)), new, old)

    def step(step_type: np.ndarray, begun: Any) -> ts.TimeStep:
        observation = tf.nest.map_structure(select, again, begun)
        return ts.TimeStep(step_type, np.zeros(size, np.float32), np.ones(size, np.float32), observation)

    ending = [step(np.full(size, 2, np.int32), repeated(first.observation))]
    if ended.any():
        ending.insert(0, step(np.where(ended, 0, 1).astype(np.int32), first.observation))
    return ending
