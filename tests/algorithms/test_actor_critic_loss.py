"""ActorCriticLoss against a float64 oracle: values, gradients, masks and options."""

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.actor_critic_loss import ActorCriticLoss, masked_means, valid_mask
from alf.data_structures import TrainingInfo
from alf.utils import losses
from tests.algorithms.loss_cases import CASES, FIRST, LAST, MID, Info, numeric_gradient, step_types

_T, _B = 5, 2


class _Data:
    """Records of one kind of action: `params` of the learning policy, `behaviour` of the acting one."""

    def __init__(self, name: str, seed: int = 0) -> None:
        rs = np.random.RandomState(seed)
        self.case = CASES[name]
        outer = (_T, _B)
        self.step_type, self.discount = step_types(rs, _T, _B)
        self.params, self.behaviour = (rs.randn(*outer, self.case.width).astype(np.float32) for _ in range(2))
        self.action = self.case.sample(rs, outer)
        self.reward, self.value = (rs.randn(*outer).astype(np.float32) for _ in range(2))

    def info(self, params: tf.Tensor, with_rollout: bool = True) -> TrainingInfo:
        return TrainingInfo(
            action=tf.nest.map_structure(tf.constant, self.action),
            step_type=tf.constant(self.step_type),
            reward=tf.constant(self.reward),
            discount=tf.constant(self.discount),
            info=Info(self.case.build(params)),
            rollout_info=Info(self.case.build(tf.constant(self.behaviour))) if with_rollout else (),
        )

    def call(self, loss: ActorCriticLoss, with_rollout: bool = True):
        params, value = tf.constant(self.params), tf.constant(self.value)
        with tf.GradientTape() as tape:
            tape.watch([params, value])
            result = loss(self.info(params, with_rollout), value)
            total = tf.reduce_sum(result.loss)
        return result, tape.gradient(total, [params, value])


def _valid(step_type):
    mask = step_type != LAST
    mask[-1] = False
    return mask


def _run_end(step, t):
    return next((s for s in range(t + 1, len(step)) if step[s] == LAST), len(step) - 1)


def _oracle_targets(data, kind, gamma, lam):
    """(returns, advantages), [T, B], by sums over the rest of the episode."""
    r, v, d, step = data.reward, data.value, data.discount * gamma, data.step_type
    returns, advantages = v.astype(np.float64).copy(), np.zeros((_T, _B))
    ratio = np.exp(data.case.log_prob(data.params, data.action) - data.case.log_prob(data.behaviour, data.action))
    for b in range(_B):
        for t in range(_T - 1):
            if step[t, b] == LAST:
                continue
            end, product, ret, gae, vs = _run_end(step[:, b], t), 1.0, 0.0, 0.0, 0.0
            trace = 1.0
            for s in range(t, end):
                delta = r[s + 1, b] + d[s + 1, b] * v[s + 1, b] - v[s, b]
                rho = min(1.0, ratio[s, b])
                ret += product * r[s + 1, b]
                gae += product * lam ** (s - t) * delta
                vs += product * lam ** (s - t) * trace * rho * delta
                product *= d[s + 1, b]
                trace *= rho
            ret += product * v[end, b]
            if kind == "vtrace":
                returns[t, b] += vs
            elif kind == "td_lambda":
                returns[t, b] += gae
            else:
                returns[t, b] = ret
            advantages[t, b] = gae if kind in ("gae", "td_lambda") else ret - v[t, b]
    if kind == "vtrace":
        for t in range(_T - 1):
            rho = np.minimum(1.0, ratio[t]) * (step[t] != LAST)
            advantages[t] = rho * (r[t + 1] + d[t + 1] * returns[t + 1] - v[t])
    return returns, advantages


_KINDS = {
    "plain": {},
    "gae": {"use_gae": True, "use_td_lambda_return": False},
    "td_lambda": {"use_gae": True},
    "vtrace": {"use_vtrace": True},
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", ["discrete", "discrete_1", "multi_discrete", "normal", "nest"])
def test_loss_and_gradients_equal_the_oracle(name, kind):
    data = _Data(name)
    loss = ActorCriticLoss(
        data.case.spec, gamma=0.9, td_lambda=0.8, entropy_regularization=0.1, td_loss_weight=0.5, **_KINDS[kind]
    )
    result, gradients = data.call(loss)
    returns, advantages = _oracle_targets(data, kind, 0.9, 0.8)
    valid = _valid(data.step_type)

    def elements(params, value):
        log_prob, entropy = data.case.log_prob(params, data.action), data.case.entropy(params)
        return (-log_prob * advantages + 0.5 * (returns - value) ** 2 - 0.1 * entropy) * valid

    params, value = data.params.astype(np.float64), data.value.astype(np.float64)
    np.testing.assert_allclose(result.loss, elements(params, value), rtol=1e-4, atol=1e-4)
    expected = numeric_gradient(lambda p: elements(p, value).sum(), params)
    np.testing.assert_allclose(gradients[0], expected, rtol=2e-3, atol=1e-3)
    expected = numeric_gradient(lambda v: elements(params, v).sum(), value)
    np.testing.assert_allclose(gradients[1], expected, rtol=2e-3, atol=1e-3)
    assert result.scalar_loss == ()


def test_extra_are_means_over_valid_rows():
    data = _Data("discrete")
    result, _ = data.call(ActorCriticLoss(data.case.spec, gamma=0.9, td_lambda=0.8, use_vtrace=True))
    returns, advantages = _oracle_targets(data, "vtrace", 0.9, 0.8)
    valid = _valid(data.step_type)
    log_prob = data.case.log_prob(data.params, data.action)
    ratio = np.exp(log_prob - data.case.log_prob(data.behaviour, data.action))
    expected = {
        "policy_gradient_loss": (-log_prob * advantages)[valid].mean(),
        "td_loss": ((returns - data.value) ** 2)[valid].mean(),
        "entropy": data.case.entropy(data.params)[valid].mean(),
        "importance_ratio": ratio[valid].mean(),
        "explained_variance": 1 - (returns - data.value)[valid].var() / returns[valid].var(),
    }
    assert result.extra.keys() == expected.keys()
    for key, value in expected.items():
        assert float(result.extra[key]) == pytest.approx(value, rel=1e-3, abs=1e-4), key


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_without_signal(kind):
    """LAST rows and the last row: no loss, no gradient, and what stands there does not matter."""
    data = _Data("normal")
    loss = ActorCriticLoss(data.case.spec, entropy_regularization=0.1, **_KINDS[kind])
    result, gradients = data.call(loss)
    invalid = ~_valid(data.step_type)
    assert invalid.sum() >= 2 * _B
    np.testing.assert_array_equal(result.loss.numpy()[invalid], 0)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient.numpy()[invalid], 0)
        assert (gradient.numpy()[~invalid] != 0).any()
    data.action[invalid] += 3
    data.params[invalid] -= 1
    changed, _ = data.call(loss)
    np.testing.assert_allclose(changed.loss, result.loss, rtol=1e-6)


def test_a_last_row_without_behaviour_does_not_spoil_the_loss():
    """The appended bootstrap row has no action: its recorded distribution may be zeros, with a scale of 0."""
    data = _Data("normal")
    loss = ActorCriticLoss(data.case.spec, use_vtrace=True, entropy_regularization=0.1)
    expected, _ = data.call(loss)
    data.behaviour[-1] = -np.inf  # exp(-inf) is a scale of 0
    data.behaviour[-1, :, :2] = 0
    data.action[-1] = 0
    result, gradients = data.call(loss)
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_array_equal(result.loss, expected.loss)
    assert all(np.isfinite(float(x)) for x in result.extra.values())


@pytest.mark.parametrize("name", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("use_vtrace", [False, True])
def test_an_action_that_the_last_observation_forbids_does_not_spoil_the_loss(name, use_vtrace):
    """The action in the appended bootstrap row is that of the row before; a network may give it a logit of -inf there."""
    found = []
    for forbidden in (-1e4, -np.inf):
        data = _Data(name)
        loss = ActorCriticLoss(data.case.spec, use_vtrace=use_vtrace, entropy_regularization=0.1)
        logits = data.params[-1].reshape(_B, -1, 3)
        np.put_along_axis(logits, data.action[-1].reshape(_B, -1, 1), forbidden, -1)
        assert (data.params[-1] == forbidden).any(), "what was changed is a view"
        found.append(data.call(loss))
    (expected, slopes), (result, gradients) = found
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)
    assert np.isfinite(result.loss).all()
    for key, value in result.extra.items():
        assert float(value) == pytest.approx(float(expected.extra[key]), rel=1e-6), key
    for gradient, slope in zip(gradients, slopes, strict=True):
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, slope, rtol=1e-6)
        assert (slope.numpy() != 0).any()


def test_vtrace_without_behaviour_is_on_policy():
    data = _Data("discrete")
    loss = ActorCriticLoss(data.case.spec, use_vtrace=True, td_lambda=1.0)
    result, gradients = data.call(loss, with_rollout=False)
    assert float(result.extra["importance_ratio"]) == 1.0
    expected, expected_gradients = data.call(ActorCriticLoss(data.case.spec))
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients[0], expected_gradients[0], rtol=1e-4, atol=1e-4)


def test_advantages_are_normalised_over_valid_rows_then_clipped():
    data = _Data("discrete")
    make = {"use_gae": True, "debug_summaries": True}
    raw = data.call(ActorCriticLoss(data.case.spec, **make))[0].extra["advantages"].numpy()
    valid = _valid(data.step_type)
    normalised = (raw - raw[valid].mean()) / (raw[valid].std() + 1e-8)
    got = data.call(ActorCriticLoss(data.case.spec, normalize_advantages=True, **make))[0].extra["advantages"].numpy()
    np.testing.assert_allclose(got[valid], normalised[valid], rtol=1e-4, atol=1e-5)
    clipping = ActorCriticLoss(data.case.spec, normalize_advantages=True, advantage_clip=0.5, **make)
    got = data.call(clipping)[0].extra["advantages"].numpy()
    np.testing.assert_allclose(got[valid], np.clip(normalised, -0.5, 0.5)[valid], rtol=1e-4, atol=1e-5)


def test_squashed_policy_learns_towards_better_actions():
    data = _Data("squashed")
    result, gradients = data.call(ActorCriticLoss(data.case.spec, entropy_regularization=0.01, use_vtrace=True))
    assert np.isfinite(result.loss).all()
    assert np.isfinite(gradients[0]).all()
    _, advantages = _oracle_targets(data, "vtrace", 0.99, 0.95)

    def elements(params):
        return (-data.case.log_prob(params, data.action) * advantages * _valid(data.step_type)).sum()

    _, gradients = data.call(ActorCriticLoss(data.case.spec, use_vtrace=True))
    expected = numeric_gradient(elements, data.params.astype(np.float64))
    np.testing.assert_allclose(gradients[0], expected, rtol=5e-3, atol=5e-3)


def test_entropy_bonus_has_the_right_sign():
    data = _Data("discrete")
    data.reward[:], data.value[:] = 0, 0
    data.params[..., 0] = 2.0
    _, gradients = data.call(ActorCriticLoss(data.case.spec, entropy_regularization=1.0))
    stepped = data.params - 0.1 * gradients[0].numpy()
    valid = _valid(data.step_type)
    assert (data.case.entropy(stepped) > data.case.entropy(data.params))[valid].all()


def test_td_error_loss_fn_is_used():
    data = _Data("discrete")
    data.reward *= 10
    result, gradients = data.call(ActorCriticLoss(data.case.spec, td_error_loss_fn=losses.element_wise_huber_loss))
    assert np.abs(gradients[1]).max() <= 1.0
    assert float(result.extra["td_loss"]) > 1.0


def test_valid_mask():
    step_type = tf.constant([[FIRST, LAST], [LAST, FIRST], [MID, MID]])
    np.testing.assert_array_equal(valid_mask(step_type), [[1, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(valid_mask(step_type, last_row=True), [[1, 0], [0, 1], [1, 1]])


def test_masked_means():
    means = masked_means(tf.constant([[1.0, 0.0]]), {"a": tf.constant([[2.0, 5.0]]), "b": tf.constant([[3.0, 7.0]])})
    assert {k: float(v) for k, v in means.items()} == {"a": 2.0, "b": 3.0}
    assert float(masked_means(tf.zeros([1, 2]), {"a": tf.ones([1, 2])})["a"]) == 0.0


def test_one_row_is_refused():
    data = _Data("discrete")
    one = tf.nest.map_structure(lambda x: x[:1], (data.step_type, data.discount, data.params, data.behaviour))
    data.step_type, data.discount, data.params, data.behaviour = one
    data.action, data.reward, data.value = data.action[:1], data.reward[:1], data.value[:1]
    with pytest.raises(ValueError, match="at least two time steps"):
        data.call(ActorCriticLoss(data.case.spec))


def test_gin_binds_every_argument():
    bindings = """
      ActorCriticLoss.gamma = 0.98
      ActorCriticLoss.td_error_loss_fn = @element_wise_huber_loss
      ActorCriticLoss.use_gae = True
      ActorCriticLoss.td_lambda = 0.9
      ActorCriticLoss.use_td_lambda_return = True
      ActorCriticLoss.normalize_advantages = True
      ActorCriticLoss.advantage_clip = 2.0
      ActorCriticLoss.entropy_regularization = 1e-4
      ActorCriticLoss.td_loss_weight = 0.5
      ActorCriticLoss.use_vtrace = False
    """
    with gin.unlock_config():
        gin.parse_config(bindings)
    try:
        loss = ActorCriticLoss(CASES["discrete"].spec, debug_summaries=True)
        assert (loss.gamma, loss.td_lambda, loss.name) == (0.98, 0.9, "ActorCriticLoss")
    finally:
        gin.clear_config()


def test_traced_equals_eager_and_compiles():
    data = _Data("discrete")
    loss = ActorCriticLoss(data.case.spec, use_vtrace=True, entropy_regularization=0.1, normalize_advantages=True)
    expected, _ = data.call(loss)
    for compiled in (False, True):
        traced = tf.function(lambda p, v: loss(data.info(p), v).loss, autograph=False, jit_compile=compiled)
        got = traced(tf.constant(data.params), tf.constant(data.value))
        np.testing.assert_allclose(got, expected.loss, rtol=1e-4, atol=1e-5)
