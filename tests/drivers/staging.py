"""Brings a run into a wanted state and lets one of its parts fail exactly there, by events instead of by timing.

Two environments of two rows, segments of 4 steps, batches of 2 segments. The parts hold each other up until the queues
stand as the moment says; a thread, the director, then lets the faulty part go on, which fails.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf

from alf.algorithms.rl_algorithm import ROLLOUT
from alf.environments import create_environment
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.testing import CountingEnvironment, FaultyEnvironment
from alf.metrics.metrics import NumberOfEpisodes
from tests.awake import awake_secs
from tests.drivers.counting import CountingAlgorithm

FIRST, FULL, EMPTY, STOP = MOMENTS = ("before the first batch", "queues full", "queues empty", "during stop")
ENVIRONMENT = ("environment raises", "environment hangs", "environment hangs in reset", "worker process killed")
ROLLOUTS = ("rollout raises",)
LISTENERS = ("observer raises", "observer blocks", "metric raises")
TRAIN = "train raises"
SIGNALS = ("SIGINT", "SIGTERM")
# What ends by a limit of time and not by an exception.
HANGS = ("environment hangs", "environment hangs in reset", "observer blocks")

LIMIT_SECS = 5.0
STALL_SECS = 0.4
STOP_SECS = 1.0
UNROLL_LENGTH = 4
BATCH_SEGMENTS = 2
# Longer than anything here takes: a part that nobody lets go fails the test instead of holding it up.
_PATIENCE_SECS = 20.0


class Boom(Exception):
    """What the faulty parts raise."""


class CountingGym(gymnasium.Env):
    """Has the spaces of CountingEnvironment, for worker processes; nothing ever happens."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Stage:
    """One cell: which part fails, and when.

    Attributes:
      boom: what the faulty part raises, where it raises.
      happened: set when the fault happens, at the time `at`.
    """

    def __init__(self, part: str, moment: str) -> None:
        self.part, self.moment = part, moment
        self.boom = Boom(f"{part} {moment}")
        self.happened, self.armed, self.released = threading.Event(), threading.Event(), threading.Event()
        self.at = 0.0
        self._reached = threading.Event()
        self._driver: Any = None
        self._learner = "collecting"
        self._trained = 0
        self._heard = 0
        self._stopper: threading.Thread | None = None
        self._director: threading.Thread | None = None

    # ---- the parts ----

    def environment(self, index: int) -> BatchedEnvironment:
        """Environment 0, which feeds the learner, or 1, which fails where an environment does."""
        return StagedEnvironment(self, index)

    def algorithm(self, *specs: Any, **kwargs: Any) -> CountingAlgorithm:
        """The algorithm; arguments as a trainer gives them."""
        return StagedAlgorithm(self)

    def listener(self) -> Callable[..., None]:
        """The observer, or the metric."""

        def listen(trajectory: Any, thread: int = 0) -> None:
            self._heard += 1
            # With the third segment of the first environment the queues are empty and the learner waits.
            if self._heard == (3 if self.moment == EMPTY else 1):
                self.strike()

        return listen

    def observers(self) -> list[Callable[..., None]]:
        return [self.listener()] if self.part.startswith("observer") else []

    def metrics(self) -> list[NumberOfEpisodes]:
        return [StagedMetric(self)] if self.part.startswith("metric") else []

    # ---- what happens ----

    def strike(self, kill: Callable[[], None] | None = None) -> None:
        """The fault, once its time has come; only the first call does anything."""
        if self.happened.is_set():
            return
        self._reached.set()
        assert self.armed.wait(_PATIENCE_SECS), "the wanted state did not come"
        self._happen()
        if kill is not None:
            kill()
        elif self.part in HANGS:
            # Only now, since the parts that were held up until here have taken long too; they need a moment to go on. And it
            # is this part that has taken too long then, before the learner has waited too long for it.
            time.sleep(STALL_SECS + 0.1)
            self.at = awake_secs()  # the limit holds from here on
            self._driver._stall_timeout_secs = STALL_SECS
            self.released.wait(60)
        else:
            raise self.boom

    def _happen(self) -> None:
        self.at = awake_secs()
        self.happened.set()

    def before_step(self, index: int, steps: int) -> None:
        """Holds an environment that has made as many segments as the moment takes, until the fault has happened."""
        limit = self._segments(index)
        if limit is not None and steps >= limit * UNROLL_LENGTH:
            self._reached.set()
            assert self.happened.wait(_PATIENCE_SECS), "the wanted state did not come"

    def _segments(self, index: int) -> int | None:
        if self.moment == STOP and self.part in SIGNALS and index == 1:
            return 0  # Holds up stop() until the signal comes.
        if self.moment in (FULL, STOP) or (self.part == TRAIN and self.moment == FIRST):
            return None
        if index == 1 or (self.moment == FIRST and self.part not in LISTENERS):
            return 0
        if self.moment == FIRST:
            return 1
        if self.part == TRAIN:
            return 2 * BATCH_SEGMENTS
        return BATCH_SEGMENTS + 1 if self.part in LISTENERS else BATCH_SEGMENTS

    def while_training(self) -> None:
        """Called inside each training of the learner."""
        self._trained += 1
        self._learner = "training"
        if self.part == TRAIN:
            if self._trained == (1 if self.moment == FIRST else 2):
                self.strike()
        elif self.moment == FULL and self.part not in LISTENERS:
            assert self.happened.wait(_PATIENCE_SECS), "the wanted state did not come"
        elif self.moment == STOP:
            assert self._reached.wait(_PATIENCE_SECS), "the faulty part was not reached"
        self._learner = "collecting"

    # ---- the director ----

    def direct(self, find_driver: Callable[[], Any]) -> None:
        """Starts the director, who waits for the state that the moment asks for.

        Args:
          find_driver: returns the driver, or None as long as there is none.
        """
        self._director = threading.Thread(target=self._direct, args=(find_driver,), name="director")
        self._director.start()

    def _direct(self, find_driver: Callable[[], Any]) -> None:
        deadline, steady = awake_secs() + _PATIENCE_SECS, 0
        # A stop is for good, and waits for those that hang no longer than STOP_SECS; other states may pass.
        enough = 1 if self.moment == STOP else 5
        while steady < enough and not self.released.is_set() and awake_secs() < deadline:
            driver = find_driver()
            self._driver = driver
            steady = steady + 1 if driver is not None and self._ready(driver) else 0
            time.sleep(0.01)
            if self.moment == STOP and self.part == TRAIN and self._learner == "training" and self._trained == 2:
                self._stop_beside(driver)
        if steady < enough:
            return
        if self.part in SIGNALS:
            self._happen()
            os.kill(os.getpid(), getattr(signal, self.part))
        self.armed.set()

    def _stop_beside(self, driver: Any) -> None:
        if self._stopper is None:
            self._stopper = threading.Thread(target=driver.stop, name="stopper")
            self._stopper.start()

    def _ready(self, driver: Any) -> bool:
        learn, log = driver._queues.learn_queue, driver._queues.log_queue
        if driver._state == "new":
            return False
        if self.moment == FIRST:
            return True
        if self.moment == STOP:
            return driver._coord.should_stop()
        if self.moment == FULL:
            full = learn.size() == learn.capacity
            return full and (log.size() == log.capacity if self.part in LISTENERS else self._learner == "training")
        learner = "training" if self.part == TRAIN else "collecting"
        return self._trained > 0 and self._learner == learner and learn.size() == log.size() == 0

    def release(self) -> None:
        """Lets go whatever still hangs, and ends the director."""
        self.released.set()
        self.armed.set()
        for thread in (self._director, self._stopper):
            if thread is not None:
                thread.join(_PATIENCE_SECS)


class StagedMetric(NumberOfEpisodes):
    """Counts episodes, as long as the stage lets it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("Staged")
        self._listen = stage.listener()

    def __call__(self, trajectory: Any, env_thread_id: int = 0) -> None:
        self._listen(trajectory, env_thread_id)
        super().__call__(trajectory, env_thread_id)


class StagedEnvironment(FaultyEnvironment):
    """A counting environment, or worker processes, that the stage holds up and lets fail."""

    def __init__(self, stage: Stage, index: int) -> None:
        self._processes = stage.part == "worker process killed" and index == 1
        if self._processes:
            inner: BatchedEnvironment = create_environment(
                CountingGym, num_parallel_environments=2, vectorization="async", max_restarts=0
            )
        else:
            inner = CountingEnvironment(2, 2 * index)
        super().__init__(inner)
        self.stage, self.index = stage, index
        self.taken = 0

    @property
    def _is_faulty(self) -> bool:
        return self.index == 1 and self.stage.part in ENVIRONMENT

    def _reset(self) -> Any:
        if self._is_faulty and self.stage.part.endswith("in reset"):
            self.stage.strike()
        return super()._reset()

    def _step(self, action: Any) -> Any:
        if self._is_faulty:
            self.stage.strike(self._kill if self._processes else None)
        # Where rollout fails, environment 1 is held up by it.
        elif not (self.index == 1 and self.stage.part in ROLLOUTS):
            self.stage.before_step(self.index, self.taken)
        self.taken += 1
        return super()._step(action)

    def _kill(self) -> None:
        os.kill(self._env.env.worker_pids[0], signal.SIGKILL)  # type: ignore[attr-defined]


class StagedAlgorithm(CountingAlgorithm):
    """Acts and learns; where the stage says so, rollout fails for the rows of environment 1, or training fails."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        super().__init__(CountingEnvironment(2))

    def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
        policy_step = super().rollout(time_step, state, mode)
        if self._stage.part not in ROLLOUTS or mode != ROLLOUT:
            return policy_step
        stage = self._stage

        def check(env_id: Any) -> Any:
            if env_id.max() >= 2:
                stage.strike()
            return np.float32(0.0)

        zero = tf.numpy_function(check, [time_step.env_id], tf.float32)
        zero.set_shape([])
        action = tf.nest.map_structure(lambda a: a + tf.cast(zero, a.dtype), policy_step.action)
        return policy_step._replace(action=action)

    def train_from(self, *args: Any, **kwargs: Any) -> int:
        self._stage.while_training()
        return super().train_from(*args, **kwargs)
