"""How far goal-conditioned environments are from their goals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# The names that Gymnasium-Robotics gave them.
_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"


def has_goal(observation_spec: Any) -> bool:
    """Whether observations tell a goal that is achieved and one that is desired, of one shape, under their usual names.

    Args:
      observation_spec: nest of specs of one observation.
    """
    if not isinstance(observation_spec, Mapping) or not {_ACHIEVED, _DESIRED} <= set(observation_spec):
        return False
    achieved, desired = observation_spec[_ACHIEVED], observation_spec[_DESIRED]
    nested = any(isinstance(goal, (Mapping, list, tuple)) for goal in (achieved, desired))
    return not nested and achieved.shape == desired.shape


def goal_distance(observation: Mapping[str, Any], axes: int) -> np.ndarray:
    """The Euclidean distance of the achieved from the desired goal.

    Args:
      observation: of which `has_goal` holds, with `axes` leading axes.
      axes: how many.

    Returns:
      float64, of the leading axes.
    """
    achieved, desired = (np.asarray(observation[name], np.float64) for name in (_ACHIEVED, _DESIRED))
    apart = (achieved - desired).reshape(*achieved.shape[:axes], -1)
    return np.sqrt(np.square(apart).sum(-1))
