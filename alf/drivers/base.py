"""What all drivers share: the algorithm, metrics, observers, the checks of environment against algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.environments import tf_py_environment
from tf_agents.specs import tensor_spec

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.environments.batched_environment import BatchedEnvironment
from alf.metrics.metrics import AverageEpisodeLengthMetric, AverageReturnMetric, EnvironmentSteps, NumberOfEpisodes
from alf.metrics.time_shares import Timings


def batched(env: Any) -> BatchedEnvironment:
    """The batched Python environment behind `env`, which may be wrapped for TensorFlow.

    Raises:
      ValueError: it is not batched.
    """
    if isinstance(env, tf_py_environment.TFPyEnvironment):
        env = env.pyenv
    if not getattr(env, "batched", False):
        raise ValueError(
            f"{type(env).__name__} is not a batched environment: make one with alf.environments.create_environment."
        )
    return env


def restarts(env: Any) -> int:
    """How often `env` was rebuilt after it failed; 0 for a batched environment that is not of alf."""
    return env.restarts if isinstance(env, BatchedEnvironment) else 0


def cuts(env: Any) -> int:
    """See `BatchedEnvironment.cuts`; 0 for a batched environment that is not of alf."""
    return env.cuts if isinstance(env, BatchedEnvironment) else 0


# How often episodes are cut in a row before they are not waited for any more.
MOST_CUTS = 100


def waited_until(env: Any) -> float:
    """See `BatchedEnvironment.waited_until`; 0 for a batched environment that is not of alf."""
    return env.waited_until if isinstance(env, BatchedEnvironment) else 0.0


def check_env(env: BatchedEnvironment, algorithm: RLAlgorithm, name: str = "The environment") -> None:
    """Raises ValueError when the specs of an environment are not those that the algorithm was built for."""
    for what, of_env, of_algorithm, describe in (
        ("observation", env.observation_spec(), algorithm.observation_spec, _shape),
        ("action", env.action_spec(), algorithm.action_spec, _bounds),
    ):
        mine, theirs = (tf.nest.map_structure(describe, tensor_spec.from_spec(spec)) for spec in (of_env, of_algorithm))
        if mine != theirs:
            raise ValueError(
                f"{name} has {what} spec {mine} and the algorithm was built for {theirs}: build it from this environment's specs."
            )


def _shape(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name}{spec.shape.as_list()}"


def _bounds(spec: tf.TensorSpec) -> str:
    """Bounds too: within others, some actions would never be taken, or be none."""
    if not isinstance(spec, tensor_spec.BoundedTensorSpec) or not spec.shape.num_elements():
        return _shape(spec)
    low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    return f"{_shape(spec)} within {_short(low)} to {_short(high)}"


def _short(bound: np.ndarray) -> Any:
    return bound.flat[0].item() if (bound == bound.flat[0]).all() else bound.tolist()


_OBJECTS = {
    "metrics": "a metric is an object with a name and a result()",
    "observers": "an observer is an object or a function",
}


def _called(given: Any, what: str) -> list[Callable[..., Any]]:
    """What is to be called with trajectories, as a list; raises ValueError where something in it cannot be."""
    if given is None:
        return []
    if callable(given) or not isinstance(given, Sequence):
        raise ValueError(f"{what} must be a list of what is called with trajectories, or None; got {given!r}.")
    for i, one in enumerate(given):
        if isinstance(one, type):
            raise ValueError(
                f"{what} of a driver has the class {one.__name__}: {_OBJECTS[what]}, in gin made by @name(), with parentheses."
            )
        if not callable(one):
            raise ValueError(f"{what}[{i}] is called with trajectories, and {one!r} cannot be.")
    return list(given)


class Driver:
    """Moves data between environments, an algorithm, metrics and observers."""

    def __init__(
        self,
        algorithm: RLAlgorithm,
        num_envs: int,
        batch_size: int,
        observers: Sequence[Callable[..., Any]] | None,
        metrics: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self._algorithm = algorithm
        self._observers = _called(observers, "observers")
        standard: list[Any] = [
            NumberOfEpisodes(),
            EnvironmentSteps(),
            AverageReturnMetric(num_envs=num_envs, env_batch_size=batch_size),
            AverageEpisodeLengthMetric(num_envs=num_envs, env_batch_size=batch_size),
        ]
        self._metrics: list[Any] = [*standard, *_called(metrics, "metrics")]
        self._restarts_before = 0.0
        self._timings_before = Timings()

    @property
    def algorithm(self) -> RLAlgorithm:
        """The algorithm that acts."""
        return self._algorithm

    @property
    def observers(self) -> list[Callable[..., Any]]:
        """Called with every trajectory."""
        return self._observers

    def get_step_metrics(self) -> list[Any]:
        """Number of episodes and environment steps."""
        return self._metrics[:2]

    def get_metrics(self) -> list[Any]:
        """Episodes, environment steps, average return, average episode length, then the user's."""
        return list(self._metrics)

    def stats(self) -> dict[str, float]:
        """Scalars about the driver itself; empty where there is nothing to say."""
        return {}

    def timings(self) -> Timings | None:
        """What the time went to so far; None where it is not measured."""
        return None

    def lag_histogram(self) -> np.ndarray | None:
        """int64 [n]: how many acting steps had lag 0, 1, ..., n-1 (the last: n-1 or more); None where there is no lag."""
        return None

    @property
    def reproducible(self) -> bool:
        """Whether what is collected follows from the seeds alone, whatever the speed of the machine."""
        return True

    def adopt(self, previous: Driver) -> None:
        """Goes on counting with the metrics and observers of a driver that has stopped; to be called before `start`."""
        self._metrics, self._observers = previous._metrics, previous._observers
        self._restarts_before = previous.stats().get("restarts", 0.0)
        self._timings_before = previous.timings() or Timings()

    def start(self) -> None:
        """Starts what the driver runs in the background."""

    def catch_up(self) -> None:
        """Waits until metrics and observers have got all that the learner took; to be called by the learner."""

    def stop(self) -> None:
        """Ends it and closes the environments; may be called any number of times."""
