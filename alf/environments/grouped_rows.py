"""A batched environment of single agents as one with several agents, which share what they learn and never meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.environments.agents import DISCOUNT, OBSERVATION, REWARD, STEP_TYPE
from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.batched_environment import BatchedEnvironment


@gin.configurable(module="alf.environments.wrappers")
class GroupedRows(BatchWrapper):
    """K neighbouring rows of a batch as the agents of one environment; what a crowd of them costs is measured so.

    With one agent the step type of the environment is that of its row. Several end and begin their episodes each at its
    own time, and the environment's own episode never ends.
    """

    def __init__(self, env: BatchedEnvironment, count: int = 1, behavior: str = "agent") -> None:
        """Wraps `env`, which is closed with this.

        Args:
          env: B * K single agents.
          count: K.
          behavior: name of the behavior of all.

        Raises:
          ValueError: the rows of `env` are no multiple of K.
        """
        super().__init__(env)
        if count < 1 or env.batch_size % count:
            raise ValueError(f"{env.batch_size} rows do not make groups of count={count}: choose a divisor.")
        self._count = count
        self._behavior = behavior

    @property
    def batch_size(self) -> int:
        """B."""
        return self._env.batch_size // self._count

    @property
    def successes(self) -> np.ndarray | None:
        """That of the row, where there is one agent."""
        return self._env.successes if self._count == 1 else None

    @property
    def lives(self) -> np.ndarray | None:
        """Those of the row, where there is one agent."""
        return self._env.lives if self._count == 1 else None

    def observation_spec(self) -> Any:
        """Of K agents of one behavior."""
        k = (self._count,)
        fields = {
            STEP_TYPE: array_spec.BoundedArraySpec(k, np.int32, 0, 2, STEP_TYPE),
            REWARD: array_spec.ArraySpec(k, np.float32, REWARD),
            DISCOUNT: array_spec.BoundedArraySpec(k, np.float32, 0.0, 1.0, DISCOUNT),
            OBSERVATION: self._stacked(self._env.observation_spec()),
        }
        return {self._behavior: fields}

    def action_spec(self) -> Any:
        """Of K agents of one behavior."""
        return {self._behavior: self._stacked(self._env.action_spec())}

    def _stacked(self, spec: Any) -> Any:
        def stack(leaf: Any) -> Any:
            shape = (self._count, *leaf.shape)
            if not isinstance(leaf, array_spec.BoundedArraySpec):
                return array_spec.ArraySpec(shape, leaf.dtype, leaf.name)
            low, high = (np.broadcast_to(bound, leaf.shape)[np.newaxis] for bound in (leaf.minimum, leaf.maximum))
            return array_spec.BoundedArraySpec(
                shape, leaf.dtype, np.broadcast_to(low, shape), np.broadcast_to(high, shape), leaf.name
            )

        return tf.nest.map_structure(stack, spec)

    def _reset(self) -> ts.TimeStep:
        return self._grouped(self._env.reset(), ts.StepType.FIRST)

    def _step(self, action: Any) -> ts.TimeStep:
        rows = _map(lambda a: np.reshape(a, (-1, *a.shape[2:])), action[self._behavior])
        return self._grouped(self._env.step(rows), ts.StepType.MID)

    def _grouped(self, rows: ts.TimeStep, step_type: np.ndarray) -> ts.TimeStep:
        groups = (self.batch_size, self._count)
        reward = rows.reward.reshape(groups)
        fields = {
            STEP_TYPE: rows.step_type.reshape(groups),
            REWARD: reward,
            DISCOUNT: rows.discount.reshape(groups),
            OBSERVATION: _map(lambda x: x.reshape(*groups, *x.shape[1:]), rows.observation),
        }
        observation = {self._behavior: fields}
        if self._count == 1:
            return ts.TimeStep(rows.step_type, rows.reward, rows.discount, observation)
        return ts.TimeStep(
            np.full(groups[0], step_type, np.int32), reward.sum(1), np.ones(groups[0], np.float32), observation
        )


def _map(function: Callable[[np.ndarray], np.ndarray], nest: Any) -> Any:
    """`tf.nest.map_structure`, which takes as long as half a step of CartPole, where there is a structure."""
    return function(nest) if isinstance(nest, np.ndarray) else tf.nest.map_structure(function, nest)
