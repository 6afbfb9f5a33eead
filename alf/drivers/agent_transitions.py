"""A segment of an environment with agents, as what each agent did and what came of it, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from alf.data_structures import Experience, Nest, StepType
from alf.environments.agents import DISCOUNT, IDLE, OBSERVATION, REWARD, STEP_TYPE

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)

# The name of a behavior, and the slot of an agent in it.
AgentSlot = tuple[str, int]


class AgentTransition(NamedTuple):
    """An action of one agent and what it led to, in numpy.

    `reward` float32, `discount` float32 and `next_observation` are what the agent saw next, `steps` steps of the
    environment later: 1, or more where it decided nothing in between. `next_step_type` is LAST where its episode ended,
    by an end of its own (discount 0) or cut by that of the environment.
    """

    step_type: int
    observation: Nest
    action: Nest
    reward: np.float32
    discount: np.float32
    next_step_type: int
    next_observation: Nest
    steps: int


def agent_transitions(exp: Experience, row: int) -> list[dict[AgentSlot, AgentTransition | None]]:
    """What each agent of one environment did at each step of a segment.

    Args:
      exp: [T, B, ...] with bootstrap [B, ...], as drivers deliver it, of an environment whose observations lie as
        `alf.environments.agents` says.
      row: which environment of the batch.

    Returns:
      for each of the T steps, of every slot, its transition from there. None where the slot has no agent, the agent's
      episode is over, or it decides nothing at this step; and where the segment ends, or the agent is gone, before it has
      seen what its action led to.

    Raises:
      ValueError: the observations have no agents.
    """
    behaviors = exp.observation
    if not isinstance(behaviors, Mapping) or not all(
        isinstance(b, Mapping) and STEP_TYPE in b for b in behaviors.values()
    ):
        raise ValueError("agent_transitions is for environments with agents, and these observations have none.")
    following = exp.bootstrap.time_step
    env_types = np.append(np.asarray(exp.step_type)[:, row], np.asarray(following.step_type)[row])
    result: list[dict[AgentSlot, AgentTransition | None]] = [{} for _ in range(len(env_types) - 1)]
    for name in sorted(behaviors):
        seen = tf.nest.map_structure(
            lambda x, last: np.concatenate([np.asarray(x)[:, row], np.asarray(last)[np.newaxis, row]]),
            behaviors[name],
            following.observation[name],
        )
        actions = tf.nest.map_structure(lambda x: np.asarray(x)[:, row], exp.action[name])
        for slot in range(seen[STEP_TYPE].shape[1]):
            one, done = tf.nest.map_structure(lambda x, k=slot: x[:, k], (seen, actions))
            for t, steps in enumerate(result):
                steps[name, slot] = _transition(env_types, one, done, t)
    return result


def _transition(env_types: np.ndarray, seen: Mapping[str, Any], actions: Nest, t: int) -> AgentTransition | None:
    """The transition of one slot at step t; `seen` has T + 1 steps."""
    step_types = seen[STEP_TYPE]
    if step_types[t] in (_LAST, IDLE) or env_types[t] == _LAST:
        return None
    after = t + 1
    while after < len(step_types) - 1 and step_types[after] == IDLE and env_types[after] != _LAST:
        after += 1
    if step_types[after] in (_FIRST, IDLE):
        return None
    return AgentTransition(
        step_type=int(step_types[t]),
        observation=tf.nest.map_structure(lambda x: x[t], seen[OBSERVATION]),
        action=tf.nest.map_structure(lambda x: x[t], actions),
        reward=seen[REWARD][after],
        discount=seen[DISCOUNT][after],
        next_step_type=_LAST if env_types[after] == _LAST else int(step_types[after]),
        next_observation=tf.nest.map_structure(lambda x: x[after], seen[OBSERVATION]),
        steps=after - t,
    )
