"""Masks of actions: observations that say which actions are allowed now.

An algorithm that is given a splitter, as TF-Agents' agents are, shows its networks the observation without the mask,
and masks what they give: logits and values of forbidden actions become so low that nothing chooses them, that they have
probability 0 in float32 and get no gradient. A row that forbids everything, as environments give after the end of an
episode, counts as one that allows everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf
import tensorflow_probability as tfp

Nest = Any
Splitter = Callable[[Nest], tuple[Nest, Any]]

# exp() of it is 0, its product with 0 is 0, and sums of it stay finite.
FORBIDDEN = -1e10


@gin.configurable(module="alf")
def split_mask(observation: Nest, field: str = "mask") -> tuple[Nest, Any]:
    """Splits an observation, or its spec, into what networks see and the mask of actions.

    Args:
      observation: dict, such as {"observation": ..., "mask": ...}.
      field: the name of the mask: bool or a number, not 0 where the action is allowed, [..., number of actions].

    Returns:
      The other fields, as a dict, or as what it holds where it is one; and the mask.

    Raises:
      ValueError: there is no such field.
    """
    if not isinstance(observation, Mapping) or field not in observation:
        there = sorted(observation) if isinstance(observation, Mapping) else type(observation).__name__
        raise ValueError(
            f"The observation has no field {field!r} with a mask of actions, there is {there}: name another."
        )
    rest = {name: value for name, value in observation.items() if name != field}
    return (next(iter(rest.values())) if len(rest) == 1 else rest), observation[field]


class ActionMasks:
    """The masks in the observations of an algorithm; without a splitter there are none, and everything stays as it is."""

    def __init__(self, splitter: Splitter | None = None) -> None:
        """Takes `splitter`: from an observation, or its spec, to what networks see and the mask; see `split_mask`."""
        self._splitter = splitter

    @property
    def splitter(self) -> Splitter | None:
        """What takes the masks out of observations."""
        return self._splitter

    @property
    def present(self) -> bool:
        """Whether observations have masks."""
        return self._splitter is not None

    def observation(self, observation: Nest) -> Nest:
        """What networks see of an observation."""
        return observation if self._splitter is None else self._splitter(observation)[0]

    def allowed(self, observation: Nest, there: tf.Tensor | None = None) -> tf.Tensor | None:
        """What is allowed, bool [..., number of actions], at least one action a row; None without masks.

        Args:
          observation: of the rows.
          there: bool, which actions there are, where masks of its shape also speak of others.
        """
        if self._splitter is None:
            return None
        mask = tf.cast(self._splitter(observation)[1], tf.bool)
        if there is not None and mask.shape.rank == there.shape.rank and mask.shape[-1] == there.shape[-1]:
            return allowed_of(mask, there)
        return tf.logical_or(mask, tf.logical_not(tf.reduce_any(mask, -1, keepdims=True)))

    def values(self, values: tf.Tensor, observation: Nest) -> tf.Tensor:
        """Values of all actions [..., number of actions], those of forbidden ones lower than any."""
        allowed = self.allowed(observation)
        return values if allowed is None else forbid(values, allowed)

    def distribution(self, distribution: Any, observation: Nest) -> Any:
        """The distribution of allowed actions only.

        Args:
          distribution: a Categorical, batch shape that of the rows, or [rows, K] for actions of shape [K].
          observation: of the same rows; its mask is [rows, number of actions], or [rows, K, number of actions].

        Raises:
          ValueError: it is of another kind, or the mask of another size.
        """
        if not self.present:
            return distribution
        if not isinstance(distribution, tfp.distributions.Categorical):
            raise ValueError(
                f"Only a choice among single discrete actions can be masked, not {type(distribution).__name__}: leave out "
                "observation_and_action_constraint_splitter."
            )
        logits = distribution.logits_parameter()
        # Of several choices, smaller ones have FORBIDDEN in the place of what they do not have.
        allowed = self.allowed(observation, logits > FORBIDDEN if logits.shape.rank > 2 else None)
        logits = forbid(logits, allowed)
        return tfp.distributions.Categorical(logits=logits, dtype=distribution.dtype)


def allowed_of(mask: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    """What a mask allows of what is `there`, all bool [..., A]; all of that where it allows nothing."""
    mask = tf.logical_and(mask, there)
    return tf.where(tf.reduce_any(mask, -1, keepdims=True), mask, there)


def forbid(values: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
    """`values` [..., A] with FORBIDDEN where `allowed`, bool, is not.

    Args:
      values: float32 [rows, A] or [rows, K, A].
      allowed: [rows, A], where K is 1 too, or of the shape of `values`.

    Raises:
      ValueError: the shapes do not fit.
    """
    if allowed.shape.rank == values.shape.rank - 1 and values.shape[-2] == 1:
        allowed = tf.expand_dims(allowed, -2)
    if allowed.shape.rank != values.shape.rank or allowed.shape[-1] != values.shape[-1]:
        raise ValueError(
            f"A mask of shape {allowed.shape} does not fit choices of shape {values.shape}: it needs one entry an action."
        )
    return tf.where(allowed, values, tf.cast(FORBIDDEN, values.dtype))


def draw_allowed(allowed: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A number of an action each, int32 [...], with equal chances for all that `allowed`, bool [..., A], allows."""
    rows = tf.reshape(tf.where(allowed, 0.0, FORBIDDEN), [-1, allowed.shape[-1]])
    return tf.reshape(tf.random.stateless_categorical(rows, 1, seed, dtype=tf.int32), tf.shape(allowed)[:-1])
