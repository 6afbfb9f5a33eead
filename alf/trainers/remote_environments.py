"""Workers of a run that only step environments: what the learner tells them, and what they make of it."""

from __future__ import annotations

from typing import Any

from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.remote_evaluator import RemoteEvaluator
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers import remote
from alf.trainers.config import TrainerConfig
from alf.trainers.remote_evaluation import make_evaluator
from alf.trainers.run_environments import create_training_environment

MAKER = "alf.trainers.remote_environments:make_environments"


def make_pool(config: TrainerConfig, random_seed: int, place: tuple[int, int]) -> EnvironmentPool:
    """The workers of a run with `central_inference`, not started yet; arguments and errors as of `remote.make_pool`."""
    settings = remote.worker_settings(config, random_seed, place)
    engine = remote.make_engine(config)
    try:
        return EnvironmentPool(engine, config.num_workers, config.num_envs, MAKER, settings)
    except BaseException:
        engine.stop()
        raise


def start_evaluator(
    pool: EnvironmentPool, config: TrainerConfig, random_seed: int, place: tuple[int, int], rows: int
) -> RemoteEvaluator:
    """One more worker of `pool`, which plays the evaluations.

    Args:
      pool: of the run.
      config, random_seed, place: as of `remote.make_pool`.
      rows: environments that it steps together.
    """
    settings = remote.worker_settings(config, random_seed, place)
    return pool.start_evaluator(lambda engine: make_evaluator(engine, config, settings, rows))


def make_environments(number: int, life: int, **learners: Any) -> list[BatchedEnvironment]:
    """Makes the environments of a worker.

    Args:
      number: of the worker.
      life: how many of this number came before.
      learners: see `remote.configured`.

    Raises:
      GinConfigError: the configuration cannot be taken over.
      Exception: whatever the environments fail with.
    """
    envs: list[BatchedEnvironment] = []
    with remote.configured(number, life, **learners) as (config, seeds):
        try:
            for seed in seeds.environments.spawn(config.num_envs):
                envs.append(create_training_environment(random_seed=seed))
        except BaseException:
            for env in envs:
                env.close()
            raise
    return envs
