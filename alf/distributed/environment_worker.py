"""A worker that steps environments, for a learner that acts in them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from alf.data_structures import TimeStep
from alf.distributed.engine import resolve
from alf.distributed.plain_specs import layout_of
from alf.distributed.worker import place
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.time_shares import Timings
from alf.utils import gin_utils

# What a reset or step is answered with: step types [B], rewards [B], discounts [B] and the leaves of the observation
# [B, ...]; and how often the environment was rebuilt, and its episodes cut, so far.
Answer = tuple[list[np.ndarray], int, int]

# How long an environment is given to come back from a step before it is left to the end of the process.
_END_SECS = 2.0


class EnvironmentWorker:
    """Owns the N environments of a worker and steps the one that it is asked for, one at a time.

    `beat` and `end` may be called at any time beside the others, which are called one at a time.
    """

    def __init__(self, number: int, life: int, maker: str, settings: dict[str, Any]) -> None:
        """Creates a worker without environments.

        Args:
          number: of the worker, from 0.
          life: how many workers of this number came before.
          maker: "module:function" that makes the environments, called as `maker(number=number, life=life, **settings)`; it
            draws other random numbers for each worker and each life.
          settings: further arguments of the maker.
        """
        self._number, self._life = number, life
        self._maker, self._settings = maker, settings
        self._using = threading.Lock()
        self._ended = False
        self._envs: list[BatchedEnvironment] = []
        self._played: set[int] = set()
        self._begun_at = time.monotonic()
        # Seconds of the calls that are over, and when the present one began: together, as `beat` reads them beside it.
        self._busy: tuple[float, float | None] = (0.0, None)
        self._steps = 0

    def begin(self) -> dict[str, Any]:
        """Makes the environments; called again it only answers.

        Returns:
          `environments`, N; `layout`, see `layout_of`; `used_bindings` of gin, which they are made by; and what `beat` tells.

        Raises:
          ValueError: there are none, or they have specs that cannot cross.
          Exception: whatever they fail with.
        """
        with self._in_use():
            if not self._envs:
                self._envs = list(resolve(self._maker)(number=self._number, life=self._life, **self._settings))
                if not self._envs:
                    raise ValueError(f"{self._maker} has made no environments: it must return a list of at least one.")
                for i, env in enumerate(self._envs):
                    env.first_env_id = (self._number * len(self._envs) + i) * env.batch_size
                    env.before_building()
                self._begun_at = time.monotonic()
            made = {"environments": len(self._envs), "layout": layout_of(self._envs[0])}
            return {**self.beat(), **made, "used_bindings": gin_utils.used_bindings()}

    def reset(self, index: int) -> Answer:
        """Begins new episodes in an environment.

        Args:
          index: of the environment, below N.

        Raises:
          Exception: whatever it fails with.
        """
        with self._in_use():
            env = self._envs[index]
            if index not in self._played:
                self._played.add(index)
                env.after_building()
            return self._answer(env, env.reset)

    def step(self, index: int, action: Sequence[np.ndarray]) -> Answer:
        """Steps an environment.

        Args:
          index: as of `reset`.
          action: the leaves [B, ...] of the action.

        Raises:
          Exception: whatever it fails with.
        """
        with self._in_use():
            env = self._envs[index]
            # Environments may write to their actions: over Ray no array may be written to, in one process they are the learner's.
            packed = tf.nest.pack_sequence_as(env.action_spec(), [np.array(leaf) for leaf in action])
            return self._answer(env, lambda: env.step(packed))

    def enter_phase(self, index: int, phase: str) -> None:
        """Tells an environment what it is used for; see `BatchedEnvironment.enter_phase`."""
        with self._in_use():
            self._envs[index].enter_phase(phase)

    def _answer(self, env: BatchedEnvironment, play: Callable[[], TimeStep]) -> Answer:
        self._busy = self._busy[0], time.monotonic()
        try:
            time_step = play()
        finally:
            self._busy = self._busy_secs(time.monotonic()), None
        self._steps += env.batch_size
        numbers = [np.asarray(x) for x in (time_step.step_type, time_step.reward, time_step.discount)]
        leaves = map(np.asarray, tf.nest.flatten(time_step.observation))
        return [*numbers, *leaves], env.restarts, env.cuts

    def _busy_secs(self, now: float) -> float:
        secs, since = self._busy
        return secs if since is None else secs + now - since

    def beat(self) -> dict[str, Any]:
        """A sign of life: `pid`, `host`, `steps` and `timings`.

        One environment is stepped at a time. While none is, all of them wait for the learner.
        """
        envs, now = max(1, len(self._envs)), time.monotonic()
        busy = self._busy_secs(now)
        idle = max(0.0, now - self._begun_at - busy)
        timings = Timings(environment=busy, waiting_for_learner=idle * envs, threads=envs)
        return {**place(), "steps": self._steps, "timings": timings._asdict()}

    def end(self) -> None:
        """Closes the environments, in bounded time; any number of times."""
        self._ended = True
        if not self._using.acquire(timeout=_END_SECS):
            logging.warning("Worker %d leaves its environments to the end of its process: one is busy.", self._number)
            return
        try:
            self._close()
        finally:
            self._using.release()

    def _close(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs:
            try:
                env.close()
            except Exception as e:
                logging.warning("An environment did not close: %s: %s", type(e).__name__, e)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._using:
            if self._ended:
                raise RuntimeError(f"Worker {self._number} (life {self._life}) was ended.")
            try:
                yield
            finally:
                # Whoever ended it meanwhile may not have waited.
                if self._ended:
                    self._close()
