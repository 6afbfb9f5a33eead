"""What the networks of an algorithm say of observations, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
      observations: as the environment gives them: a nest of [B, ...]; or one, without the axis B; or a list of B of them.
        Fields that the algorithm does not observe are left out.
      kind: what is asked for: "value", "q_values", "action_probabilities" or "embedding", as far as the algorithm has
        them. Where it has several of a kind, they are called "q_values/0", "q_values/1" and so on.
      state: nest as `train_state_spec` [B, ...], the recurrent state before the step; zeros by default. Of one observation
        it has no axis B, as with `step_type` and the result.
      step_type: int32 [B]; by default MID where a state is given, else FIRST, at which the state counts as zero.

    Returns:
      float32: V [B], Q [B] of an action or [B, number of actions], probabilities [B, ..., number of actions], embeddings
      [B, ...].

    Raises:
      ValueError: observations have not all that is observed, or other shapes; or there is no output of this kind, or there
        are several; the message names what there is.
    """
    rows, one = _batch_of(observations, algorithm.observation_spec, algorithm.name)
    if one:
        state, step_type = (None if x is None else _with_axis(x) for x in (state, step_type))
    count = nest_utils.get_nest_batch_size(rows)
    # A state is of what came before.
    usual = StepType.FIRST if state is None else StepType.MID
    time_step = zeros_from_spec(algorithm.time_step_spec, count)._replace(
        observation=rows,
        step_type=tf.fill([count], int(usual)) if step_type is None else tf.convert_to_tensor(step_type),
    )
    if state is None:
        state = zeros_from_spec(algorithm.train_state_spec, count)
    output = _the_only(kind, _outputs(algorithm, time_step, state), algorithm.name)
    return output[0] if one else output


def _batch_of(observations: Nest, spec: Nest, name: str) -> tuple[Nest, bool]:
    """The observed fields of observations [B, ...], however they are given, and whether it was one without an axis.

    Raises:
      ValueError: they do not fit `spec`.
    """
    fields = _observed(observations, spec)
    if not nest_utils.same_structure(fields, spec) and isinstance(observations, (list, tuple)) and observations:
        each = [_batch_of(observation, spec, name) for observation in observations]
        if all(one for _, one in each):
            return tf.nest.map_structure(lambda *x: tf.concat(x, 0), *(rows for rows, _ in each)), False
    if nest_utils.same_structure(fields, spec):
        tensors = tf.nest.map_structure(lambda x, s: tf.convert_to_tensor(x, s.dtype), fields, spec)
        pairs = list(zip(tf.nest.flatten(tensors), tf.nest.flatten(spec), strict=True))
        if all(x.shape == s.shape for x, s in pairs):
            return _with_axis(tensors), True
        if all(x.shape[1:] == s.shape and x.shape.rank for x, s in pairs):
            return tensors, False
    raise ValueError(
        f"{name} observes {_shapes(spec)}: give one such observation, a list of them, or a batch with an axis in front."
    )


def _shapes(spec: Nest) -> Any:
    """The shapes of a nest of specs as plain lists in plain dicts and tuples."""
    if isinstance(spec, Mapping):
        return {key: _shapes(part) for key, part in spec.items()}
    return tuple(map(_shapes, spec)) if isinstance(spec, (list, tuple)) else spec.shape.as_list()


def _with_axis(one: Nest) -> Nest:
    return tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[tf.newaxis], one)


def _observed(observation: Nest, spec: Nest) -> Nest:
    """What `spec` has of an observation; all of it where their structures have nothing in common."""
    if isinstance(spec, Mapping) and isinstance(observation, Mapping) and set(spec) <= set(observation):
        return {key: _observed(observation[key], part) for key, part in spec.items()}
    return observation


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
