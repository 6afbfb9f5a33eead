"""The records that flow between environments, algorithms and replayers.

Axis letters used all over `alf`: T time, B batch of one batched environment, Q learn-queue capacity, N environment
threads. `reward[t]` is the result of `prev_action[t]`, the action chosen at t-1. An episode is a FIRST, MIDs and a
LAST; the action taken at LAST is ignored and leads to the next FIRST. LAST with discount 0 is a true end; LAST with
discount > 0 is a truncation, from which values bootstrap.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories.policy_step import PolicyStep as PolicyStep
from tf_agents.trajectories.time_step import StepType as StepType
from tf_agents.trajectories.time_step import TimeStep as TimeStep

Nest = Any


def namedtuple(
    typename: str,
    field_names: Sequence[str],
    default_value: Any = None,
    default_values: Mapping[str, Any] | Sequence[Any] = (),
) -> Any:
    """A `collections.namedtuple` whose fields all have defaults.

    Args:
      typename: name of the class.
      field_names: its fields.
      default_value: what a field holds when nothing is given.
      default_values: by name or by position, the defaults that differ from `default_value`.
    """
    cls: Any = collections.namedtuple(typename, field_names)  # type: ignore[misc]
    if isinstance(default_values, Mapping):
        cls.__new__.__defaults__ = tuple(default_values.get(f, default_value) for f in field_names)
    else:
        given = tuple(default_values)
        cls.__new__.__defaults__ = given + (default_value,) * (len(cls._fields) - len(given))
    return cls


class ActionTimeStep(NamedTuple):
    """A time step with the action that led to it.

    Fields, each with leading axes [B] or [T, B]: step_type int32, reward float32, discount float32, observation nest,
    prev_action nest (zeros at FIRST), env_id int32 (unique over all environments of a driver).
    """

    step_type: Any = None
    reward: Any = None
    discount: Any = None
    observation: Nest = None
    prev_action: Nest = None
    env_id: Any = None

    def is_first(self) -> Any:
        """bool, shape of step_type: the first step of an episode."""
        return self.step_type == StepType.FIRST

    def is_mid(self) -> Any:
        """bool, shape of step_type: neither first nor last."""
        return self.step_type == StepType.MID

    def is_last(self) -> Any:
        """bool, shape of step_type: the last step of an episode."""
        return self.step_type == StepType.LAST


class TrainingInfo(NamedTuple):
    """What losses see, [T, B, ...].

    `info` is what `train_step` returned (or `rollout`, on-policy); `rollout_info` what `rollout` returned when the step
    was acted, with distributions rebuilt from their parameters; `valid` float32 is 1 where a row is trained, set by
    `train_complete`.
    """

    action: Nest = ()
    step_type: Any = ()
    reward: Any = ()
    discount: Any = ()
    info: Nest = ()
    rollout_info: Nest = ()
    env_id: Any = ()
    valid: Any = ()


class Bootstrap(NamedTuple):
    """What comes after the last step of a segment, [B, ...].

    `time_step`: the ActionTimeStep that the last action led to; `state`: the policy state to act on it. Values bootstrap
    from it; it is the first step of the stream's next segment. `action`: the one that was taken there, and `rollout_info`:
    what was recorded in choosing it, in a sample of a replay memory; `()` in a segment, which is handed over before.
    """

    time_step: Any = ()
    state: Nest = ()
    action: Nest = ()
    rollout_info: Nest = ()


class Experience(NamedTuple):
    """What replayers store; every field but `bootstrap` has the same leading axes.

    [Q, T, B, ...] when the asynchronous driver observes it, [B', T, ...] out of a replayer. `action` is the action chosen
    at this step, `rollout_info` what the behaviour policy recorded when choosing it (distributions as parameters),
    `state` the recurrent state *before* the step (kept only with `use_rollout_state`), `policy_version` int64 the version
    of the weights that acted. `bootstrap` is a Bootstrap without the time axis, or `()` where single steps are stored.
    """

    step_type: Any = ()
    reward: Any = ()
    discount: Any = ()
    observation: Nest = ()
    prev_action: Nest = ()
    env_id: Any = ()
    action: Nest = ()
    rollout_info: Nest = ()
    state: Nest = ()
    policy_version: Any = ()
    bootstrap: Any = ()


class LossInfo(NamedTuple):
    """`loss` [T, B] float32 a step, `scalar_loss` [] float32, `extra` a dict of tensors to be reported.

    `priority` float32 [B]: how wrong each sequence was, for prioritised replay; `()` where the loss has none.
    """

    loss: Any = ()
    scalar_loss: Any = ()
    extra: Any = ()
    priority: Any = ()


class AlgorithmStep(NamedTuple):
    """What a part of an algorithm returns: outputs, recurrent state, info for its loss."""

    outputs: Nest = ()
    state: Nest = ()
    info: Nest = ()


def make_action_time_step(time_step: TimeStep, prev_action: Nest, first_env_id: int | tf.Tensor = 0) -> ActionTimeStep:
    """Joins a time step [B] with the action that led to it; ids are first_env_id .. first_env_id + B - 1."""
    batch_size = tf.shape(time_step.step_type)[0]
    return ActionTimeStep(
        step_type=time_step.step_type,
        reward=time_step.reward,
        discount=time_step.discount,
        observation=time_step.observation,
        prev_action=prev_action,
        env_id=tf.cast(first_env_id, tf.int32) + tf.range(batch_size, dtype=tf.int32),
    )


def make_experience(time_step: ActionTimeStep, policy_step: PolicyStep, state: Nest) -> Experience:
    """The experience of acting `policy_step` at `time_step` from policy state `state`; same leading axes."""
    return Experience(
        step_type=time_step.step_type,
        reward=time_step.reward,
        discount=time_step.discount,
        observation=time_step.observation,
        prev_action=time_step.prev_action,
        env_id=time_step.env_id,
        action=policy_step.action,
        rollout_info=policy_step.info,
        state=state,
    )
