"""The controller of the entropy weight against a plain state machine, its loss against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import example, given
from hypothesis import strategies as st
from tf_agents.specs import tensor_spec

from alf.algorithms import entropy_target_algorithm as entropy_target
from alf.algorithms.entropy_target_algorithm import EntropyTargetAlgorithm, EntropyTargetInfo
from alf.data_structures import StepType, TrainingInfo
from alf.utils import dist_utils

tfd = tfp.distributions
DISCRETE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3)
FAST, SLOW, VERY_SLOW = math.log(2.0), 0.01, 0.001


class StateMachine:
    """What the docstring says, one `if` after the other."""

    def __init__(self, target: float, max_entropy: float | None, skip: bool, window: int, min_alpha: float) -> None:
        self.target, self.max_entropy, self.window = target, max_entropy, window
        self.stage = "adjust" if skip else "measure" if max_entropy is None else "init"
        self.log_alpha, self.min_log_alpha = math.log(0.1), math.log(min_alpha)
        self.rate, self.was_above, self.seen = FAST, True, list[float]()

    def step(self, entropy: float) -> float:
        before = float(np.mean(self.seen[-self.window :])) if self.seen else entropy
        self.seen.append(entropy)
        now = float(np.mean(self.seen[-self.window :]))
        if self.stage == "measure":
            if len(self.seen) >= self.window:
                self.max_entropy = min(0.8 * now, now / 0.8)
                self.stage = "init"
        elif self.stage == "init":
            self.log_alpha -= VERY_SLOW
            if now < self.max_entropy:
                self.stage = "free"
        elif self.stage == "free":
            if now <= self.target:
                self.stage = "adjust"
        else:
            self.adjust(before, now)
        self.was_above = now > self.target
        self.log_alpha = max(self.log_alpha, self.min_log_alpha)
        return math.exp(self.log_alpha)

    def adjust(self, before: float, now: float) -> None:
        above = now > self.target
        if len(self.seen) > 1 and above != self.was_above:
            self.rate = max(0.9 * self.rate, SLOW)
        if now < (self.target / 2 if self.target > 0 else 2 * self.target):
            self.rate = FAST
        if now < before:
            self.log_alpha += self.rate / 2 if above else self.rate
        elif now > before:
            self.log_alpha -= self.rate if above else self.rate / 2


@given(
    entropies=st.lists(st.integers(-40, 60).map(lambda n: n / 16), min_size=1, max_size=25),
    target=st.sampled_from([0.5, -0.75]),
    max_entropy=st.sampled_from([None, 1.25]),
    skip=st.booleans(),
    window=st.integers(1, 3),
)
# A measured entropy below 0 is divided: -1.2 is not yet low.
@example(entropies=[-1.0, -1.2, -1.3], target=-5.0, max_entropy=None, skip=False, window=1)
def test_the_controller_follows_its_stages(
    entropies: list[float], target: float, max_entropy: float | None, skip: bool, window: int
) -> None:
    oracle = StateMachine(target, max_entropy, skip, window, 1e-2)
    made = EntropyTargetAlgorithm(
        DISCRETE,
        skip_free_stage=skip,
        max_entropy=max_entropy,
        target_entropy=target,
        min_alpha=1e-2,
        average_window=window,
    )
    adjust = tf.function(made.adjust_alpha, autograph=False, input_signature=[tf.TensorSpec([], tf.float32)])
    stages = {"measure": 0, "init": 1, "free": 2, "adjust": 3}
    for entropy in entropies:
        expected = oracle.step(entropy)
        assert float(adjust(tf.constant(entropy))) == pytest.approx(expected, rel=1e-4)
        assert int(made.stage) == stages[oracle.stage]
        assert float(made.alpha) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("target", [0.5, -0.75])
def test_the_rate_falls_with_every_crossing_to_the_slow_one_and_is_fast_far_below(target: float) -> None:
    oracle = StateMachine(target, None, True, 1, 1e-6)
    made = EntropyTargetAlgorithm(
        DISCRETE, skip_free_stage=True, target_entropy=target, min_alpha=1e-6, average_window=1
    )
    alphas = []
    for entropy in [*(target + 0.1 * (-1) ** i for i in range(60)), target - 1.0, target - 1.1]:
        alphas.append(float(made.adjust_alpha(tf.constant(entropy))))
        assert alphas[-1] == pytest.approx(oracle.step(entropy), rel=1e-3)
    steps = np.diff(np.log(alphas))
    np.testing.assert_allclose(steps[[0, 1, 57, 58]], [0.9 * FAST, -0.81 * FAST, -SLOW, SLOW], rtol=1e-2)
    np.testing.assert_allclose(steps[-2:], FAST, rtol=1e-3)


@pytest.mark.parametrize(("entropy", "share"), [(1.3, 1.0), (0.4, 0.5)])
def test_the_first_entropy_moves_nothing_as_it_neither_rises_nor_falls_nor_crosses(
    entropy: float, share: float
) -> None:
    made = EntropyTargetAlgorithm(DISCRETE, skip_free_stage=True, target_entropy=0.5, initial_alpha=0.3)
    assert float(made.adjust_alpha(tf.constant(entropy))) == pytest.approx(0.3)
    assert float(made.adjust_alpha(tf.constant(entropy + 0.1))) == pytest.approx(0.3 * math.exp(-share * FAST))


def test_every_stage_is_passed_and_a_low_entropy_is_raised() -> None:
    made = EntropyTargetAlgorithm(DISCRETE, target_entropy=0.5, average_window=1)
    stages, alphas = [], []
    for entropy in [1.3, 1.2, 1.0, 0.8, 0.4, 0.3, 0.2, 0.1]:
        made.adjust_alpha(tf.constant(entropy))
        stages.append(int(made.stage))
        alphas.append(float(made.alpha))
    assert stages == [1, 1, 2, 2, 3, 3, 3, 3]
    assert alphas[4] == pytest.approx(0.1, rel=0.01)
    np.testing.assert_allclose(np.diff(np.log(alphas[4:])), FAST, rtol=1e-3)


def test_loss_is_the_weighted_entropy_of_valid_rows_and_traces_without_a_tensor_if() -> None:
    made = EntropyTargetAlgorithm(DISCRETE, initial_alpha=0.3)
    rs = np.random.RandomState(0)
    logits = tf.Variable(rs.randn(4, 3, 4).astype(np.float32))
    step_type = np.ones([4, 3], np.int32)
    step_type[1, 2] = step_type[3, 0] = StepType.LAST

    @tf.function(autograph=False)
    def run() -> Any:
        with tf.GradientTape() as tape:
            entropy, for_gradient = dist_utils.compute_entropy(tfd.Categorical(logits=logits), 2)
            info = TrainingInfo(step_type=tf.constant(step_type), info=EntropyTargetInfo(entropy, for_gradient))
            loss = made.calc_loss(info)
        made.after_train(info)
        return loss.scalar_loss, tape.gradient(loss.scalar_loss, logits), made._average.get()

    loss, gradient, average = run()
    x = logits.numpy().astype(np.float64)
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)
    valid = step_type != StepType.LAST
    assert float(loss) == pytest.approx(-0.3 * entropy[valid].mean(), rel=1e-5)
    assert float(average) == pytest.approx(entropy[valid].mean(), rel=1e-5)
    expected = 0.3 * p * (np.log(p) + entropy[..., None]) * valid[..., None] / valid.sum()
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_what_is_differentiated_is_the_entropy_for_gradients_and_what_is_told_and_followed_is_the_entropy() -> None:
    made = EntropyTargetAlgorithm(DISCRETE, initial_alpha=0.3)
    # Of two rows that are not LAST only one counts.
    entropy, for_gradient = tf.constant([[1.2] * 3, [np.nan] * 3]), tf.Variable(tf.fill([2, 3], -7.0))
    valid = tf.constant([[1.0] * 3, [0.0] * 3])
    info = TrainingInfo(step_type=tf.ones([2, 3], tf.int32), info=EntropyTargetInfo(entropy, for_gradient))
    with tf.GradientTape() as tape:
        loss = made.calc_loss(info, valid)
    np.testing.assert_allclose(tape.gradient(loss.scalar_loss, for_gradient), -0.1 * valid, rtol=1e-5)
    assert float(loss.extra[f"{made.name}/entropy"]) == pytest.approx(1.2)
    made.after_train(info, valid)
    assert float(made._average.get()) == pytest.approx(1.2)


@pytest.mark.parametrize("traced", [False, True])
def test_a_minibatch_without_a_row_that_counts_moves_nothing(traced: bool) -> None:
    """Such as single steps that are LAST: the mean of no entropies is not an entropy of 0."""
    made = EntropyTargetAlgorithm(DISCRETE, skip_free_stage=True, target_entropy=0.5, average_window=2)
    after_train = tf.function(made.after_train, autograph=False) if traced else made.after_train

    def info(entropy: float, step_type: int = StepType.MID) -> TrainingInfo:
        entropies = tf.fill([2, 3], entropy)
        return TrainingInfo(step_type=tf.fill([2, 3], step_type), info=EntropyTargetInfo(entropies, entropies))

    none, all_of_them = tf.zeros([2, 3]), tf.ones([2, 3])
    begin = [v.numpy() for v in made.variables]
    after_train(info(1.2), none)
    for variable, value in zip(made.variables, begin, strict=True):
        np.testing.assert_array_equal(variable, value)
    for entropy in (1.3, 1.2):
        after_train(info(entropy), all_of_them)
    before = [v.numpy() for v in made.variables]
    assert float(made.alpha) != pytest.approx(0.1)
    after_train(info(1.2), none)
    after_train(info(1.2, StepType.LAST))
    for variable, value in zip(made.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    after_train(info(1.1), all_of_them)
    assert float(made._average.get()) == pytest.approx(1.15)


def test_train_step_gives_the_entropy_of_each_row() -> None:
    made = EntropyTargetAlgorithm(DISCRETE)
    logits = tf.constant([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])
    step = made.train_step((tfd.Categorical(logits=logits), tf.constant([1, 1])))
    np.testing.assert_allclose(step.info.entropy, [math.log(4), 0.0], atol=1e-5)


def test_actions_without_bounds_need_a_target() -> None:
    unbounded = tensor_spec.BoundedTensorSpec([2], tf.float32, -3e38, 3e38)
    with pytest.raises(
        ValueError, match=r"actions without bounds, -3e.38 to 3e.38, has no default: set target_entropy"
    ):
        EntropyTargetAlgorithm(unbounded)
    assert EntropyTargetAlgorithm(unbounded, target_entropy=-1.0).target_entropy == -1.0


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_entropy=0.1 is below target_entropy=0.5"):
        EntropyTargetAlgorithm(DISCRETE, max_entropy=0.1, target_entropy=0.5)
    with pytest.raises(ValueError, match="must be above 0"):
        EntropyTargetAlgorithm(DISCRETE, initial_alpha=0.0)


def test_default_target_is_that_of_all_actions_together() -> None:
    spec = {"a": DISCRETE, "b": tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 3.0)}
    discrete = -0.99 * math.log(0.99) - 0.01 * math.log(0.01 / 3)
    assert EntropyTargetAlgorithm(spec).target_entropy == pytest.approx(discrete + 2 * math.log(0.04))
    assert entropy_target.ADJUST == 3


@pytest.mark.parametrize("low", [0, 2])
def test_default_entropies(low: int) -> None:
    one = tensor_spec.BoundedTensorSpec([], tf.int32, low, low + 3)
    # The entropy itself: one action with 0.99, three with a third of 0.01.
    p = np.array([0.99, 0.01 / 3, 0.01 / 3, 0.01 / 3])
    assert dist_utils.calc_default_target_entropy(one) == pytest.approx(-(p * np.log(p)).sum())
    assert dist_utils.calc_default_max_entropy(one) == pytest.approx(0.8 * math.log(4))
    box = tensor_spec.BoundedTensorSpec([2], tf.float32, [0.0, 0.0], [0.5, 0.1])
    assert dist_utils.calc_default_target_entropy(box) == pytest.approx(math.log(0.005) + math.log(0.001))
    assert dist_utils.calc_default_max_entropy(box) == pytest.approx((math.log(0.5) + math.log(0.1)) / 0.8)
    single = tensor_spec.BoundedTensorSpec([3], tf.int32, 0, 0)
    assert dist_utils.calc_default_target_entropy(single) == 0.0
