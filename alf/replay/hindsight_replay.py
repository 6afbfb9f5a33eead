"""Replay that learns from failures to reach a goal what reaches another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import BoundedTensorSpec

from alf.data_structures import ActionTimeStep, Experience, Nest, StepType
from alf.replay.sampling import Sample, View
from alf.replay.uniform_replay import UniformReplay
from alf.utils.common import broadcast_mask, zeros_from_spec
from alf.utils.devices import for_host
from alf.utils.value_kinds import is_scalar

_GOALS = ("achieved_goal", "desired_goal")
_PROBES = 16
# How far from 0 goals to try may lie, where the spec lets them.
_WIDE = 1e3

# So many steps with other rewards are no rounding.
_MANY = 10

RewardFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@gin.configurable(module="alf")
def goal_distance_reward(achieved: tf.Tensor, desired: tf.Tensor, threshold: float = 0.05) -> tf.Tensor:
    """0 where a goal is reached, else -1, as the sparse tasks of Gymnasium-Robotics have it.

    Args:
      achieved: numbers [..., n].
      desired: likewise.
      threshold: a goal that is nearer than this, or as near, is reached.

    Returns:
      float32 [...].
    """
    # Whole numbers have no square root, and unsigned ones no difference.
    apart = tf.cast(achieved, tf.float32) - tf.cast(desired, tf.float32)
    return -tf.cast(tf.norm(apart, axis=-1) > threshold, tf.float32)


@gin.configurable(module="alf")
class HindsightReplay(UniformReplay):
    """`hindsight`: uniform replay that puts goals in the place of others; Andrychowicz et al. 2017, arXiv:1707.01495.

    Observations are dicts as of a GoalEnv of Gymnasium-Robotics, {"observation", "achieved_goal", "desired_goal"}. In a
    share of the sequences, what was to be achieved becomes what was achieved at a random later step of the episode
    ("future" in the paper), in all rows of the sequence that are of the first row's episode, and rewards follow from it.
    They are the environment's, so goals are recorded as it gives them: an `observation_transformer` leaves them alone.
    Discounts stay: an environment whose episodes end at the goal is not for this.
    """

    def __init__(
        self,
        experience_spec: Experience,
        num_streams: int,
        reward_fn: RewardFn = goal_distance_reward,
        share: float = 0.8,
        horizon: int = 50,
        balanced: bool = False,
    ) -> None:
        """Creates an empty replayer.

        Args:
          experience_spec: specs of one step.
          num_streams: E, single environments.
          reward_fn: from goals achieved and desired, [..., shape of a goal], to the reward [...] of getting there, in
            TensorFlow; the same as the environment's, of which others are warned of.
          share: of the sequences that get another goal; with k of these to one of the old, k / (k + 1).
          horizon: how many steps ahead a goal may lie; the length of an episode is enough.
          balanced: as in `UniformReplay`.

        Raises:
          ValueError: observations have no goals, a number is out of its range, `reward_fn` gives something else than one
            reward for each pair of goals, or `ReplayBuffer.before_storing` changes goals or rewards.
        """
        super().__init__(experience_spec, num_streams, balanced)
        observation = experience_spec.observation
        fields = sorted(observation) if isinstance(observation, dict) else []
        if not set(_GOALS) <= set(fields):
            raise ValueError(
                "exp_replayer='hindsight' needs observations with the fields 'achieved_goal' and 'desired_goal'; there are "
                f"{fields or 'none'}."
            )
        if not (is_scalar(share, float) and 0.0 <= share <= 1.0) or not (is_scalar(horizon, int) and horizon >= 1):
            raise ValueError(
                f"HindsightReplay needs share in [0, 1] and a whole number horizon >= 1; got {share!r} and {horizon!r}."
            )
        if not callable(reward_fn):
            raise ValueError(
                f"HindsightReplay needs a function reward_fn of the goals achieved and desired; got {reward_fn!r}."
            )
        self._check_stored(experience_spec)
        _check_reward_fn(reward_fn, *(observation[field] for field in _GOALS))
        self._reward_fn = reward_fn
        self._shape_reward: Callable[[tf.Tensor], tf.Tensor] | None = None
        self._share = share
        self._horizon = int(horizon)
        self._others = 0

    def observe(self, exp: Experience) -> None:
        """See `UniformReplay.observe`; warns, once, where `reward_fn` gives other rewards than the environment."""
        super().observe(exp)
        if self._others >= _MANY:
            return
        given, reward = exp.reward.numpy(), self._reward(exp.observation, exp.observation["desired_goal"], exp).numpy()
        step_type = exp.step_type.numpy()
        # The step that stands for a crash of an environment has no reward of the task.
        lost = (
            (step_type == StepType.LAST) & (exp.discount.numpy() > 0.0) & (given == self._shaped(tf.zeros([1])).numpy())
        )
        other = (step_type != StepType.FIRST) & ~lost & ~np.isclose(given, reward, rtol=1e-3, atol=1e-4)
        self._others += int(other.sum())
        if self._others >= _MANY:
            achieved, desired = (exp.observation[field].numpy()[other][0] for field in _GOALS)
            logging.warning(
                "HindsightReplay.reward_fn gives %g for the goal %s at %s, and the environment gave %g: what is learned from "
                "the goals that are put in has other rewards than the task. Bind HindsightReplay.reward_fn to a function "
                "that gives the environment's, or set goal_distance_reward.threshold to its distance.",
                reward[other][0],
                desired,
                achieved,
                given[other][0],
            )

    def _check_stored(self, experience_spec: Experience) -> None:
        if self.buffer.before_storing is None:
            return
        draw = np.random.default_rng(0)
        given = tf.nest.map_structure(lambda spec: _drawn(spec, draw), experience_spec._replace(bootstrap=()))
        stored = self.buffer.before_storing(given)
        pairs = {"reward": (given.reward, stored.reward)}
        pairs |= {field: (given.observation[field], stored.observation[field]) for field in _GOALS}
        for field, (before, after) in pairs.items():
            if not _same(before, after):
                raise ValueError(
                    "exp_replayer='hindsight' judges goals as the environment does, and computes rewards anew when it samples; "
                    f"ReplayBuffer.before_storing changes {field!r}: leave it alone there, and shape rewards by a "
                    "reward_shaping_fn."
                )

    @staticmethod
    def check_goals(time_step_spec: ActionTimeStep, transform: Callable[[ActionTimeStep], ActionTimeStep]) -> None:
        """Tries on observations at random whether goals stay what they are, apart from their dtype.

        Args:
          time_step_spec: specs of one time step of the environment.
          transform: makes of time steps [B, ...] what is recorded of them.

        Raises:
          ValueError: it changes goals.
        """
        draw = np.random.default_rng(0)
        raw = tf.nest.map_structure(lambda spec: _drawn(spec, draw), time_step_spec.observation)
        given = zeros_from_spec(time_step_spec, _PROBES)._replace(observation=raw)
        recorded = transform(given).observation
        for field in _GOALS:
            if not (isinstance(raw, dict) and field in raw and _same(raw[field], recorded[field])):
                raise ValueError(
                    f"exp_replayer='hindsight' judges goals as the environment does, and the observation_transformer changes "
                    f"{field!r}: let it leave the goals alone, and scale them in the networks or by an ObservationNormalizer."
                )

    def set_reward_shaping(self, shape_reward: Callable[[tf.Tensor], tf.Tensor]) -> None:
        """Has new rewards [b * L] shaped as those that are held were before they came."""
        self._shape_reward = shape_reward

    @for_host
    def sample(
        self, view: View, batch_size: int, mini_batch_length: int, seed: tf.Tensor, clock: tf.Tensor | int = 0
    ) -> Sample:
        """See `UniformReplay.sample`."""
        seeds = tf.random.experimental.stateless_split(seed, 3)
        sample = super().sample(view, batch_size, mini_batch_length, seeds[0], clock)
        left = self._steps_left(view, sample, mini_batch_length)
        big = tf.random.stateless_uniform([batch_size], seeds[1], 0, 2**62, tf.int64)
        ahead = 1 + big % tf.maximum(left, 1)
        changed = (tf.random.stateless_uniform([batch_size], seeds[2]) < self._share) & (left > 0)
        # Where none is left any row will do: it is not taken.
        where = sample.step + tf.where(left > 0, ahead, 0)
        goal = self.buffer.sequences(sample.stream, where, 1).observation["achieved_goal"]
        return sample._replace(experience=self._with_goal(sample.experience, goal, changed))

    def _steps_left(self, view: View, sample: Sample, length: int) -> tf.Tensor:
        """int64 [b]: steps from the first of each sequence to the last of its episode that is held, at most the horizon."""
        # Runs are ordered by stream and first step.
        order = view.runs[:, 0] * 2**40 + view.runs[:, 1]
        run = tf.searchsorted(order, sample.stream * 2**40 + sample.step, side="right", out_type=tf.int64) - 1
        begins = tf.concat([[tf.zeros([], tf.int64)], view.runs[:-1, 2]], 0)
        last = view.runs[:, 1] + (view.runs[:, 2] - begins) + (length - 2)
        in_run = tf.gather(last, run) - sample.step
        step_types = self.buffer.step_types(sample.stream, sample.step, self._horizon + 1)
        steps = tf.range(self._horizon + 1, dtype=tf.int64)
        ends = tf.where(tf.equal(step_types, StepType.LAST), steps, self._horizon)
        return tf.minimum(in_run, tf.reduce_min(ends, 1))

    def _with_goal(self, exp: Experience, goal: tf.Tensor, changed: tf.Tensor) -> Experience:
        """Experience [b, L, ...] with goals [b, 1, ...] where `changed` [b], in the rows of the first one's episode."""
        first = tf.cast(tf.equal(exp.step_type[:, 1:], StepType.FIRST), tf.int32)
        later = tf.cumsum(tf.concat([tf.zeros_like(exp.step_type[:, :1]), first], 1), 1)
        rows = changed[:, tf.newaxis] & tf.equal(later, 0)
        observation: dict[str, Nest] = dict(exp.observation)
        desired = observation["desired_goal"]
        goal = tf.broadcast_to(goal, tf.shape(desired))
        observation["desired_goal"] = tf.where(broadcast_mask(rows, desired), goal, desired)
        reward = self._reward(observation, goal, exp)
        return exp._replace(observation=observation, reward=tf.where(rows, reward, exp.reward))

    def _reward(self, observation: Mapping[str, Nest], goal: Nest, exp: Experience) -> Any:
        """What follows from a goal, as rewards of `exp` are recorded."""
        return self._shaped(tf.cast(self._reward_fn(observation["achieved_goal"], goal), exp.reward.dtype))

    def _shaped(self, reward: Any) -> Any:
        if self._shape_reward is None:
            return reward
        return tf.reshape(self._shape_reward(tf.reshape(reward, [-1])), tf.shape(reward))


def _check_reward_fn(reward_fn: RewardFn, achieved: Any, desired: Any) -> None:
    """Raises ValueError where it fails on goals of these specs, or gives other shapes than rewards have."""
    draw = np.random.default_rng(0)
    goals = [tf.expand_dims(_drawn(spec, draw), 1) for spec in (achieved, desired)]
    kinds = " and ".join(f"{spec.dtype.name} {spec.shape}" for spec in (achieved, desired))
    try:
        reward = tf.convert_to_tensor(reward_fn(*goals))
    except Exception as e:
        raise ValueError(f"HindsightReplay.reward_fn fails on goals of {kinds}: {type(e).__name__}: {e}") from e
    if reward.shape != [_PROBES, 1]:
        raise ValueError(
            f"HindsightReplay.reward_fn gives shape {reward.shape} for goals {goals[0].shape}, and one reward for each is "
            f"shape {[_PROBES, 1]}: for goals of {kinds}, bind it to a function that reduces the axes of a goal, and no others."
        )


def _drawn(spec: Any, draw: np.random.Generator) -> tf.Tensor:
    """Values at random within a spec, [_PROBES, ...]."""
    bounds = BoundedTensorSpec.from_spec(spec)
    low, high = (np.clip(np.asarray(bound, np.float64), -_WIDE, _WIDE) for bound in (bounds.minimum, bounds.maximum))
    return tf.constant(draw.uniform(low, high, [_PROBES, *spec.shape]).astype(spec.dtype.as_numpy_dtype))


def _same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors hold the same numbers, to the precision of float32."""
    first, second = (np.asarray(x, np.float64) for x in (one, other))
    return first.shape == second.shape and np.allclose(first, second, rtol=1e-6)
