"""Random actions for checks and measurements: within their specs, and of those that the observation allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from tf_agents.specs import BoundedArraySpec

from alf.utils.common import is_bounded

# What environments call the field that says which actions are allowed.
_MASKS = ("mask", "action_mask")


def sample_actions(spec: Any, batch_size: int, rng: np.random.Generator, observation: Any = None) -> Any:
    """Random actions [B, ...] within a nest of array specs; standard normal where there are no bounds.

    Args:
      spec: of the actions.
      batch_size: B.
      rng: draws.
      observation: [B, ...], whose mask is heeded where the action is one choice, or several of one number each.
    """
    mask = mask_for(spec, batch_size, observation)
    if mask is not None:
        return (spec.minimum + _draw(mask, rng)).astype(spec.dtype)

    def leaf(part: Any) -> np.ndarray:
        shape = (batch_size, *part.shape)
        low, high = (
            np.broadcast_to(getattr(part, name, bound), part.shape)
            for name, bound in (("minimum", -np.inf), ("maximum", np.inf))
        )
        if np.issubdtype(part.dtype, np.integer):
            return rng.integers(low, high, shape, dtype=np.int64, endpoint=True).astype(part.dtype)
        if is_bounded(low, high):
            return rng.uniform(low, high, shape).astype(part.dtype)
        return rng.standard_normal(shape).astype(part.dtype)

    return tf.nest.map_structure(leaf, spec)


def mask_for(spec: Any, batch_size: int, observation: Any) -> np.ndarray | None:
    """The mask in `observation` [B, ...] that `sample_actions` heeds; None where there is none that fits `spec`."""
    if not isinstance(spec, BoundedArraySpec) or not np.issubdtype(spec.dtype, np.integer):
        return None
    return _mask_of(observation, (batch_size, *spec.shape), int(np.max(spec.maximum - spec.minimum)) + 1)


def sample_action(space: gymnasium.Space, rng: np.random.Generator, observation: Any) -> Any:
    """A random action of `space`, one that the mask in `observation` allows; `space` draws where there is none."""
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        counts = np.asarray(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec)
        mask = _mask_of(observation, counts.shape, int(counts.max()))
        if mask is not None:
            return np.asarray(space.start + _draw(mask, rng), space.dtype)[()]
    return space.sample()


def _mask_of(observation: Any, shape: tuple[int, ...], actions: int) -> np.ndarray | None:
    """The field of an observation that says which actions are allowed; None where there is none.

    Args:
      observation: nest; the mask is looked for in a dict alone, by the names "mask" and "action_mask".
      shape: axes in front of the actions: [B] of a batch, the axes of a choice of several.
      actions: how many there are to choose from.

    Returns:
      [*shape, actions], True where allowed; a row that allows nothing allows everything, as for algorithms.
    """
    for name in _MASKS if isinstance(observation, Mapping) else ():
        if name in observation and np.shape(observation[name]) == (*shape, actions):
            mask = np.asarray(observation[name]) != 0
            return mask | ~mask.any(-1, keepdims=True)
    return None


def _draw(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One of the allowed along the last axis, each as likely."""
    return np.argmax(np.where(mask, rng.random(mask.shape), -1.0), -1)
