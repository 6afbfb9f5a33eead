"""Whether networks take and give what an algorithm needs of them, told when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.networks.network import Network

from alf.data_structures import Nest


def number_of_actions(spec: Any) -> int:
    """How many values a component of a discrete action has, by its bounded spec."""
    return int(np.max(spec.maximum) - np.min(spec.minimum)) + 1


def build_network(network: Any) -> Any:
    """`network`, or what it makes if it is a function, with its variables created.

    Raises:
      ValueError: that is no network of TF-Agents' kind, or it does not work.
    """
    built = network() if callable(network) and not isinstance(network, tf.Module) else network
    if not isinstance(built, Network):
        raise ValueError(
            f"A network of TF-Agents' kind is needed, got {built!r}: make one, such as @QNetwork(), or of Keras layers "
            "tf_agents.networks.sequential.Sequential(layers, input_spec)."
        )
    try:
        built.create_variables()
    except (TypeError, ValueError) as e:
        raise ValueError(
            f"{type(built).__name__} {built.name!r} fails at its first call: {str(e).rstrip('.')}. Its call(inputs, step_type, "
            "network_state) has to give the pair (output, network_state)."
        ) from e
    return built


def check_output(name: str, network: Any, needed: str, shapes: Sequence[Sequence[int | None]] | None) -> None:
    """Refuses a network by what it gives.

    Args:
      name: of the algorithm.
      network: of TF-Agents' kind.
      needed: what the algorithm needs, in words, with an example.
      shapes: of its outputs for a row, in the order of their nest, None for any size; None for distributions.

    Raises:
      ValueError: it gives something else.
    """
    given = tf.nest.flatten(network.create_variables())
    draws = not all(isinstance(spec, tf.TypeSpec) for spec in given)
    if draws or shapes is None:
        right = draws and shapes is None
    else:
        right = len(given) == len(shapes) and all(
            spec.shape.is_compatible_with(shape) for spec, shape in zip(given, shapes, strict=True)
        )
    if not right:
        told = "distributions" if draws else f"values of shape {', '.join(str(spec.shape) for spec in given)}"
        raise ValueError(f"{name} needs {needed}; {network.name} gives {told} for each row.")


def check_draws(name: str, actor: Any) -> None:
    """Refuses, as `check_output` does, an actor that gives no distributions of actions."""
    check_output(name, actor, "an actor that gives distributions, such as ActorDistributionNetwork", None)


def check_judges_all(name: str, network: Any, action_spec: Any) -> None:
    """Refuses, as `check_output` does, what does not give the values of all discrete actions, [B, number of actions]."""
    count = number_of_actions(action_spec)
    needed = f"a network that gives the value of each of the {count} actions, such as QNetwork"
    check_output(name, network, needed, [[count]])


def check_critic(name: str, critic: Any, action_spec: Nest) -> None:
    """Refuses a critic that does not judge actions of this kind: continuous ones one at a time, of discrete ones all.

    Args:
      name: of the algorithm.
      critic: of TF-Agents' kind.
      action_spec: spec of one discrete action, or nest of specs of continuous ones.

    Raises:
      ValueError: it takes or gives something else.
    """
    takes, actions = critic.input_tensor_spec, tf.nest.flatten(action_spec)
    pair = isinstance(takes, (list, tuple)) and len(takes) == 2
    if actions[0].dtype.is_integer:
        kind, right = "discrete", "observations, which gives the value of each action, such as QNetwork"
        wrong = pair and _alike(tf.nest.flatten(takes[1]), actions)
    else:
        kind, right = "continuous", "(observation, action), such as CriticNetwork"
        wrong = takes is not None and not pair
    if wrong:
        shapes = tf.nest.map_structure(lambda spec: spec.shape.as_list(), takes)
        raise ValueError(
            f"{name} with {kind} actions needs a critic of {right}; got {type(critic).__name__} of inputs {shapes}."
        )
    if kind == "discrete":
        check_judges_all(name, critic, actions[0])
    else:
        check_output(name, critic, "a critic that gives one value, [B], such as CriticNetwork", [[]])


def _alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return [(spec.shape, spec.dtype) for spec in some] == [(spec.shape, spec.dtype) for spec in others]
