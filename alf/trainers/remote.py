"""Workers of a run: what the learner tells them, and what they make of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import gin
import tensorflow as tf

from alf.distributed import ray_engine
from alf.distributed.engine import Engine, resolve
from alf.distributed.pool import WorkerPool
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers import seeds as run_seeds
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.trainers.phases import Phase
from alf.trainers.remote_evaluation import make_evaluator
from alf.trainers.run_environments import create_training_environment
from alf.utils.gin_text import config_text, modules_in_use, take_over

MAKER = "alf.trainers.remote:make_driver"

# What a worker does as its learner's configuration says, also where that was not said by gin.
_SETTINGS = (
    "num_envs",
    "num_workers",
    "unroll_length",
    "use_rollout_state",
    "use_tf_functions",
    "mixed_precision",
    "debug_summaries",
)
# What only a learner does. It is left out, so that nothing of it is made, or checked, in a worker.
_LEARNERS: dict[str, Any] = {
    "trainer": None,
    "num_iterations": 1,
    "num_env_steps": 0,
    "evaluate": False,
    "evaluate_beside": False,
    "evaluation_worker": False,
    "schedule": None,
    "stop_conditions": (),
    "initialize_from": None,
    "exact_resume": False,
    "samples_per_insert": None,
    "burn_in_length": 0,
    "self_play": None,
}
# Neither gin nor Keras bears being used by several threads at once, as in workers that are threads of one process.
_one_at_a_time = threading.Lock()


# ---- the learner's side ----


def make_pool(config: TrainerConfig, random_seed: int, place: tuple[int, int], evaluation_rows: int = 1) -> WorkerPool:
    """The workers of a run, not started yet.

    Args:
      config: of the run; `num_workers`, `num_envs` and `ray_address` say how many, and where.
      random_seed: of the run.
      place: where it is started or resumed: the iteration, and what an interrupted heat-up had collected.
      evaluation_rows: environments that the worker for evaluations steps together, where there is one.

    Raises:
      GinConfigError: the configuration cannot be told to other processes.
      ValueError: nor can the algorithm, Ray is not installed, or there is no such cluster.
    """
    settings = worker_settings(config, random_seed, place)
    engine = make_engine(config)
    try:
        return WorkerPool(
            engine,
            config.num_workers,
            config.num_envs,
            MAKER,
            settings,
            sync=_driver_setting("mode", "async") == "sync",
            evaluator=make_evaluator(engine, config, settings, evaluation_rows) if config.evaluation_worker else None,
        )
    except BaseException:
        engine.stop()
        raise


def make_engine(config: TrainerConfig) -> Engine:
    """What runs the workers of a run.

    Raises:
      ValueError: Ray is not installed, or there is no such cluster.
    """
    try:
        return ray_engine.RayEngine(config.ray_address)
    except (ImportError, ConnectionError, RuntimeError, ValueError) as e:
        asked = f"num_workers={config.num_workers}"
        asked += "" if config.ray_address is None else f", ray_address={config.ray_address!r}"
        raise ValueError(f"TrainerConfig.{asked}: {e}") from e


def worker_settings(config: TrainerConfig, random_seed: int, place: tuple[int, int]) -> dict[str, Any]:
    """What `make_driver` is to be called with for a run, beside the number and life of a worker.

    Args:
      config: of the run.
      random_seed: of the run.
      place: where it is started or resumed: the iteration, and what an interrupted heat-up had collected.

    Returns:
      text, numbers, and lists and dicts of these.

    Raises:
      GinConfigError: the configuration cannot be told to other processes.
      ValueError: nor can the algorithm.
    """
    return {
        "text": config_text(),
        "modules": modules_in_use(),
        "algorithm_ctor": _name_of_algorithm(config),
        "settings": {name: getattr(config, name) for name in _SETTINGS},
        "random_seed": random_seed,
        "place": list(place),
        "learner": _this_process(),
    }


def _name_of_algorithm(config: TrainerConfig) -> str | None:
    """What makes the algorithm, as "module:function"; None where gin says it."""
    ctor: Any = config.algorithm_ctor
    if gin.get_bindings(TrainerConfig).get("algorithm_ctor") is ctor:
        return None
    name = f"{getattr(ctor, '__module__', '')}:{getattr(ctor, '__qualname__', '')}"
    try:
        known = not name.startswith("__main__:") and resolve(name) is ctor
    except (ImportError, ValueError):
        known = False
    if not known:
        raise ValueError(
            f"TrainerConfig.algorithm_ctor={ctor!r} cannot be told to workers, which are other processes: bind it in gin, or "
            "give a function or class that a module has at its top level."
        )
    return name


def _this_process() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


# ---- the worker's side ----


def make_driver(number: int, life: int, **learners: Any) -> AsyncOffPolicyDriver:
    """Makes what collects in a worker: a driver that is not started yet, with environments and an algorithm of its own.

    Replay memory is none of it.

    Args:
      number: of the worker.
      life: how many of this number came before.
      learners: see `configured`.

    Raises:
      GinConfigError: the configuration cannot be taken over.
      Exception: whatever the environments or the algorithm fail with.
    """
    with configured(number, life, **learners) as (config, seeds):
        return _make_driver(config, seeds)


@contextlib.contextmanager
def configured(
    number: int,
    life: int,
    text: str,
    modules: Sequence[str],
    algorithm_ctor: str | None,
    settings: dict[str, Any],
    random_seed: int,
    place: tuple[int, int],
    learner: str,
) -> Iterator[tuple[TrainerConfig, run_seeds.Seeds]]:
    """Puts the learner's configuration in force, in which a worker makes what it needs in the block.

    What is random follows from the seed of the run, `number`, `life` and `place`, and is the same nowhere else in the run.

    Args:
      number: of the worker.
      life: how many of this number came before.
      text: the learner's configuration, see `config_text`. In the learner's own process it is in force already.
      modules: see `take_over`.
      algorithm_ctor: "module:function" of what makes the algorithm; None for what the configuration says.
      settings: of the learner's `TrainerConfig`, by name.
      random_seed: of the run.
      place: where the run was started or resumed; see `worker_settings`.
      learner: host and process number of the learner.

    Raises:
      GinConfigError: the configuration cannot be taken over.
    """
    own_process = learner != _this_process()
    seeds = run_seeds.of_worker(random_seed, number, life, *place)
    with _one_at_a_time:
        if own_process:
            take_over(text, modules)
            run_seeds.seed_process(seeds)
        given: dict[str, Any] = {} if algorithm_ctor is None else {"algorithm_ctor": resolve(algorithm_ctor)}
        config = TrainerConfig(root_dir=os.devnull, **_LEARNERS, **settings, **given)
        if own_process and not config.use_tf_functions:
            tf.config.run_functions_eagerly(True)
        yield config, seeds


def _make_driver(config: TrainerConfig, seeds: run_seeds.Seeds) -> AsyncOffPolicyDriver:
    envs: list[BatchedEnvironment] = []
    try:
        for seed in seeds.environments.spawn(config.num_envs):
            env = create_training_environment(random_seed=seed)
            envs.append(env)
            env.before_building()
        algorithm = build_algorithm(config, envs[0])
        driver = AsyncOffPolicyDriver(
            envs,
            algorithm,
            unroll_length=config.unroll_length,
            learn_queue_cap=_queue_size(config),
            observers=[],
            metrics=[],
            exp_replayer="one_time",
            max_policy_lag=None,
            random_seed=run_seeds.integer(seeds.acting),
            workers=None,
        )
        for env in envs:
            env.after_building()
            env.enter_phase(Phase.TRAIN.value)
    except BaseException:
        for env in envs:
            env.close()
        raise
    return driver


def _queue_size(config: TrainerConfig) -> int:
    """Segments in the learn queue of a worker: its share of a batch where batches are asked for, else one a thread."""
    if _driver_setting("mode", "async") == "async":
        return config.num_envs
    return max(1, int(_driver_setting("learn_queue_cap", 1)) // max(1, config.num_workers))


def _driver_setting(name: str, default: Any) -> Any:
    """A parameter of the learner's driver, by gin."""
    return gin.get_bindings(AsyncOffPolicyDriver).get(name, default)
