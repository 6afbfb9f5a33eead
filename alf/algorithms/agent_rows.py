"""The slots of a behavior as rows of a batch, [B, K, ...] as [B * K, ...], and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import array_spec, tensor_spec

from alf.data_structures import ActionTimeStep, Bootstrap, Experience, Nest, StepType
from alf.environments.agents import DISCOUNT, IDLE, OBSERVATION, REWARD, STEP_TYPE
from alf.utils.common import add_outer_dims, broadcast_mask, reset_state_at_first


def of_slots(spec: Nest, count: int) -> Nest:
    """Specs of what K slots have side by side, where each has `spec`."""
    return add_outer_dims(spec, [count])


def one_of(spec: Nest) -> Nest:
    """Specs of what one slot has, of specs [K, ...]; bounds, where there are some, are those of the first slot."""

    def first(leaf: Any) -> Any:
        if not isinstance(leaf, (array_spec.BoundedArraySpec, tensor_spec.BoundedTensorSpec)):
            return type(leaf)(leaf.shape[1:], leaf.dtype, name=leaf.name)
        low, high = (np.broadcast_to(bound, leaf.shape)[0] for bound in (leaf.minimum, leaf.maximum))
        if low.shape == (1,) and np.issubdtype(low.dtype, np.integer):  # as specs of single agents have them
            low, high = low[0], high[0]
        return type(leaf)(leaf.shape[1:], leaf.dtype, name=leaf.name, minimum=low, maximum=high)

    return tf.nest.map_structure(first, spec)


def merged(nest: Nest, axis: int) -> Nest:
    """Tensors [..., B, K, ...] as [..., B * K, ...], with B at `axis`."""

    def merge(x: tf.Tensor) -> tf.Tensor:
        shape = x.shape.as_list()
        outer = [size if size is not None else tf.shape(x)[i] for i, size in enumerate(shape[:axis])]
        return tf.reshape(x, [*outer, -1 if shape[axis] is None else shape[axis] * shape[axis + 1], *shape[axis + 2 :]])

    return tf.nest.map_structure(merge, nest)


def split(nest: Nest, count: int) -> Nest:
    """Tensors [B * K, ...] as [B, K, ...]."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, count, *x.shape[1:]]), nest)


def idle_rows(time_step: ActionTimeStep, name: str) -> tf.Tensor:
    """Which rows [B * K] of a behavior decide nothing at a time step [B] of its environments, bool."""
    return tf.equal(merged(time_step.observation[name]["step_type"], 0), IDLE)


def rows_of(time_step: ActionTimeStep, name: str, count: int, axis: int = 0) -> ActionTimeStep:
    """The time step of the rows of one behavior.

    Rows that the end of their environment's episode cuts are LAST; an idle one stays IDLE.

    Args:
      time_step: of environments with agents, [..., B, ...].
      name: of the behavior.
      count: K.
      axis: of B.
    """
    seen = time_step.observation[name]
    ended = tf.expand_dims(tf.equal(time_step.step_type, StepType.LAST), -1)
    step_type = tf.where(ended & (seen[STEP_TYPE] < StepType.LAST), StepType.LAST, seen[STEP_TYPE])
    seen = merged({**seen, STEP_TYPE: step_type}, axis)
    step_type = seen[STEP_TYPE]
    at_first = tf.equal(step_type, StepType.FIRST)
    prev_action = tf.nest.map_structure(
        lambda a: tf.where(broadcast_mask(at_first, a), tf.zeros_like(a), a),
        merged(time_step.prev_action[name], axis),
    )
    stream = tf.expand_dims(time_step.env_id, -1) * count + tf.range(count)
    return ActionTimeStep(step_type, seen[REWARD], seen[DISCOUNT], seen[OBSERVATION], prev_action, merged(stream, axis))


def cut_rows(exp: Experience, name: str) -> np.ndarray:
    """Which rows of a behavior are truncated since the episode of their environment ends, bool [Q, T, B * K].

    Args:
      exp: of environments with agents, [Q, T, B, ...].
      name: of the behavior.
    """
    seen = exp.observation[name]
    step_type, discount = (np.asarray(seen[field]) for field in (STEP_TYPE, DISCOUNT))
    open_ = (step_type < StepType.LAST) | ((step_type == StepType.LAST) & (discount > 0.0))
    cut = open_ & (np.asarray(exp.step_type) == StepType.LAST)[..., np.newaxis]
    return cut.reshape(*cut.shape[:2], -1)


def experience_of(exp: Experience, name: str, count: int, with_state: bool) -> Experience:
    """The experience of the rows of one behavior, [Q, T, B * K, ...] of [Q, T, B, ...], bootstraps alike.

    Args:
      exp: of environments with agents.
      name: of the behavior.
      count: K.
      with_state: whether it stores its states.
    """
    time_step = rows_of(ActionTimeStep(*exp[:6]), name, count, 2)
    after = exp.bootstrap
    return Experience(
        *time_step,
        action=merged(exp.action[name], 2),
        rollout_info=merged(exp.rollout_info[name], 2),
        # The driver has zeroed it where an episode of the environment begins, and knows of no agent's.
        state=reset_state_at_first(merged(exp.state[name], 2), time_step.step_type) if with_state else (),
        policy_version=merged(tf.tile(exp.policy_version[..., tf.newaxis], [1, 1, 1, count]), 2),
        bootstrap=Bootstrap(rows_of(after.time_step, name, count, 1), merged(after.state[name], 1)),
    )
