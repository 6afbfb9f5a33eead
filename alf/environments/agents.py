"""How several agents of one environment lie in its observations and actions.

Agents are rows. An environment with agents says, by the name of each behavior, what the K slots of that behavior see:

    observation = {behavior: {"step_type": int32 [K], "reward": float32 [K], "discount": float32 [K],
                              "observation": nest [K, ...]}}
    action = {behavior: nest [K, ...]}

A slot holds one agent at a time. Its four fields mean what those of a time step mean: `reward` is what its last action
has led to, LAST with discount 0 the agent's end, LAST with discount > 0 a truncation. Where a slot holds no agent, or
its agent decides nothing at this step, it is IDLE: the rest of its fields mean nothing, and neither does its action;
rewards that its agent gets meanwhile are added to those of its next step. After LAST a slot is IDLE or FIRST.

The step type of the environment itself is about all of them: LAST where its episode ends. Slots that are neither LAST
nor IDLE there are cut: truncated. At its FIRST a slot is FIRST or IDLE. Its reward is the sum over all slots,
but for `Hierarchy`, whose two levels share one reward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from tf_agents.trajectories.time_step import StepType

Nest = Any

IDLE = 3

STEP_TYPE, REWARD, DISCOUNT, OBSERVATION = "step_type", "reward", "discount", "observation"
_FIELDS = {STEP_TYPE, REWARD, DISCOUNT, OBSERVATION}


@dataclasses.dataclass(frozen=True)
class Slots:
    """The agents of one behavior: `count`, K; `may_idle`, whether a slot may ever be IDLE."""

    count: int
    may_idle: bool


def agents_space(space: spaces.Space, count: int, may_idle: bool) -> spaces.Dict:
    """The part of an observation space that K agents of one behavior see.

    Args:
      space: what one of them observes.
      count: K.
      may_idle: whether a slot may ever be IDLE. Where none is, data take a shorter way.
    """
    return spaces.Dict(
        {
            STEP_TYPE: spaces.Box(0, IDLE if may_idle else int(StepType.LAST), (count,), np.int32),
            REWARD: spaces.Box(-np.inf, np.inf, (count,), np.float32),
            DISCOUNT: spaces.Box(0.0, 1.0, (count,), np.float32),
            OBSERVATION: stacked_space(space, count),
        }
    )


def stacked_space(space: spaces.Space, count: int) -> spaces.Space:
    """The space of K values of `space` side by side, arrays [K, ...].

    Raises:
      ValueError: the space is none of Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: stacked_space(sub, count) for name, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(sub, count) for sub in space.spaces])
    if isinstance(space, spaces.Box):
        low, high = (np.repeat(bound[np.newaxis], count, axis=0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]  # Box declares fewer dtypes.
    if isinstance(space, spaces.Discrete):
        n, first = (np.full(count, number) for number in (space.n, space.start))
        return spaces.MultiDiscrete(n, dtype=space.dtype, start=first)  # type: ignore[arg-type]
    if isinstance(space, spaces.MultiDiscrete):
        choices, start = (np.repeat(x[np.newaxis], count, axis=0) for x in (space.nvec, space.start))
        return spaces.MultiDiscrete(choices, dtype=space.dtype, start=start)  # type: ignore[arg-type]
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((count, *space.shape))
    raise ValueError(
        f"Agents have a space of kind {type(space).__name__}, which has no arrays of one shape: use Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def has_agents(observation: Nest) -> bool:
    """Whether an environment has agents, by its observation space or the nest of its specs."""
    if not isinstance(observation, Mapping) or not observation:
        return False
    return all(isinstance(part, Mapping) and set(part) == _FIELDS for part in observation.values())


def refuse(wrapper: str, observation_space: spaces.Space) -> None:
    """Raises a ValueError where an environment has agents, whose slots `wrapper` would take for one observation."""
    if isinstance(observation_space, spaces.Dict) and has_agents(observation_space):
        raise ValueError(
            f"{wrapper} is for a single agent; the environment has {list(observation_space)}: leave it out, and have the "
            "environment do the same for each agent."
        )


def slots_of(observation_spec: Nest) -> dict[str, Slots] | None:
    """The slots of each behavior, by what an environment with agents says of its observations.

    Args:
      observation_spec: nest of bounded specs, of arrays or tensors.

    Returns:
      by the names of the behaviors, in the order in which nests have them; None for an environment without agents.
    """
    if not has_agents(observation_spec):
        return None
    found = {}
    for name in sorted(observation_spec):
        step_type = observation_spec[name][STEP_TYPE]
        found[name] = Slots(int(step_type.shape[0]), bool(np.max(step_type.maximum) >= IDLE))
    return found


def behavior_names(observation_spec: Nest) -> Sequence[str]:
    """The names of the behaviors, in the order in which nests have them; none for an environment without agents."""
    return tuple(slots_of(observation_spec) or ())


def repeated(observation: Nest, slots: Mapping[str, Slots]) -> Nest:
    """The observation that stands for a step which never happened, such as after a crash: nobody has begun, won or ended.

    Only where a slot is never idle, another agent begins in the place of one that had ended.

    Args:
      observation: numpy arrays [B, ...] of an environment with agents, as it was last seen.
      slots: of its behaviors.
    """
    result = {}
    for name, part in observation.items():
        step_type = part[STEP_TYPE]
        still = np.where(step_type == StepType.FIRST, np.int32(StepType.MID), step_type)
        behind_last = IDLE if slots[name].may_idle else StepType.FIRST
        result[name] = {
            **part,
            STEP_TYPE: np.where(step_type == StepType.LAST, np.int32(behind_last), still),
            REWARD: np.zeros_like(part[REWARD]),
            DISCOUNT: np.ones_like(part[DISCOUNT]),
        }
    return result
