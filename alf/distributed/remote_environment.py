"""Batched environments that workers step, for environment threads of the learner's process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from alf.distributed.engine import WorkerLost
from alf.distributed.environment_keeper import EnvironmentKeeper, Life
from alf.distributed.plain_specs import Layout
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.crash_isolation import RestartingEnvironment


class RemoteEnvironment(BatchedEnvironment):
    """One environment in one life of a worker, which rebuilds it when it fails; with the life it is lost for good.

    The first use waits until the worker has begun. Simulators there pause and go on by what the worker does.
    """

    def __init__(self, keeper: EnvironmentKeeper, worker: int, index: int, layout: Layout) -> None:
        """Creates the environment without waiting for the worker.

        Args:
          keeper: of the workers.
          worker: the number of its own.
          index: of the environment among those of the worker.
          layout: what it is like.
        """
        super().__init__()
        self._keeper = keeper
        self._worker = worker
        self._index = index
        self._layout = layout
        self._life: Life | None = None
        self._restarts = 0
        self._cuts = 0
        self._waiting = False
        self._waited_until = 0.0

    @property
    def batch_size(self) -> int:
        """B."""
        return self._layout.batch_size

    @property
    def frames_per_step(self) -> int:
        """That of the environment."""
        return self._layout.frames_per_step

    @property
    def restarts(self) -> int:
        """How often the worker has rebuilt it, in this life."""
        return self._restarts

    @property
    def cuts(self) -> int:
        """How often the worker has cut its episodes, in this life."""
        return self._cuts

    @property
    def waited_until(self) -> float:
        """See `BatchedEnvironment.waited_until`."""
        return time.monotonic() if self._waiting else self._waited_until

    def observation_spec(self) -> Any:
        """That of the environment."""
        return self._layout.observation_spec

    def action_spec(self) -> Any:
        """That of the environment."""
        return self._layout.action_spec

    def enter_phase(self, phase: str) -> None:
        """Tells the environment."""
        self._call("enter_phase", phase)

    def _reset(self) -> ts.TimeStep:
        return self._play("reset")

    def _step(self, action: Any) -> ts.TimeStep:
        return self._play("step", [np.asarray(leaf) for leaf in tf.nest.flatten(action)])

    def _play(self, method: str, *args: Any) -> ts.TimeStep:
        answer, self._restarts, self._cuts = self._call(method, *args)
        step_type, reward, discount, *leaves = answer
        observation = tf.nest.pack_sequence_as(self._layout.observation_spec, leaves)
        return ts.TimeStep(step_type, reward, discount, observation)

    def _call(self, method: str, *args: Any) -> Any:
        return self._keeper.call(self._worker, self._connected(), method, self._index, *args)

    def _connected(self) -> Life:
        if self._life is None:
            self._waiting = True
            try:
                self._life = self._keeper.connect(self._worker)
            finally:
                self._waited_until, self._waiting = time.monotonic(), False
        return self._life


class ReconnectingEnvironment(RestartingEnvironment):
    """An environment of a worker, over all lives of the worker.

    When the worker is lost, all open episodes are truncated and those of its next life follow, as often as that happens.
    What else the environment fails with is final: the worker has rebuilt it as often as it may.
    """

    _env: RemoteEnvironment

    def __init__(self, keeper: EnvironmentKeeper, worker: int, index: int, layout: Layout) -> None:
        """Creates the environment without waiting for the worker; arguments as of `RemoteEnvironment`."""
        self._rebuilt_there = 0
        self._cut_there = 0
        self._lost_at = 0.0
        self._worker = worker
        super().__init__(lambda seed: RemoteEnvironment(keeper, worker, index, layout))

    @property
    def restarts(self) -> int:
        """How often it was begun anew, on another life of its worker or by the worker."""
        return self._restarts + self._rebuilt_there + self._env.restarts

    @property
    def cuts(self) -> int:
        """See `BatchedEnvironment.cuts`; on this life of its worker and those before."""
        return self._restarts + self._cut_there + self._env.cuts

    @property
    def waited_until(self) -> float:
        """See `BatchedEnvironment.waited_until`."""
        return max(self._lost_at, self._env.waited_until)

    def _count_restart(self, error: BaseException) -> None:
        if not isinstance(error, WorkerLost):
            raise error
        self._lost_at = time.monotonic()
        self._restarts += 1
        self._rebuilt_there += self._env.restarts
        self._cut_there += self._env.cuts
        logging.warning(
            "Streams %d to %d of worker %d are cut, and begin anew on its next life.",
            self.first_env_id,
            self.first_env_id + self.batch_size - 1,
            self._worker,
        )
