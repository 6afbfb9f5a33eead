"""The environments that a run trains and is evaluated in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import numpy as np

from alf.drivers.arguments import closed_if_it_fails
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.utils import create_environment
from alf.trainers.counts import Count, EnvironmentEpisodes
from alf.trainers.phases import Phase

_MOST_EVALUATION_ROWS = 10


@gin.configurable("_create_environment", module="alf.trainers.Trainer")
def create_training_environment(
    nonparallel: bool = False, random_seed: Any = None, register: bool = True
) -> BatchedEnvironment:
    """Makes a batched environment, of a single row with `nonparallel`; `register` is accepted and has no effect."""
    del register
    return create_environment(nonparallel=nonparallel, seed=random_seed)


def evaluation_rows(count: Count, batch_size: int) -> int:
    """How many environments play side by side, since a step of a batch costs little more than one of a single row.

    Args:
      count: what is to be played; only episodes can be.
      batch_size: of the environments that a run trains in: evaluation has no more of them.
    """
    episodes = int(count.value) if isinstance(count, EnvironmentEpisodes) else 1
    return min(episodes, batch_size, _MOST_EVALUATION_ROWS)


def create_evaluation_environment(
    rows: int,
    random_seed: np.random.SeedSequence,
    create: Callable[..., BatchedEnvironment] = create_training_environment,
) -> BatchedEnvironment:
    """Makes an environment to evaluate in, which waits for what acts in it, an `Evaluator`, to be built.

    Args:
      rows: B.
      random_seed: of the environment.
      create: makes that of a single row; as `create_training_environment`.
    """
    if rows <= 1:
        env = create(nonparallel=True, random_seed=random_seed)
    else:
        env = create_environment(num_parallel_environments=rows, seed=random_seed)
    with closed_if_it_fails([env]):
        env.enter_phase(Phase.TEST.value)
        env.before_building()
    return env
