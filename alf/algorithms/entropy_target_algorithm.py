"""A weight of the entropy bonus that keeps the policy's entropy near a target."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gin
import tensorflow as tf

from alf.algorithms.algorithm import Algorithm
from alf.data_structures import AlgorithmStep, LossInfo, Nest, StepType, TrainingInfo
from alf.utils import dist_utils
from alf.utils.averager import ScalarWindowAverager

# The stages, in order.
MEASURE, INIT, FREE, ADJUST = 0, 1, 2, 3

_CROSSING_DECAY = 0.9


class EntropyTargetInfo(NamedTuple):
    """`entropy` and `entropy_for_gradient`, float32 [B]: see `dist_utils.compute_entropy`."""

    entropy: Any = ()
    entropy_for_gradient: Any = ()


@gin.configurable(module="alf")
class EntropyTargetAlgorithm(Algorithm):
    """Adds -alpha * entropy to the loss, and controls alpha in stages, once an update, by the average entropy H.

    * init: until H is below `max_entropy`, log alpha falls by `very_slow_update_rate` an update. Where `max_entropy` is
      not given it is first measured: min(0.8 H0, H0 / 0.8), of the average H0 of the first `average_window` updates.
    * free: until H is below `target_entropy`, alpha stands still.
    * adjust: with d = +1 where H falls and -1 where it rises, log alpha moves by d * rate where that leads to the target
      (H falls below it, or rises above it), and by d * rate / 2 else, against overshooting. The rate starts as
      `fast_update_rate` and shrinks by 0.9, down to `slow_update_rate`, each time H crosses the target; it is fast
      again while H is far below: below half of a positive target, or twice a negative one.
    """

    def __init__(
        self,
        action_spec: Nest,
        initial_alpha: float = 0.1,
        skip_free_stage: bool = False,
        max_entropy: float | None = None,
        target_entropy: float | None = None,
        very_slow_update_rate: float = 0.001,
        slow_update_rate: float = 0.01,
        fast_update_rate: float = math.log(2.0),
        min_alpha: float = 1e-4,
        average_window: int = 2,
        debug_summaries: bool = False,
        name: str = "EntropyTargetAlgorithm",
    ) -> None:
        """Creates the algorithm.

        Args:
          action_spec: nest of bounded specs of one action.
          initial_alpha: what alpha begins with.
          skip_free_stage: adjust from the beginning.
          max_entropy: see above, nats.
          target_entropy: nats; by default the sum of `dist_utils.calc_default_target_entropy` over the actions.
          very_slow_update_rate: see above.
          slow_update_rate: see above.
          fast_update_rate: see above.
          min_alpha: alpha is never below.
          average_window: updates that the average entropy is of.
          debug_summaries: accepted; alpha, stage and entropy are always reported.
          name: name of the algorithm.

        Raises:
          ValueError: `initial_alpha` or `min_alpha` is not above 0, or `target_entropy` is above `max_entropy`.
        """
        super().__init__(debug_summaries=debug_summaries, name=name)
        if min(initial_alpha, min_alpha) <= 0.0:
            raise ValueError(f"{name}: initial_alpha={initial_alpha} and min_alpha={min_alpha} must be above 0.")
        if target_entropy is None:
            specs = tf.nest.flatten(action_spec)
            target_entropy = sum(dist_utils.calc_default_target_entropy(spec) for spec in specs)
        if max_entropy is not None and max_entropy < target_entropy:
            raise ValueError(
                f"{name}: max_entropy={max_entropy} is below target_entropy={target_entropy}; it must be above or equal."
            )
        self._target = float(target_entropy)
        self._far_below = 0.5 * self._target if self._target > 0.0 else 2.0 * self._target
        self._very_slow, self._slow, self._fast = very_slow_update_rate, slow_update_rate, fast_update_rate
        self._min_log_alpha = math.log(min_alpha)
        self._window = average_window
        stage = ADJUST if skip_free_stage else MEASURE if max_entropy is None else INIT

        def variable(value: float, name: str, dtype: tf.DType = tf.float32) -> tf.Variable:
            return tf.Variable(value, dtype=dtype, trainable=False, name=name)

        self._log_alpha = variable(math.log(max(initial_alpha, min_alpha)), "log_alpha")
        self._stage = variable(stage, "stage", tf.int32)
        self._updates = variable(0, "updates", tf.int32)
        self._rate = variable(fast_update_rate, "update_rate")
        self._max_entropy = variable(0.0 if max_entropy is None else max_entropy, "max_entropy")
        self._was_above = variable(True, "was_above", tf.bool)
        self._average = ScalarWindowAverager(average_window)

    @property
    def alpha(self) -> tf.Tensor:
        """The weight of the entropy bonus, float32 []."""
        return tf.exp(self._log_alpha)

    @property
    def stage(self) -> tf.Tensor:
        """int32 []: MEASURE, INIT, FREE or ADJUST."""
        return tf.convert_to_tensor(self._stage)

    @property
    def target_entropy(self) -> float:
        """What the entropy is held near, nats."""
        return self._target

    def train_step(self, inputs: Nest, state: Nest = None) -> AlgorithmStep:
        """The entropies of a nest of action distributions.

        Args:
          inputs: (nest of distributions [B, ...], step_type int32 [B]).
          state: unused.
        """
        distribution, step_type = inputs
        del step_type
        return AlgorithmStep(info=EntropyTargetInfo(*dist_utils.compute_entropy(distribution, 1)))

    def calc_loss(self, training_info: TrainingInfo, valid: tf.Tensor | None = None) -> LossInfo:
        """-alpha * entropy, as `scalar_loss`.

        Args:
          training_info: [T, B], `info` an EntropyTargetInfo.
          valid: float32 [T, B], which rows count; by default those that are not LAST.
        """
        info = training_info.info
        bonus = _mean(info.entropy_for_gradient, training_info, valid)
        extra = {
            f"{self.name}/entropy": _mean(info.entropy, training_info, valid),
            f"{self.name}/alpha": self.alpha,
            f"{self.name}/stage": tf.cast(self._stage, tf.float32),
        }
        return LossInfo(scalar_loss=-tf.stop_gradient(self.alpha) * bonus, extra=extra)

    def after_train(self, training_info: TrainingInfo, valid: tf.Tensor | None = None) -> None:
        """Adjusts alpha by the mean entropy of the rows, unless none counts; arguments as in `calc_loss`."""
        entropy = _mean(training_info.info.entropy, training_info, valid)
        # The mean of no rows is 0, which would look like an entropy that has fallen.
        counts = tf.reduce_any(_valid(training_info, valid) > 0.0)
        tf.cond(counts, lambda: self.adjust_alpha(entropy), lambda: self.alpha)

    def adjust_alpha(self, entropy: tf.Tensor) -> tf.Tensor:
        """One step of the controller.

        Args:
          entropy: float32 [], of this update.

        Returns:
          alpha from now on, float32 [].
        """
        # The first entropy neither rises nor falls nor crosses: there is none before it.
        first = tf.equal(self._updates, 0)
        before = tf.where(first, entropy, self._average.get())
        now = self._average.average(entropy)
        self._updates.assign_add(1)
        stage, rate = tf.convert_to_tensor(self._stage), tf.convert_to_tensor(self._rate)
        above, rises, falls = now > self._target, now > before, now < before

        was_above = tf.where(first, above, self._was_above)
        crossed = tf.logical_and(tf.equal(stage, ADJUST), tf.not_equal(above, was_above))
        rate = tf.where(crossed, tf.maximum(_CROSSING_DECAY * rate, self._slow), rate)
        rate = tf.where(now < self._far_below, self._fast, rate)
        up = tf.where(above, 0.5, 1.0) * tf.cast(falls, tf.float32)
        down = tf.where(above, 1.0, 0.5) * tf.cast(rises, tf.float32)
        change = tf.gather(tf.stack([0.0, -self._very_slow, 0.0, (up - down) * rate]), stage)

        measured = self._updates >= self._window
        self._max_entropy.assign(
            tf.where(
                tf.logical_and(tf.equal(stage, MEASURE), measured), tf.minimum(0.8 * now, now / 0.8), self._max_entropy
            )
        )
        done = tf.stack([measured, now < self._max_entropy, tf.logical_not(above), tf.constant(False)])
        self._stage.assign_add(tf.cast(tf.gather(done, stage), tf.int32))
        self._rate.assign(tf.where(tf.equal(stage, ADJUST), rate, self._rate))
        self._was_above.assign(above)
        self._log_alpha.assign(tf.maximum(self._log_alpha + change, self._min_log_alpha))
        return self.alpha


def _valid(training_info: TrainingInfo, valid: tf.Tensor | None) -> tf.Tensor:
    """`valid`; where it is not given, the rows that are not LAST."""
    return tf.cast(tf.not_equal(training_info.step_type, StepType.LAST), tf.float32) if valid is None else valid


def _mean(x: tf.Tensor, training_info: TrainingInfo, valid: tf.Tensor | None) -> tf.Tensor:
    valid = _valid(training_info, valid)
    # What stands at invalid rows need not be finite.
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(valid > 0.0, x, 0.0)), tf.reduce_sum(valid))
