"""From a configuration to an algorithm, for training and for play."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from absl import logging
from tf_agents.specs import tensor_spec

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.environments.batched_environment import BatchedEnvironment
from alf.trainers.config import TrainerConfig
from alf.utils import common

# TF-Agents' words.
_UNEQUAL_CHOICES = "Bounds on discrete actions must be the same"


def build_algorithm(config: TrainerConfig, env: BatchedEnvironment) -> OffPolicyAlgorithm:
    """The algorithm of `config` for the specs of `env`, which becomes the one that gin's spec functions speak of.

    Raises:
      ValueError: no algorithm is set, or what it is made of does not fit the specs.
    """
    common.set_global_env(env)
    ctor = algorithm_ctor(config)
    try:
        algorithm = ctor(
            observation_spec=tensor_spec.from_spec(env.observation_spec()),
            action_spec=tensor_spec.from_spec(env.action_spec()),
            debug_summaries=config.debug_summaries,
        )
    except ValueError as error:
        if _UNEQUAL_CHOICES not in str(error):
            raise
        raise ValueError(
            f"The components of an action have different numbers of values, {env.action_spec()}, which the network that "
            "CategoricalProjectionNetwork is part of does not take: import alf.networks.multi_categorical_projection_network "
            "and bind its discrete_projection_net = @MultiCategoricalProjectionNetwork."
        ) from error
    algorithm.use_rollout_state = config.use_rollout_state
    algorithm.burn_in_length = config.burn_in_length
    algorithm.set_summary_settings(
        summarize_grads_and_vars=config.summarize_grads_and_vars,
        summarize_action_distributions=config.summarize_action_distributions,
    )
    return algorithm


def algorithm_ctor(config: TrainerConfig) -> Callable[..., OffPolicyAlgorithm]:
    """What makes the algorithm; ValueError when nothing is set that could."""
    if not callable(config.algorithm_ctor):
        state = "is not set" if config.algorithm_ctor is None else f"is {config.algorithm_ctor!r}"
        raise ValueError(f"TrainerConfig.algorithm_ctor {state}: bind it to an algorithm, such as @Agent.")
    return config.algorithm_ctor


def tell_of_no_effect(config: TrainerConfig, names: Sequence[str], why: str, instead: str) -> None:
    """Warns of settings that are not as usual, and that a trainer does nothing with; an error in strict mode.

    Args:
      config: the settings.
      names: of the settings.
      why: what the trainer does.
      instead: what has them.

    Raises:
      ValueError: there are some, and `strict` is set.
    """
    usual = inspect.signature(TrainerConfig).parameters
    given = {name: getattr(config, name) for name in names}
    unused = ", ".join(f"{name}={value}" for name, value in given.items() if value != usual[name].default)
    if not unused:
        return
    message = f"{why}, without {unused}: {instead} has them."
    if config.strict:
        raise ValueError(message)
    logging.warning("%s", message)


def tell_of_one_environment(config: TrainerConfig) -> None:
    """As `tell_of_no_effect`, of `num_envs` where a trainer has one batched environment."""
    why = (
        "A trainer that collects in turns steps one batched environment of create_environment.num_parallel_environments"
    )
    tell_of_no_effect(config, ["num_envs"], why, "async_off_policy_trainer")
