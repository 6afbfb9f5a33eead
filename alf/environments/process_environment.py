"""Gymnasium environments in worker processes, which may hang, raise or die without taking the run with them."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from absl import logging
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, async_vector_env

from alf.environments.call_thread import bounded_call
from alf.environments.gymnasium_environment import (
    VectorEnvironment,
    close_quietly,
    earned,
    flag,
    one_picture,
    told_info,
)
from alf.environments.phases import tell_phase
from alf.environments.spaces import action_spec, fitting, observation_spec

_DEFAULT_STEP_TIMEOUT_SECS = 300.0
# Building and a first reset may start a simulator, so they get at least this long.
_START_TIMEOUT_SECS = 300.0
_CLOSE_TIMEOUT_SECS = 1.2
# The exception of a worker comes right behind the news that there is one.
_ERROR_TIMEOUT_SECS = 10.0

# A worker forked while another is being connected would inherit its pipe, whose end would then never be seen.
_FORK_LOCK = threading.Lock()


class _BoundedVectorEnv(AsyncVectorEnv):
    """Gymnasium's, which does not wait without end for workers that never come out of building their environments."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], timeout_secs: float) -> None:
        self._start_timeout = timeout_secs
        super().__init__(makers, copy=False, worker=_work, autoreset_mode=AutoresetMode.NEXT_STEP)

    def _check_spaces(self) -> None:
        try:
            bounded_call(super()._check_spaces, self._start_timeout, "alf-workers-start")
        except TimeoutError:
            close_workers(self)
            raise TimeoutError(
                f"The worker processes did not build their {self.num_envs} environments within {self._start_timeout:g} s; "
                "a longer step_timeout_secs gives them longer."
            ) from None
        except BaseException:
            close_workers(self)  # those that were built
            raise


class _ErrorQueue:
    """The exceptions of workers, for which Gymnasium waits without end where one cannot be pickled and never comes."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def get(self) -> Any:
        try:
            return self._errors.get(timeout=_ERROR_TIMEOUT_SECS)
        except queue.Empty:
            raise ChildProcessError(
                "A worker process failed with an exception that cannot be pickled, of which no more is known than what "
                "the worker may have printed: define its class at the top of a module, or let the callable make one "
                'environment and set create_environment.vectorization = "async", which tells such exceptions.'
            ) from None

    def close(self) -> None:
        self._errors.close()


def _bounded(wait: Callable[[Any], Any], timeout_secs: float) -> Callable[..., Any]:
    """A wait for workers that ends in time where the caller gives no timeout, as vector wrappers do."""
    return lambda timeout=None: wait(timeout_secs if timeout is None else timeout)


class ProcessEnvironment(VectorEnvironment):
    """An `AsyncVectorEnv`, a process for each row, in vector wrappers or none, whose steps are bounded in time.

    After an exception it is broken and can only be closed; `RestartingEnvironment` builds another.
    """

    def __init__(
        self,
        env: VectorEnv,
        seeds: Sequence[int] | None = None,
        step_timeout_secs: float | None = None,
    ) -> None:
        """Adapts `env`, which is closed with this.

        Args:
          env: an `AsyncVectorEnv`, or vector wrappers around one, not yet reset.
          seeds: B integers for the first reset, or None.
          step_timeout_secs: the longest that a step of all rows may take, 300 by default; a reset of all rows may take
            that, and at least 300.

        Raises:
          ValueError: see `VectorEnvironment`.
        """
        super().__init__(env, seeds)
        self._told_phases: bool | None = None
        self._timeout = _DEFAULT_STEP_TIMEOUT_SECS if step_timeout_secs is None else step_timeout_secs
        self._reset_timeout = max(self._timeout, _START_TIMEOUT_SECS)
        self._workers: AsyncVectorEnv = self._env.unwrapped
        self._bound_waits(self._workers)
        self._step_env = self._step_processes

    def _bound_waits(self, workers: Any) -> None:
        # On the object itself, as wrappers step it by methods that take no timeout.
        workers.step_wait = _bounded(workers.step_wait, self._timeout)
        workers.call_wait = _bounded(workers.call_wait, self._timeout)
        workers.reset_wait = _bounded(workers.reset_wait, self._reset_timeout)
        workers.error_queue = _ErrorQueue(workers.error_queue)

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, one for each row."""
        return [process.pid for process in self._workers.processes]

    def _reset_env(self, seeds: list[int] | None) -> Any:
        return self._call(functools.partial(super()._reset_env, seeds), self._reset_timeout)

    def enter_phase(self, phase: str) -> None:
        """Tells the wrappers in the workers, where all have some that are phased."""
        if self._told_phases is None:
            asked = functools.partial(self._workers.call, "has_wrapper_attr", "tell_phases")
            phased = self._call(asked, self._timeout)
            self._told_phases = all(phased)
            if any(phased) and not self._told_phases:
                logging.warning(
                    "Of the AsyncVectorEnv's %d environments only some have wrappers that ask for the phase, and none is "
                    "told, so that RandomFirstEpisodeLength cuts evaluations too: wrap all of them alike.",
                    self._batch_size,
                )
        if self._told_phases:
            self._call(functools.partial(self._workers.call, "tell_phases", phase), self._timeout)

    def render(self, mode: str = "rgb_array") -> np.ndarray | None:
        """As in `VectorEnvironment`; bounded in time."""
        del mode
        return one_picture(self._call(self._env.render, self._timeout) if self._env.render_mode else None)

    def _step_processes(self, action: Any) -> tuple[Any, ...]:
        return self._call(functools.partial(self._env.step, action), self._timeout)

    def _call(self, function: Callable[[], Any], timeout: float) -> Any:
        """What `function` gives, which waits for the workers for `timeout` at most."""
        try:
            return function()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise ChildProcessError(f"A worker process died: {self._exit_codes()}.") from error
        except multiprocessing.TimeoutError:
            raise TimeoutError(f"The environment's processes gave no answer within {timeout} s.") from None
        except Exception as error:
            raise _original(error) from None

    def _exit_codes(self) -> str:
        for process in self._workers.processes:
            process.join(0.1)  # Its pipe may be gone a moment before it is.
        codes = {row: p.exitcode for row, p in enumerate(self._workers.processes) if not p.is_alive()}
        return ", ".join(f"row {row} with exit code {code}" for row, code in codes.items()) or "its pipe is closed"

    def close(self) -> None:
        """Closes the environments, and kills the processes that do not end by themselves within seconds."""
        close_workers(self._workers)
        if self._env is not self._workers:
            # Wrappers have files and windows of their own; what they wrap is closed already.
            close_quietly(self._env)


def make_process_environment(
    make_env: Callable[[], gymnasium.Env],
    batch_size: int,
    seeds: Sequence[int] | None = None,
    step_timeout_secs: float | None = None,
    probe: gymnasium.Env | None = None,
) -> ProcessEnvironment:
    """B processes, each with one environment, observations in shared memory.

    Args:
      make_env: builds one environment; called in each worker.
      batch_size: B.
      seeds: B integers for the first reset and the workers' own generators, or None.
      step_timeout_secs: see `ProcessEnvironment`; building may take as long as a reset.
      probe: an environment of this kind, which tells the spaces and is then closed; None builds one for that.

    Raises:
      ChildProcessError: a worker could not build its environment.
      TimeoutError: a worker did not build it in time; the workers are ended.
      ValueError: a space that has no spec, or observations that processes cannot share.
    """
    probe = make_env() if probe is None else probe
    try:
        _check_spaces(probe)
    except BaseException:
        close_quietly(probe)
        raise
    of_workers = [None] * batch_size if seeds is None else seeds
    makers = [_WorkerMaker(make_env, probe, seed) for seed in of_workers]
    with _FORK_LOCK:
        try:
            env = _BoundedVectorEnv(makers, max(step_timeout_secs or 0.0, _START_TIMEOUT_SECS))
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise ChildProcessError("A worker process died while it built its environment.") from error
    try:
        return ProcessEnvironment(env, seeds, step_timeout_secs)
    except BaseException:
        close_workers(env)
        raise


def _check_spaces(env: gymnasium.Env) -> None:
    action_spec(env.action_space)
    for spec in tf.nest.flatten(observation_spec(env.observation_space)):
        if spec.dtype == np.float16:
            raise ValueError(
                f"{spec.name}: there is no memory of float16 to share: let the environment give np.float32, or choose "
                'vectorization="sync".'
            )


def close_workers(env: AsyncVectorEnv) -> None:
    """Ends the workers of `env` in bounded time: asks them to close, then terminates, then kills.

    Args:
      env: in any state, also with dead or hung workers.
    """
    if env.closed:
        return
    env.closed = True
    for pipe in env.parent_pipes:
        try:
            pipe.send(("close", None))
        except (AttributeError, OSError, ValueError):
            pass  # None or closed: Gymnasium gave it up after an error of the worker.
    for end in (None, "terminate", "kill"):
        for process in env.processes:
            if end and process.is_alive():
                getattr(process, end)()
        if _joined(env.processes, _CLOSE_TIMEOUT_SECS):
            break
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env.error_queue.close()


def _joined(processes: Sequence[Any], timeout_secs: float) -> bool:
    deadline = time.monotonic() + timeout_secs
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    return not any(process.is_alive() for process in processes)


def _work(*arguments: Any) -> None:
    """Gymnasium's worker, but nothing is said of a main process that is gone: a traceback for each row would be."""
    try:
        async_vector_env._async_worker(*arguments)
    except BrokenPipeError:
        pass


class _WorkerMaker:
    """Builds the environment of a worker; in the main process gives the one that tells the spaces."""

    def __init__(self, make_env: Callable[[], gymnasium.Env], probe: gymnasium.Env, seed: int | None = None) -> None:
        self._make_env = make_env
        self._probe: gymnasium.Env | None = probe
        self._seed = seed
        self._parent = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_probe": None}

    def __call__(self) -> gymnasium.Env:
        if os.getpid() == self._parent:
            probe, self._probe = self._probe, None
            return _Probe(probe or self._make_env())
        # Ctrl-C and a lost terminal are the main process's to handle, and its handlers for SIGTERM are not the worker's.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A fork begins with the generators of the main process, the same in all workers; some environments draw from them.
        random.seed(self._seed)
        np.random.seed(None if self._seed is None else self._seed % 2**32)
        return _Portable(self._make_env())


class _Probe(gymnasium.Wrapper):
    """An environment that Gymnasium closes before it starts the workers, which have their own."""

    def close(self) -> None:
        close_quietly(self.env)


class _Portable(gymnasium.Wrapper):
    """Sees that all can travel to the main process: every exception, for which it would else wait for ever, too."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        # Shared memory takes other shapes and numbers too, and repeats or cuts them.
        self._fit = fitting(env.observation_space)

    def tell_phases(self, phase: str) -> None:
        with _made_portable():
            tell_phase(self.env, phase)

    def reset(self, **kwargs: Any) -> Any:
        with _made_portable():
            observation, info = self.env.reset(**kwargs)
            return self._fit(observation), told_info(info)

    def step(self, action: Any) -> Any:
        with _made_portable():
            observation, reward, terminated, truncated, info = self.env.step(action)
            # The main process makes an array of those of all rows.
            return self._fit(observation), earned(reward), flag(terminated), flag(truncated), told_info(info)

    def render(self) -> Any:
        with _made_portable():
            return self.env.render()


@contextlib.contextmanager
def _made_portable() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    note = f"In a worker process:\n{traceback.format_exc()}"
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
        type(error)(error)  # So Gymnasium raises it in the main process.
        return error
    except Exception:
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.add_note(note)
        return portable


def _original(error: Exception) -> Exception:
    """The worker's exception, which Gymnasium hands on as the argument of another one."""
    inner = error.args[0] if len(error.args) == 1 else None
    return inner if isinstance(inner, type(error)) else error
