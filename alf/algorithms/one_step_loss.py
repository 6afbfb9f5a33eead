"""Temporal-difference losses of critics: targets of one step, or of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin
import tensorflow as tf

from alf.data_structures import LossInfo, StepType, TrainingInfo
from alf.utils.common import check_range
from alf.utils.losses import element_wise_squared_loss

# The `n_step` of targets that look to the end of the episode, or of what is there of it.
ALL_STEPS = -1


class Lookahead(NamedTuple):
    """What follows each row: target = reward + discount * (value of row `row`), all [T, B].

    `reward` float32 is the discounted sum of the rewards on the way, `discount` float32 the product of the discounts, 0
    behind a true end, `row` int32 the row that the value is taken of.
    """

    reward: tf.Tensor
    discount: tf.Tensor
    row: tf.Tensor


def check_n_step(name: str, n_step: int) -> None:
    """Raises ValueError where targets of what is called `name` cannot look `n_step` steps ahead."""
    if n_step < 1 and n_step != ALL_STEPS:
        raise ValueError(f"{name}: n_step={n_step} must be at least 1, or -1 for all steps of a sequence.")


def look_ahead(training_info: TrainingInfo, gamma: float, n_step: int) -> Lookahead:
    """The rewards and discounts of up to `n_step` steps after each row.

    It stops at the last step of an episode, from whose observation values bootstrap unless its discount is 0, and at the
    last row; the first step of the next episode is never looked at.

    Args:
      training_info: reward, discount, step_type [T, B].
      gamma: multiplies the environment's discount.
      n_step: how many steps, at least 1; ALL_STEPS for as many as there are.
    """
    reward, discount = training_info.reward, gamma * training_info.discount
    rows = reward.shape[0]
    own_row = tf.range(rows)[:, tf.newaxis] + tf.zeros_like(training_info.step_type)
    stops = tf.equal(training_info.step_type, StepType.LAST)
    none = Lookahead(tf.zeros_like(reward), tf.ones_like(reward), own_row)
    seen = none
    for _ in range(rows - 1 if n_step == ALL_STEPS else n_step):
        # Behind the next row: nothing more where it ends the episode, else what it has seen so far.
        behind = Lookahead(*(tf.where(stops, n, s) for n, s in zip(none, seen, strict=True)))
        nearer = Lookahead(
            reward[1:] + discount[1:] * behind.reward[1:], discount[1:] * behind.discount[1:], behind.row[1:]
        )
        seen = Lookahead(*(tf.concat([x, n[-1:]], 0) for x, n in zip(nearer, none, strict=True)))
    return seen


def row_weights(step_type: tf.Tensor, n_step: int) -> tf.Tensor:
    """float32 [T, B]: 1 for the rows that a loss of `n_step` steps trains, 0 for others.

    These are the rows with `n_step` more behind them that are not LAST, whose action leads nowhere. The learner takes the
    mean over the rows with one more behind them; where `n_step` is above 1, the weight is above 1 to make up for that.

    Raises:
      ValueError: there are too few rows.
    """
    rows = step_type.shape[0]
    trained = rows - n_step
    if trained < 1:
        raise ValueError(
            f"A sequence of {rows} rows has no row with {n_step} more behind it: set mini_batch_length to at least {n_step + 1}."
        )
    weight = tf.cast(tf.not_equal(step_type, StepType.LAST), tf.float32) * ((rows - 1) / trained)
    return weight * tf.cast(tf.range(rows) < trained, tf.float32)[:, tf.newaxis]


def per_sequence(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The weighted mean over time of |values|, [B]; `values` and `weights` float32 [T, B]."""
    return tf.math.divide_no_nan(tf.reduce_sum(tf.abs(values) * weights, 0), tf.reduce_sum(weights, 0))


@gin.configurable(module="alf")
class OneStepTDLoss(tf.Module):
    """The difference between values and what the following rows say they should have been.

    The target of row t is r[t+1] + gamma * discount[t+1] * target_value[t+1], or its n-step form (Sutton 1988).
    """

    def __init__(
        self,
        gamma: float = 0.99,
        td_error_loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = element_wise_squared_loss,
        debug_summaries: bool = False,
        name: str = "OneStepLoss",
        *,
        n_step: int = 1,
    ) -> None:
        """Creates the loss.

        Args:
          gamma: multiplies the environment's discount.
          td_error_loss_fn: (targets, values) -> element-wise loss.
          debug_summaries: `extra` also holds the targets, [T, B].
          name: name of the module.
          n_step: steps that a target looks ahead; sequences need n_step + 1 rows. With -1 it looks to the end of the
            episode, or of the sequence, from whose last row it bootstraps: the discounted return where sequences are as
            long as episodes.

        Raises:
          ValueError: n_step is 0, or below -1; or gamma is not in [0, 1].
        """
        super().__init__(name=name)
        check_n_step(name, n_step)
        check_range(0.0, 1.0, gamma=gamma)
        self._gamma = gamma
        self._td_error_loss_fn = td_error_loss_fn
        self._debug_summaries = debug_summaries
        self._n_step = n_step

    @property
    def gamma(self) -> float:
        """What the environment's discount is multiplied with."""
        return self._gamma

    @property
    def n_step(self) -> int:
        """Rows that a trained one needs behind it: the steps that its target looks ahead, or 1 where these are all."""
        return max(self._n_step, 1)

    def targets(self, training_info: TrainingInfo, target_value: tf.Tensor) -> tf.Tensor:
        """What the values should be, float32 [T, B], without gradient; the last row's target is its own value."""
        ahead = look_ahead(training_info, self._gamma, self._n_step)
        if self._n_step == 1:
            value = tf.concat([target_value[1:], target_value[-1:]], 0)
        else:
            value = tf.transpose(tf.gather(tf.transpose(target_value), tf.transpose(ahead.row), batch_dims=1))
        return tf.stop_gradient(ahead.reward + ahead.discount * value)

    def __call__(
        self, training_info: TrainingInfo, value: tf.Tensor | list[tf.Tensor], target_value: tf.Tensor
    ) -> LossInfo:
        """The loss of consecutive rows.

        Args:
          training_info: reward, discount, step_type [T, B], T > n_step.
          value: float32 [T, B], of the critic that learns; several critics learn from the same target.
          target_value: float32 [T, B], the value of each row's state, by the target critic.

        Returns:
          LossInfo with `loss` float32 [T, B], the sum over the critics, 0 at rows that are not trained (see
          `row_weights`), `priority` float32 [B], the mean absolute error of each sequence, and in `extra` td_loss,
          td_error (absolute) and the mean value.
        """
        values = value if isinstance(value, list) else [value]
        weights = row_weights(training_info.step_type, self.n_step)
        targets = self.targets(training_info, target_value)
        losses = [self._td_error_loss_fn(targets, v) * weights for v in values]
        error = tf.add_n([tf.abs(targets - v) for v in values]) / len(values)
        total = tf.maximum(tf.reduce_sum(weights), 1.0)
        extra = {
            "td_loss": tf.reduce_sum(tf.add_n(losses)) / total,
            "td_error": tf.reduce_sum(error * weights) / total,
            "value": tf.reduce_sum(values[0] * weights) / total,
        }
        if self._debug_summaries:
            extra["target"] = targets
        return LossInfo(loss=tf.add_n(losses), extra=extra, priority=per_sequence(error, weights))
