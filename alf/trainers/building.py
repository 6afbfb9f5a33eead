"""From a configuration to an algorithm, for training and for play."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec
from tf_agents.specs.array_spec import BoundedArraySpec

from alf.algorithms.contracts import check_predict
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import check_constructor
from alf.drivers.idle_driver import IdleDriver
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.one_hot import HOW_TO_SHOW_NUMBERS
from alf.environments.spaces import without_numbers
from alf.trainers.config import TrainerConfig
from alf.utils import common, mixed_precision

_Part = TypeVar("_Part")

_ONE_CHOICE = (
    "A network of the values of actions, such as QNetwork, takes one discrete choice at a time, got {}: use PPO, with "
    "MultiCategoricalProjectionNetwork where the choices have different numbers of values."
)
# TF-Agents' words, and what a user of alf can do.
_OF_ACTIONS = {
    "Bounds on discrete actions must be the same": (
        "The components of an action have different numbers of values, {}, which the network that "
        "CategoricalProjectionNetwork is part of does not take: import alf.networks.multi_categorical_projection_network "
        "and bind its discrete_projection_net = @MultiCategoricalProjectionNetwork."
    ),
    "Only float actions are supported by this network": (
        "Deterministic actors, as of DDPG, TD3 and SARSA, need continuous actions, got {}: use SAC, DQN or PPO."
    ),
    "Only a single action is supported": (
        "TF-Agents' ActorNetwork and CriticNetwork take actions of one part, got {}: use PPO, or SAC with the "
        "CriticNetwork of alf.networks."
    ),
    "Network only supports action_specs with shape": _ONE_CHOICE,
    "Network only supports action_specs with a single action": _ONE_CHOICE,
    "Event size of `scale`": (
        "NormalProjectionNetwork takes actions of one axis where the deviation depends on what is seen, and "
        "TanhNormalProjectionNetwork always, got {}: bind NormalProjectionNetwork.state_dependent_std = False, or give the "
        "actions of the environment one axis."
    ),
}
# TF-Agents' words, and Keras'.
_NOT_JOINED = ("preprocessing_combiner layer is required", "Only a single observation is supported", "layer 'flatten")
_OTHER_PARTS = ("structure", "shallow_tree")


def build_algorithm(config: TrainerConfig, env: BatchedEnvironment) -> OffPolicyAlgorithm:
    """The algorithm of `config` for the specs of `env`, which becomes the one that gin's spec functions speak of.

    Raises:
      ValueError: no algorithm is set, or what it is made of does not fit the specs.
    """
    mixed_precision.use(config.mixed_precision)
    common.set_global_env(env)
    told = without_numbers(env.observation_spec())
    if told is not None:
        raise ValueError(told)
    _tell_of_numbers(env.observation_spec())
    ctor = algorithm_ctor(config)
    with _in_our_words(env):
        algorithm = ctor(
            observation_spec=tensor_spec.from_spec(env.observation_spec()),
            action_spec=tensor_spec.from_spec(env.action_spec()),
            debug_summaries=config.debug_summaries,
        )
    check_predict(type(algorithm).__name__, algorithm.predict)
    algorithm.use_rollout_state = config.use_rollout_state
    algorithm.burn_in_length = config.burn_in_length
    # What the algorithm, or one inside of it, was made to report stays so.
    algorithm.set_summary_settings(
        summarize_grads_and_vars=config.summarize_grads_and_vars or None,
        summarize_action_distributions=config.summarize_action_distributions or None,
    )
    with _in_our_words(env):
        algorithm.acting_variables()  # the first to run networks that are built without being run
    return algorithm


def _tell_of_numbers(spec: Any) -> None:
    """Warns of an observation that is one of several whole numbers, or consists of them, as those of Discrete spaces."""
    if (
        not isinstance(spec, BoundedArraySpec)
        or spec.dtype != np.int64
        or not common.is_bounded(spec.minimum, spec.maximum)
    ):
        return
    # Of two numbers a network learns as much as of a vector.
    if np.any(spec.maximum > spec.minimum + 1):
        numbers = f"{np.min(spec.minimum)} to {np.max(spec.maximum)}"
        logging.warning(
            "Networks take the numbers of the observation, %s, for quantities: %s.", numbers, HOW_TO_SHOW_NUMBERS
        )


@contextlib.contextmanager
def _in_our_words(env: BatchedEnvironment) -> Iterator[None]:
    """Turns errors of libraries that come from the specs of `env` into a ValueError that says what to do."""
    try:
        yield
    except (ValueError, LookupError, AttributeError) as error:
        told = _what_to_do(error, env)
        if told is None:
            raise
        raise ValueError(told) from error


def _what_to_do(error: Exception, env: BatchedEnvironment) -> str | None:
    """What to do about an error that comes from the specs of `env`; None of another one."""
    text, spec = str(error), env.observation_spec()
    for theirs, ours in _OF_ACTIONS.items():
        if theirs in text:
            return ours.format(env.action_spec())
    actions = env.action_spec()
    if isinstance(error, IndexError) and any(0 in leaf.shape for leaf in tf.nest.flatten(actions)):
        return f"The action has a part without numbers, got {actions}: have the environment leave it out."
    if not tf.nest.is_nested(spec):
        return None
    parts = list(spec) if isinstance(spec, Mapping) else list(range(len(spec)))
    # Keras' Concatenate takes a list, and asks a dict for its part 0.
    of_combiner = isinstance(error, LookupError) and "layer 'EncodingNetwork" in text
    if of_combiner or any(words in text for words in _NOT_JOINED):
        return (
            f"The observation has the parts {parts}, which each network must join: import alf.networks.combining and bind its "
            "preprocessing_combiner = @FlattenAndConcatenate() (observation_preprocessing_combiner of a CriticNetwork; "
            "ActorNetwork and CriticNetwork must be those of alf.networks; for ActorRnnNetwork and CriticRnnNetwork, which have "
            "none, the encoding_network of an Agent joins them)."
        )
    if isinstance(error, LookupError) or any(words in text for words in _OTHER_PARTS):
        return f"The observation has the parts {parts}, and a transformer or a network is made for others: {text}"
    return None


def algorithm_ctor(config: TrainerConfig) -> Callable[..., OffPolicyAlgorithm]:
    """What makes the algorithm; ValueError when nothing is set that could."""
    if not callable(config.algorithm_ctor):
        state = "is not set" if config.algorithm_ctor is None else f"is {config.algorithm_ctor!r}"
        raise ValueError(f"TrainerConfig.algorithm_ctor {state}: bind it to an algorithm, such as @Agent.")
    check_constructor("TrainerConfig.algorithm_ctor", config.algorithm_ctor)
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


def refuse_offline(config: TrainerConfig, trainer: str) -> None:
    """Raises ValueError where nothing is to be collected, which is what the trainer of this name does."""
    if not config.unroll_length:
        raise ValueError(
            f"TrainerConfig.unroll_length=0 collects nothing, and {trainer} learns from what it collects: set "
            "TrainerConfig.trainer = @sync_off_policy_trainer."
        )


def tell_of_one_environment(config: TrainerConfig) -> None:
    """As `tell_of_no_effect`, of `num_envs` where a trainer has one batched environment."""
    why = (
        "A trainer that collects in turns steps one batched environment of create_environment.num_parallel_environments"
    )
    tell_of_no_effect(config, ["num_envs"], why, "async_off_policy_trainer")


def check_workers(config: TrainerConfig, trainer: str, takes_workers: bool) -> None:
    """Raises ValueError where a run asks for workers of a `trainer` that takes none."""
    if config.num_workers and not takes_workers:
        raise ValueError(
            f"TrainerConfig.num_workers={config.num_workers} is for @async_off_policy_trainer: {trainer} "
            "collects in its own process only; set num_workers to 0, or take that trainer."
        )


def idle_driver(config: TrainerConfig, envs: Sequence[BatchedEnvironment], algorithm: OffPolicyAlgorithm) -> IdleDriver:
    """The driver of an algorithm that takes no action, which owns `envs`; ValueError where workers should collect."""
    if config.num_workers:
        raise ValueError(
            f"{type(algorithm).__name__} takes no action, so workers would have nothing to do: set "
            "TrainerConfig.num_workers to 0."
        )
    return IdleDriver(envs, algorithm)


def made(part: _Part | None, name: str) -> _Part:
    """`part` of a trainer; raises RuntimeError where it has not been made yet."""
    if part is None:
        raise RuntimeError(f"The trainer has no {name} yet: call its initialize() first, as train() does by itself.")
    return part
