"""PPOLoss against a float64 oracle: values, gradients, masks and options."""

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm, ActorCriticInfo
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOInfo, PPOLoss
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, TrainingInfo
from alf.utils import rng
from alf.utils.losses import element_wise_huber_loss
from tests.algorithms.loss_cases import CASES, FIRST, LAST, MID, Info, numeric_gradient
from tests.algorithms.networks import feed_forward

_EPSILON = 0.2


class _Data:
    """A minibatch [T, B] of shuffled rows, a few of them LAST."""

    def __init__(self, name: str, outer: tuple[int, int] = (1, 40), spread: float = 0.3, seed: int = 0) -> None:
        rs = np.random.RandomState(seed)
        self.case = CASES[name]
        self.step_type = np.where(rs.rand(*outer) < 0.2, LAST, MID).astype(np.int32)
        self.behaviour = rs.randn(*outer, self.case.width).astype(np.float32)
        self.params = self.behaviour + (spread * rs.randn(*self.behaviour.shape)).astype(np.float32)
        self.action = self.case.sample(rs, outer)
        self.returns, self.advantages, self.value = (rs.randn(*outer).astype(np.float32) for _ in range(3))

    @property
    def valid(self) -> np.ndarray:
        return self.step_type != LAST

    def info(self, params: tf.Tensor) -> TrainingInfo:
        return TrainingInfo(
            action=tf.nest.map_structure(tf.constant, self.action),
            step_type=tf.constant(self.step_type),
            info=Info(self.case.build(params)),
            rollout_info=PPOInfo(
                self.case.build(tf.constant(self.behaviour)), tf.constant(self.returns), tf.constant(self.advantages)
            ),
        )

    def call(self, loss: PPOLoss):
        params, value = tf.constant(self.params), tf.constant(self.value)
        with tf.GradientTape() as tape:
            tape.watch([params, value])
            result = loss(self.info(params), value)
            total = tf.reduce_sum(result.loss)
        return result, tape.gradient(total, [params, value])

    def normalised(self) -> np.ndarray:
        valid = self.advantages[self.valid].astype(np.float64)
        return (self.advantages - valid.mean()) / (valid.std() + 1e-8)

    def ratio(self, params: np.ndarray) -> np.ndarray:
        behaviour = self.behaviour.astype(np.float64)
        return np.exp(self.case.log_prob(params, self.action) - self.case.log_prob(behaviour, self.action))

    def surrogate(self, params: np.ndarray) -> np.ndarray:
        ratio, advantages = self.ratio(params), self.normalised()
        return -np.minimum(ratio * advantages, np.clip(ratio, 1 - _EPSILON, 1 + _EPSILON) * advantages)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_equal_the_oracle(name):
    data = _Data(name)
    entropy_weight = 0.0 if name == "squashed" else 0.1
    loss = PPOLoss(data.case.spec, entropy_regularization=entropy_weight, td_loss_weight=0.5)
    result, gradients = data.call(loss)

    def elements(params, value):
        bonus = entropy_weight * data.case.entropy(params) if entropy_weight else 0.0
        return (data.surrogate(params) + 0.5 * (value - data.returns) ** 2 - bonus) * data.valid

    params, value = data.params.astype(np.float64), data.value.astype(np.float64)
    np.testing.assert_allclose(result.loss, elements(params, value), rtol=2e-3, atol=1e-3)
    expected = numeric_gradient(lambda p: elements(p, value).sum(), params, 1e-6)
    np.testing.assert_allclose(gradients[0], expected, rtol=2e-2, atol=2e-3)
    expected = numeric_gradient(lambda v: elements(params, v).sum(), value)
    np.testing.assert_allclose(gradients[1], expected, rtol=1e-3, atol=1e-3)
    clipped = np.abs(data.ratio(params) - 1) > _EPSILON
    assert clipped.any()
    assert not clipped.all()


def test_values_are_judged_by_the_loss_that_was_given():
    data = _Data("discrete")
    loss = PPOLoss(data.case.spec, td_error_loss_fn=element_wise_huber_loss, td_loss_weight=0.5)
    result, gradients = data.call(loss)
    error = data.value - data.returns
    far = np.abs(error) > 1.0
    assert far[data.valid].any()
    np.testing.assert_allclose(gradients[1], 0.5 * np.clip(error, -1.0, 1.0) * data.valid, rtol=1e-4, atol=1e-6)
    judged = np.where(far, np.abs(error) - 0.5, 0.5 * error**2)[data.valid]
    assert float(result.extra["td_loss"]) == pytest.approx(judged.mean(), rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_first_minibatch_has_ratio_exactly_1(name):
    data = _Data(name, outer=(1, 33))
    data.params = data.behaviour.copy()
    loss = PPOLoss(data.case.spec, debug_summaries=True)
    result, _ = data.call(loss)
    np.testing.assert_array_equal(result.extra["importance_ratio"], np.ones([1, 33]))
    assert float(result.extra["approx_kl"]) == 0.0
    assert float(result.extra["clip_fraction"]) == 0.0
    np.testing.assert_allclose(
        result.extra["policy_gradient_loss"], -data.normalised()[data.valid].mean(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.5, 1.0, False), (0.5, -1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_clipping_stops_the_gradient_on_one_side_only(ratio, advantage, moves):
    data = _Data("discrete", outer=(1, 1))
    data.step_type[:], data.action[:], data.advantages[:] = MID, 0, advantage
    data.behaviour[0, 0] = np.log([0.4, 0.3, 0.3])
    first = 0.4 * ratio
    data.params[0, 0] = np.log([first, (1 - first) / 2, (1 - first) / 2])
    result, gradients = data.call(PPOLoss(data.case.spec, normalize_advantages=False))
    assert (np.abs(gradients[0]).max() > 1e-3) == moves
    expected = -min(ratio * advantage, float(np.clip(ratio, 0.8, 1.2)) * advantage)
    assert float(result.extra["policy_gradient_loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("outer", [(1, 40), (4, 10)])
def test_extra_are_means_over_valid_rows(outer):
    data = _Data("discrete", outer)
    result, _ = data.call(PPOLoss(data.case.spec))
    params, valid = data.params.astype(np.float64), data.valid
    ratio = data.ratio(params)
    old_value = data.returns - data.advantages
    expected = {
        "policy_gradient_loss": data.surrogate(params)[valid].mean(),
        "td_loss": ((data.value - data.returns) ** 2)[valid].mean(),
        "entropy": data.case.entropy(params)[valid].mean(),
        "approx_kl": (ratio - 1 - np.log(ratio))[valid].mean(),
        "clip_fraction": (np.abs(ratio - 1) > _EPSILON)[valid].mean(),
        "explained_variance": 1 - (data.returns - old_value)[valid].var() / data.returns[valid].var(),
    }
    assert result.extra.keys() == expected.keys()
    for key, value in expected.items():
        assert float(result.extra[key]) == pytest.approx(value, rel=1e-3, abs=1e-4), key


def test_only_last_steps_are_masked():
    data = _Data("normal", outer=(3, 20))
    result, gradients = data.call(PPOLoss(data.case.spec, entropy_regularization=0.1))
    assert (~data.valid).any()
    np.testing.assert_array_equal(result.loss.numpy()[~data.valid], 0)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient.numpy()[~data.valid], 0)
    assert (result.loss.numpy()[-1][data.valid[-1]] != 0).all()
    data.advantages[~data.valid] = 1e6
    changed, _ = data.call(PPOLoss(data.case.spec, entropy_regularization=0.1))
    np.testing.assert_allclose(changed.loss, result.loss, rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_tiny_minibatches_are_finite(rows):
    data = _Data("discrete", outer=(1, max(rows, 1)))
    data.step_type[:] = MID if rows else LAST
    result, gradients = data.call(PPOLoss(data.case.spec, entropy_regularization=0.1, check_numerics=True))
    for x in (result.loss, *gradients, *result.extra.values()):
        assert np.isfinite(x).all()


def test_normalisation_can_be_off_and_advantages_clipped():
    data = _Data("discrete")
    plain = data.call(PPOLoss(data.case.spec, normalize_advantages=False, debug_summaries=True))[0]
    np.testing.assert_array_equal(plain.extra["advantages"], data.advantages)
    clipped = data.call(PPOLoss(data.case.spec, advantage_clip=0.5, debug_summaries=True))[0]
    expected = np.clip(data.normalised(), -0.5, 0.5)[data.valid]
    np.testing.assert_allclose(clipped.extra["advantages"].numpy()[data.valid], expected, rtol=1e-4, atol=1e-5)


def test_importance_ratio_clipping_is_used():
    data = _Data("discrete")
    ratio = data.ratio(data.params.astype(np.float64))
    for epsilon in (0.05, 0.4):
        result, _ = data.call(PPOLoss(data.case.spec, importance_ratio_clipping=epsilon))
        expected = (np.abs(ratio - 1) > epsilon)[data.valid].mean()
        assert float(result.extra["clip_fraction"]) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match=r"importance_ratio_clipping must be above 0, got 0\.0"):
        PPOLoss(data.case.spec, importance_ratio_clipping=0.0)


def test_log_prob_clipping_bounds_the_ratio():
    data = _Data("normal", spread=3.0)
    loss = PPOLoss(data.case.spec, log_prob_clipping=1.0, debug_summaries=True)
    ratio = data.call(loss)[0].extra["importance_ratio"].numpy()
    learns, acted = (
        np.clip(data.case.log_prob(p.astype(np.float64), data.action), -1.0, 1.0) for p in (data.params, data.behaviour)
    )
    np.testing.assert_allclose(ratio, np.exp(learns - acted), rtol=1e-3)
    assert ratio.max() <= np.exp(2.0) * 1.001
    assert ratio.min() >= np.exp(-2.0) * 0.999
    assert data.ratio(data.params.astype(np.float64)).max() > np.exp(2.0)


def test_check_numerics_names_what_is_wrong():
    data = _Data("discrete")
    data.params[0, 0, 0] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="PPOLoss: importance ratio"):
        data.call(PPOLoss(data.case.spec, check_numerics=True))
    data.call(PPOLoss(data.case.spec))


def test_far_policies_give_finite_losses():
    data = _Data("normal", spread=100.0)
    data.params[..., 2:] = np.clip(data.params[..., 2:], -3, 3)
    result, gradients = data.call(PPOLoss(data.case.spec, check_numerics=True))
    for x in (result.loss, *gradients, *result.extra.values()):
        assert np.isfinite(x).all()


def test_gin_binds_ppo_and_leaves_the_base_class_alone():
    bindings = """
      PPOLoss.entropy_regularization = 5e-3
      PPOLoss.gamma = 0.98
      PPOLoss.td_error_loss_fn = @losses.element_wise_huber_loss
      PPOLoss.normalize_advantages = False
      PPOLoss.td_lambda = 0.9
      PPOLoss.check_numerics = True
      ActorCriticLoss.gamma = 0.5
      ActorCriticLoss.td_lambda = 0.1
    """
    with gin.unlock_config():
        gin.parse_config(bindings)
    try:
        loss = PPOLoss(CASES["discrete"].spec)
        assert (loss.gamma, loss.td_lambda, loss.name) == (0.98, 0.9, "PPOLoss")
    finally:
        gin.clear_config()


def test_minibatch_steps_raise_the_objective():
    """A few gradient steps on one batch move probability towards actions with positive advantage."""
    data = _Data("discrete", outer=(1, 200), spread=0.0)
    data.step_type[:] = MID
    loss = PPOLoss(data.case.spec)
    for _ in range(20):
        _, gradients = data.call(loss)
        data.params -= 0.05 * gradients[0].numpy()
    gain = np.log(data.ratio(data.params.astype(np.float64)))
    assert (gain * data.normalised() > 0).mean() > 0.95
    assert float(data.call(loss)[0].extra["policy_gradient_loss"]) < -0.05


@pytest.mark.parametrize("name", ["discrete", "squashed"])
def test_traced_equals_eager_and_compiles(name):
    data = _Data(name)
    # Compiled code draws other random numbers, with which it would estimate the squashed policy's entropy.
    loss = PPOLoss(data.case.spec, entropy_regularization=None if name == "squashed" else 0.1)

    def call(params, value):
        with rng.scope(tf.constant([1, 2])):
            return loss(data.info(params), value).loss

    args = (tf.constant(data.params), tf.constant(data.value))
    for compiled in (False, True):
        traced = tf.function(call, autograph=False, jit_compile=compiled)
        np.testing.assert_allclose(traced(*args), call(*args), rtol=2e-3, atol=2e-3)


def test_ppo_and_its_loss_need_each_other() -> None:
    """Without the loss nothing would be clipped, and nobody would notice."""
    specs = tf.TensorSpec([3], tf.float32), tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
    with pytest.raises(
        ValueError, match="PPOAlgorithm needs a PPOLoss, got ActorCriticLoss: bind ActorCriticAlgorithm"
    ):
        PPOAlgorithm(*specs, *feed_forward(*specs))
    with pytest.raises(ValueError, match="PPOLoss needs what PPOAlgorithm prepares"):
        ActorCriticAlgorithm(*specs, *feed_forward(*specs), loss_class=PPOLoss)


def _discounted_errors(
    reward: np.ndarray, value: np.ndarray, step_type: np.ndarray, discount: np.ndarray, trace: float
) -> np.ndarray:
    """Advantages [B, T-1] of T rows, by the definition; `discount` has gamma in it."""
    advantages = np.zeros((len(reward), reward.shape[1] - 1))
    for b, first in np.ndindex(*advantages.shape):
        factor, row = 1.0, first
        while row < advantages.shape[1] and step_type[b, row] != LAST:
            error = reward[b, row + 1] + discount[b, row + 1] * value[b, row + 1] - value[b, row]
            advantages[b, first] += factor * error
            factor *= discount[b, row + 1] * trace
            row += 1
    return advantages


@pytest.mark.parametrize("bootstrapped", [True, False])
def test_advantages_of_a_rollout_are_discounted_sums_of_the_errors_of_its_values(bootstrapped: bool) -> None:
    rs = np.random.RandomState(0)
    obs, act = tf.TensorSpec([3], tf.float32), tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
    algorithm = PPOAlgorithm(obs, act, *feed_forward(obs, act), loss=PPOLoss(act, gamma=0.9, td_lambda=0.8))
    # Rows: an episode that ends truly, one that is cut, and one that ends truly right behind the last row.
    step_type, discount = np.full((3, 7), MID, np.int32), np.ones((3, 7), np.float32)
    step_type[:2, 2], step_type[:2, 3], discount[0, 2] = LAST, FIRST, 0.0
    step_type[2, 6], discount[2, 6] = LAST, 0.0
    reward, value = rs.randn(2, 3, 7).astype(np.float32)
    after = rs.randn(3, 3).astype(np.float32)
    last = ActionTimeStep(*(tf.constant(x[:, 6]) for x in (step_type, reward, discount)), observation=after)
    exp = Experience(
        *(tf.constant(x[:, :6]) for x in (step_type, reward, discount)),
        rollout_info=ActorCriticInfo(value=tf.constant(value[:, :6])),
        bootstrap=Bootstrap(last, ()) if bootstrapped else (),
    )
    # Nobody has acted behind the last row.
    value[:, 6] = algorithm._value_network(after)[0]
    got = algorithm.preprocess_experience(exp)
    expected = np.zeros((3, 6))
    rows = 7 if bootstrapped else 6
    whole = [x[:, :rows].astype(np.float64) for x in (reward, value, step_type, 0.9 * discount)]
    expected[:, : rows - 1] = _discounted_errors(*whole, 0.8)
    np.testing.assert_allclose(got.rollout_info.advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.rollout_info.returns, expected + value[:, :6], rtol=1e-4, atol=1e-5)
