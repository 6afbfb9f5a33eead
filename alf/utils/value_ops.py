"""Returns and advantages: discounted returns, GAE, TD(lambda) and V-trace on one recursion.

Rows are time steps: `rewards[t]` and `discounts[t]` came with step t, as the result of the action of step t-1, and
`values[t]` is V of step t. So the transition out of row t has reward `rewards[t + 1]`, discount `discounts[t + 1]` and
next value `values[t + 1]`, and T rows hold T-1 transitions; the last row only bootstraps.

Where an episode ends two things differ, and they have a coefficient each. `discount` says how much of the next value
counts: 0 at a true end, gamma at a time limit, so that the value of the last observation bootstraps. `continuation`
says whether the recursion goes on: 0 into any LAST, because the rows after it belong to another episode.

Everything here is a target: gradients are stopped.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from alf.data_structures import StepType, TrainingInfo
from alf.utils import dist_utils

_FloatOrTensor = Any


class _Transitions(NamedTuple):
    """The T-1 transitions out of the rows but the last, each [T-1, B] float32."""

    reward: tf.Tensor
    discount: tf.Tensor
    value: tf.Tensor
    next_value: tf.Tensor
    valid: tf.Tensor
    continuation: tf.Tensor


def reverse_scan(x: tf.Tensor, decay: tf.Tensor) -> tf.Tensor:
    """y[t] = x[t] + decay[t] * y[t + 1] along the first axis, with y[T] = 0.

    Args:
      x: float32 [T, ...].
      decay: float32 [T, ...]; its last row has no effect.

    Returns:
      y, float32 [T, ...].
    """
    steps = x.shape[0]
    # With the last row 0, what a roll wraps round is multiplied by 0.
    decay = tf.concat([decay[:-1], tf.zeros_like(decay[-1:])], 0)

    def double(y: tf.Tensor, decay: tf.Tensor, reach: Any) -> tuple[tf.Tensor, tf.Tensor]:
        # y holds the sum over `reach` rows, decay the product over as many: both double.
        return y + decay * tf.roll(y, -reach, 0), decay * tf.roll(decay, -reach, 0)

    if steps is not None:
        y = x
        for stage in range(math.ceil(math.log2(steps)) if steps > 1 else 0):
            y, decay = double(y, decay, 2**stage)
        return y

    def body(reach: tf.Tensor, y: tf.Tensor, decay: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return (2 * reach, *double(y, decay, reach))

    rows = tf.shape(x)[0]
    return tf.while_loop(lambda reach, *_: reach < rows, body, (1, x, decay), parallel_iterations=1)[1]


def corrections(
    rewards: tf.Tensor,
    values: tf.Tensor,
    next_values: tf.Tensor,
    discounts: tf.Tensor,
    continuations: tf.Tensor,
    traces: _FloatOrTensor = 1.0,
    weights: _FloatOrTensor = 1.0,
) -> tf.Tensor:
    """What has to be added to the values of a run of transitions: the recursion under everything in this module.

    e[t] = weights[t] * (r[t] + discounts[t] * next_values[t] - values[t])
           + discounts[t] * continuations[t] * traces[t] * e[t + 1],  e[T] = 0.

    Args:
      rewards: [T, B], reward of transition t.
      values: [T, B], value of the state that transition t leaves.
      next_values: [T, B], value of the state it reaches.
      discounts: [T, B], how much the next value counts (gamma included), 0 at a true end.
      continuations: [T, B], 0 where transition t + 1 belongs to another episode, else 1.
      traces: [T, B] or a number, lambda, for V-trace times c.
      weights: [T, B] or a number, for V-trace rho.

    Returns:
      e, float32 [T, B].
    """
    errors = rewards + discounts * next_values - values
    return reverse_scan(_times(errors, weights), _times(discounts * continuations, traces))


def _times(x: tf.Tensor, factor: _FloatOrTensor) -> tf.Tensor:
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


def _check_rows(rewards: tf.Tensor) -> None:
    rows = rewards.shape[0]
    if rows is not None and rows < 2:
        raise ValueError(
            f"Returns need at least two time steps, because a reward arrives one step after its action; got T={rows}: "
            "use an unroll_length or mini_batch_length of 2 or more."
        )
    if rows is None and not tf.executing_eagerly():
        tf.debugging.assert_greater(tf.shape(rewards)[0], 1, "Returns need at least two time steps (T >= 2).")


def _transitions(rewards: tf.Tensor, values: tf.Tensor, step_types: tf.Tensor, discounts: tf.Tensor) -> _Transitions:
    _check_rows(rewards)
    not_last = tf.cast(tf.not_equal(step_types, StepType.LAST), tf.float32)
    return _Transitions(
        rewards[1:], discounts[1:], values[:-1], values[1:], valid=not_last[:-1], continuation=not_last[1:]
    )


def _corrections_of(rows: _Transitions, traces: _FloatOrTensor, weights: _FloatOrTensor = 1.0) -> tf.Tensor:
    """Corrections of all rows but the last; 0 where the row is LAST, whose action leads nowhere."""
    return rows.valid * corrections(
        rows.reward, rows.value, rows.next_value, rows.discount, rows.continuation, traces, weights
    )


def _time_major(time_major: bool, *tensors: Any) -> list[tf.Tensor]:
    tensors_ = [tf.convert_to_tensor(t) for t in tensors]
    return tensors_ if time_major else [_swap(t) for t in tensors_]


def _swap(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0])


def _result(x: tf.Tensor, time_major: bool) -> tf.Tensor:
    return tf.stop_gradient(x if time_major else _swap(x))


def discounted_return(
    rewards: tf.Tensor, values: tf.Tensor, step_types: tf.Tensor, discounts: tf.Tensor, time_major: bool = True
) -> tf.Tensor:
    """R[t] = r[t+1] + discount[t+1] * R[t+1], from R[T-1] = values[T-1]; R[t] = values[t] where step t is LAST.

    Args:
      rewards: float32 [T, B] ([B, T] if not `time_major`).
      values: float32, same shape.
      step_types: int32, same shape.
      discounts: float32, same shape, gamma included.
      time_major: order of the axes, in and out.

    Returns:
      float32 [T-1, B] or [B, T-1].

    Raises:
      ValueError: T < 2.
    """
    return td_lambda_return(rewards, values, step_types, discounts, 1.0, time_major)


def td_lambda_return(
    rewards: tf.Tensor,
    values: tf.Tensor,
    step_types: tf.Tensor,
    discounts: tf.Tensor,
    td_lambda: float = 1.0,
    time_major: bool = True,
) -> tf.Tensor:
    """TD(lambda) returns, that is values plus `generalized_advantage_estimation`; arguments and shapes as there."""
    rewards, values, step_types, discounts = _time_major(time_major, rewards, values, step_types, discounts)
    rows = _transitions(rewards, values, step_types, discounts)
    return _result(rows.value + _corrections_of(rows, td_lambda), time_major)


def one_step_discounted_return(
    rewards: tf.Tensor, values: tf.Tensor, step_types: tf.Tensor, discounts: tf.Tensor
) -> tf.Tensor:
    """r[t+1] + discount[t+1] * values[t+1], the second term dropped where step t is LAST; time-major.

    Args:
      rewards: float32 [T, B].
      values: float32 [T, B].
      step_types: int32 [T, B].
      discounts: float32 [T, B], gamma included.

    Returns:
      float32 [T-1, B].

    Raises:
      ValueError: T < 2.
    """
    rows = _transitions(*_time_major(True, rewards, values, step_types, discounts))
    return tf.stop_gradient(rows.reward + rows.valid * rows.discount * rows.next_value)


def generalized_advantage_estimation(
    rewards: tf.Tensor,
    values: tf.Tensor,
    step_types: tf.Tensor,
    discounts: tf.Tensor,
    td_lambda: float = 1.0,
    time_major: bool = True,
) -> tf.Tensor:
    """GAE(lambda) of Schulman et al. 2015, https://arxiv.org/abs/1506.02438, equation 16; 0 where step t is LAST.

    Args:
      rewards: float32 [T, B] ([B, T] if not `time_major`).
      values: float32, same shape.
      step_types: int32, same shape.
      discounts: float32, same shape, gamma included.
      td_lambda: lambda.
      time_major: order of the axes, in and out.

    Returns:
      float32 [T-1, B] or [B, T-1].

    Raises:
      ValueError: T < 2.
    """
    rewards, values, step_types, discounts = _time_major(time_major, rewards, values, step_types, discounts)
    rows = _transitions(rewards, values, step_types, discounts)
    return _result(_corrections_of(rows, td_lambda), time_major)


def _capped(ratio: tf.Tensor, bar: float | None) -> tf.Tensor:
    return ratio if bar is None else tf.minimum(ratio, bar)


def vtrace_returns_and_advantages_impl(
    importance_ratio_clipped: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    step_types: tf.Tensor,
    discounts: tf.Tensor,
    td_lambda: float = 1,
    time_major: bool = True,
    rho_bar: float | None = None,
    c_bar: float | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """V-trace targets and policy-gradient advantages, Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, eq. 1.

    Args:
      importance_ratio_clipped: float32 [T, B] ([B, T] if not `time_major`), pi(a[t]) / mu(a[t]), clipped already or to
        be clipped by `rho_bar` and `c_bar`; its last row has no effect.
      rewards: float32, same shape.
      values: float32, same shape, of the current network.
      step_types: int32, same shape.
      discounts: float32, same shape, gamma included.
      td_lambda: multiplies the trace coefficient c.
      time_major: order of the axes, in and out.
      rho_bar: cap of the ratio in the temporal differences and the advantage; None caps no further.
      c_bar: cap of the ratio in the trace; None means `rho_bar`.

    Returns:
      (returns, advantages), float32, shape of `rewards`. The last row has its own value as return and advantage 0, and
      so has every LAST. Advantages are multiplied by the ratio.

    Raises:
      ValueError: T < 2, or rho_bar < c_bar.
    """
    if c_bar is not None and rho_bar is not None and rho_bar < c_bar:
        raise ValueError(f"V-trace needs rho_bar >= c_bar, got rho_bar={rho_bar} and c_bar={c_bar}.")
    ratio, rewards, values, step_types, discounts = _time_major(
        time_major, importance_ratio_clipped, rewards, values, step_types, discounts
    )
    rows = _transitions(rewards, values, step_types, discounts)
    rho = _capped(ratio[:-1], rho_bar)
    trace = _capped(rho, c_bar)
    errors = _corrections_of(rows, _times(trace, td_lambda), rho)
    returns = tf.concat([rows.value + errors, values[-1:]], 0)
    advantages = rows.valid * rho * (rows.reward + rows.discount * returns[1:] - rows.value)
    advantages = tf.concat([advantages, tf.zeros_like(values[-1:])], 0)
    return _result(returns, time_major), _result(advantages, time_major)


def calc_vtrace_returns_and_advantages(
    training_info: TrainingInfo,
    value: tf.Tensor,
    gamma: float,
    action_spec: Any,
    td_lambda: float = 1,
    debug_summaries: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """V-trace with rho_bar = c_bar = 1 on training records.

    Args:
      training_info: [T, B, ...]; `info.action_distribution` is the policy that learns, and in `rollout_info` the one
        that acted; without the latter the policy is its own behaviour and every ratio is 1.
      value: float32 [T, B].
      gamma: multiplies the environment's discount.
      action_spec: nest of action specs.
      td_lambda: multiplies the trace coefficient.
      debug_summaries: write a histogram of the ratio.

    Returns:
      (returns, advantages), float32 [T, B], see `vtrace_returns_and_advantages_impl`.
    """
    policy = training_info.info.action_distribution
    behaviour = () if training_info.rollout_info == () else training_info.rollout_info.action_distribution
    _, ratio = dist_utils.action_importance_ratio(
        action_distribution=policy,
        collect_action_distribution=policy if behaviour == () else behaviour,
        action=training_info.action,
        action_spec=action_spec,
        clipping_mode="capping",
        scope="vtrace",
        importance_ratio_clipping=0.0,
        debug_summaries=debug_summaries,
    )
    return vtrace_returns_and_advantages_impl(
        ratio,
        training_info.reward,
        value,
        training_info.step_type,
        training_info.discount * gamma,
        td_lambda=td_lambda,
    )
