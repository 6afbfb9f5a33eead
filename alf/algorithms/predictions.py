"""What the networks of an algorithm say of observations, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
import tensorflow_probability as tfp

from alf.data_structures import ActionTimeStep, Nest, StepType
from alf.utils import nest_utils, rng
from alf.utils.common import reset_state_at_first, zeros_from_spec

if TYPE_CHECKING:
    from alf.algorithms.rl_algorithm import RLAlgorithm


def get_predictions(
    algorithm: RLAlgorithm,
    observations: Nest,
    kind: str,
    state: Nest = None,
    step_type: tf.Tensor | None = None,
) -> tf.Tensor:
    """The one output of an algorithm's networks that is called `kind`.

    Args:
      algorithm: with the weights that are asked.
      observations: nest of [B, ...], as the environment gives them.
      kind: what is asked for: "value", "q_values", "action_probabilities" or "embedding", as far as the algorithm has
        them. Where it has several of a kind, they are called "q_values/0", "q_values/1" and so on.
      state: nest as `train_state_spec` [B, ...], the recurrent state before the step; zeros by default.
      step_type: int32 [B]; FIRST by default, at which the state counts as zero.

    Returns:
      float32: V [B], Q [B] of an action or [B, number of actions], probabilities [B, ..., number of actions], embeddings
      [B, ...].

    Raises:
      ValueError: there is no output of this kind, or there are several; the message names what there is.
    """
    observations = tf.nest.map_structure(tf.convert_to_tensor, observations)
    rows = nest_utils.get_nest_batch_size(observations)
    time_step = zeros_from_spec(algorithm.time_step_spec, rows)._replace(
        observation=observations,
        step_type=tf.fill([rows], int(StepType.FIRST)) if step_type is None else tf.convert_to_tensor(step_type),
    )
    if state is None:
        state = zeros_from_spec(algorithm.train_state_spec, rows)
    return _the_only(kind, _outputs(algorithm, time_step, state), algorithm.name)


def _outputs(algorithm: RLAlgorithm, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
    # What is drawn on the way, such as an action, must take no number from anybody's stream.
    with rng.scope(tf.zeros([2], tf.int32)):
        return algorithm.outputs(
            algorithm.transform_timestep(time_step), reset_state_at_first(state, time_step.step_type)
        )


def _the_only(kind: str, outputs: dict[str, tf.Tensor], name: str) -> tf.Tensor:
    found = [key for key in outputs if key == kind or key.startswith(f"{kind}/")]
    if len(found) != 1:
        said = f"has several outputs of the kind {kind!r}" if found else f"has no output of the kind {kind!r}"
        raise ValueError(f"{name} {said}; ask for one of {sorted(outputs)}.")
    return outputs[found[0]]


def outputs_of(info: Nest) -> dict[str, tf.Tensor]:
    """What the info of a step tells of values and choices.

    Args:
      info: with distributions; of it count the fields `value` and `action_distribution`.

    Returns:
      "value" [B], and "action_probabilities" [B, ..., number of values] for a choice; numbered where there are several.
    """
    found = nest_utils.find_field(info, "action_distribution")
    choices = [d for d in tf.nest.flatten(found) if isinstance(d, tfp.distributions.Categorical)]
    values = tf.nest.flatten(nest_utils.find_field(info, "value"))
    return several("value", values) | several("action_probabilities", [d.probs_parameter() for d in choices])


def several(kind: str, tensors: list[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Tensors of a kind by name: by that of the kind if there is one, else numbered."""
    if len(tensors) == 1:
        return {kind: tensors[0]}
    return {f"{kind}/{i}": tensor for i, tensor in enumerate(tensors)}
