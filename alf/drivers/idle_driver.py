"""The driver of an algorithm that takes no action."""

from __future__ import annotations

from collections.abc import Sequence

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.drivers.base import Driver, check_env
from alf.environments.batched_environment import BatchedEnvironment
from alf.utils.closing import close_all


class IdleDriver(Driver):
    """Collects nothing; the environments are there for their specs only."""

    def __init__(self, envs: Sequence[BatchedEnvironment], algorithm: RLAlgorithm) -> None:
        """Creates the driver.

        Args:
          envs: owned from now on, never touched, and closed by `stop`.
          algorithm: one that does not act.

        Raises:
          ValueError: an environment does not fit the algorithm.
        """
        for i, env in enumerate(envs):
            check_env(env, algorithm, f"Environment {i}")
        super().__init__(algorithm, len(envs), envs[0].batch_size, None, None)
        self._envs = list(envs)

    def stop(self) -> None:
        """Closes the environments; may be called any number of times."""
        envs, self._envs = self._envs, []
        close_all(env.close for env in envs)
