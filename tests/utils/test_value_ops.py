"""Returns and advantages: known answers, and naive double loops written from the papers' definitions."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import given, settings
from hypothesis import strategies as st
from tf_agents.specs import tensor_spec

from alf.data_structures import StepType, TrainingInfo
from alf.utils import value_ops

FIRST, MID, LAST = (int(x) for x in (StepType.FIRST, StepType.MID, StepType.LAST))
_MIDS = np.full((1, 5), MID, np.int32)
_LAST_AT_2 = np.array([[MID, MID, LAST, FIRST, MID]], np.int32)
_TRUE_END = np.array([[0.9, 0.9, 0.0, 0.9, 0.9]], np.float32)


def _full(x: float) -> np.ndarray:
    return np.full((1, 5), x, np.float32)


# --- known answers ---------------------------------------------------------------------------------------------------

_ENDS = [(_MIDS, _full(0.9)), (_LAST_AT_2, _full(0.9)), (_LAST_AT_2, _TRUE_END)]


@pytest.mark.parametrize(
    ("ends", "expected"),
    list(zip(_ENDS, [[7.5341, 6.149, 4.61, 2.9], [4.61, 2.9, 1, 2.9], [3.8, 2, 1, 2.9]], strict=True)),
)
def test_discounted_return_known_answers(ends, expected):
    got = value_ops.discounted_return(_full(2), _full(1), *ends, time_major=False)
    np.testing.assert_allclose(got, [expected], rtol=1e-5)


@pytest.mark.parametrize(
    ("ends", "expected"),
    list(zip(_ENDS, [[6.0928, 5.488, 4.48, 2.8], [4.48, 2.8, 0, 2.8], [3.4, 1, 0, 2.8]], strict=True)),
)
def test_gae_known_answers(ends, expected):
    got = value_ops.generalized_advantage_estimation(_full(3), _full(2), *ends, td_lambda=0.6 / 0.9, time_major=False)
    np.testing.assert_allclose(got, [expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "values", "td_lambda", "returns", "advantages"),
    [
        (1.0, _full(2), 0.95, [5.655, 3, 2, 4.8, 2], [3.7, 1, 0, 2.8, 0]),
        (0.999, _full(2), 1, [5.695401, 2.999, 2, 4.7972, 2], [3.695401, 0.999, 0, 2.7972, 0]),
        (
            0.999,
            np.arange(5, dtype=np.float32)[None],
            1,
            [5.692502, 2.998, 2, 6.5964, 4],
            [5.692502, 1.998, 0, 3.5964, 0],
        ),
    ],
)
def test_vtrace_known_answers(ratio, values, td_lambda, returns, advantages):
    got = value_ops.vtrace_returns_and_advantages_impl(
        _full(ratio), _full(3), values, _LAST_AT_2, _TRUE_END, td_lambda=td_lambda, time_major=False
    )
    np.testing.assert_allclose(got[0], [returns], rtol=1e-6)
    np.testing.assert_allclose(got[1], [advantages], rtol=1e-6, atol=1e-6)


def test_one_step_known_answer():
    got = value_ops.one_step_discounted_return(*(x.T for x in (_full(2), _full(1), _LAST_AT_2, _full(0.9))))
    np.testing.assert_allclose(got[:, 0], [2.9, 2.9, 2, 2.9], rtol=1e-6)


# --- oracles ---------------------------------------------------------------------------------------------------------


def _next_end(step_types: np.ndarray, t: int) -> int:
    """The row at which the run of transitions out of row t ends: the next LAST, or the last row."""
    for s in range(t + 1, len(step_types)):
        if step_types[s] == LAST:
            return s
    return len(step_types) - 1


def _oracle_return(r, v, step, d):
    """The sum of the rewards to the end of the episode or the data, plus the discounted value there."""
    out = np.zeros(len(r) - 1)
    for t in range(len(r) - 1):
        if step[t] == LAST:
            out[t] = v[t]
            continue
        end, product = _next_end(step, t), 1.0
        for s in range(t + 1, end + 1):
            out[t] += product * r[s]
            product *= d[s]
        out[t] += product * v[end]
    return out


def _oracle_gae(r, v, step, d, lam):
    """Schulman 2015, eq. 16: the sum of (gamma lambda)^l delta_{t+l} within the episode."""
    out = np.zeros(len(r) - 1)
    for t in range(len(r) - 1):
        if step[t] == LAST:
            continue
        product = 1.0
        for s in range(t, _next_end(step, t)):
            out[t] += product * (r[s + 1] + d[s + 1] * v[s + 1] - v[s])
            product *= d[s + 1] * lam
    return out


def _oracle_vtrace(ratio, r, v, step, d, lam, rho_bar, c_bar):
    """Espeholt 2018, eq. 1: v_s = V(x_s) + sum_t gamma^{t-s} (prod_{i<t} c_i) delta_t V."""
    returns = v.astype(np.float64).copy()
    advantages = np.zeros(len(r))
    for s in range(len(r) - 1):
        if step[s] == LAST:
            continue
        for t in range(s, _next_end(step, s)):
            product = 1.0
            for i in range(s, t):
                product *= d[i + 1] * lam * min(c_bar, ratio[i])
            returns[s] += product * min(rho_bar, ratio[t]) * (r[t + 1] + d[t + 1] * v[t + 1] - v[t])
    for s in range(len(r) - 1):
        if step[s] != LAST:
            advantages[s] = min(rho_bar, ratio[s]) * (r[s + 1] + d[s + 1] * returns[s + 1] - v[s])
    return returns, advantages


def _columns(oracle, *arrays):
    columns = [oracle(*(a[:, b] for a in arrays)) for b in range(arrays[0].shape[1])]
    if isinstance(columns[0], tuple):
        return tuple(np.stack(c, 1) for c in zip(*columns, strict=True))
    return np.stack(columns, 1)


@st.composite
def _segments(draw, min_steps=2):
    """rewards, values, step_types, discounts [T, B]: any cut out of streams of terminated and truncated episodes."""
    steps, batch = draw(st.integers(min_steps, 19)), draw(st.integers(1, 3))
    rs = np.random.RandomState(draw(st.integers(0, 2**31 - 1)))
    end = draw(st.sampled_from([0.0, 0.15, 0.5]))
    step_types = np.zeros((steps, batch), np.int32)
    discounts = np.full((steps, batch), draw(st.sampled_from([1.0, 0.99, 0.7])), np.float32)
    for b in range(batch):
        state = rs.choice([FIRST, MID, LAST])
        for t in range(steps):
            step_types[t, b] = state
            if state == LAST and rs.rand() < 0.5:
                discounts[t, b] = 0.0
            # Episodes of one transition (FIRST, LAST) and a single FIRST after a LAST are in.
            state = FIRST if state == LAST else (LAST if rs.rand() < end else MID)
    rewards, values = (rs.randn(steps, batch).astype(np.float32) * 3 for _ in range(2))
    return rewards, values, step_types, discounts


@settings(max_examples=60, deadline=None)
@given(_segments())
def test_discounted_returns_equal_the_sum(segment):
    got = value_ops.discounted_return(*segment)
    np.testing.assert_allclose(got, _columns(_oracle_return, *segment), rtol=1e-4, atol=2e-4)


@settings(max_examples=60, deadline=None)
@given(_segments(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_equals_the_sum(segment, lam):
    got = value_ops.generalized_advantage_estimation(*segment, td_lambda=lam)
    expected = _columns(lambda *a: _oracle_gae(*a, lam), *segment)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(
        value_ops.td_lambda_return(*segment, td_lambda=lam), expected + segment[1][:-1], rtol=1e-4, atol=2e-4
    )


@settings(max_examples=60, deadline=None)
@given(
    _segments(),
    st.integers(0, 2**31 - 1),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([(1.0, 1.0), (2.0, 1.0), (1.5, 0.5), (1.2, None), (None, None)]),
)
def test_vtrace_equals_the_definition(segment, seed, lam, bars):
    ratio = np.exp(np.random.RandomState(seed).randn(*segment[0].shape)).astype(np.float32)
    got = value_ops.vtrace_returns_and_advantages_impl(ratio, *segment, td_lambda=lam, rho_bar=bars[0], c_bar=bars[1])
    rho_bar = np.inf if bars[0] is None else bars[0]
    caps = (rho_bar, rho_bar if bars[1] is None else bars[1])
    expected = _columns(lambda *a: _oracle_vtrace(*a, lam, *caps), ratio, *segment)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-3, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**31 - 1))
def test_reverse_scan_is_the_recursion(steps, seed):
    rs = np.random.RandomState(seed)
    x, decay = rs.randn(steps, 2).astype(np.float32), rs.rand(steps, 2).astype(np.float32)
    expected, y = np.zeros_like(x), np.zeros(2)
    for t in reversed(range(steps)):
        y = x[t] + decay[t] * y
        expected[t] = y
    np.testing.assert_allclose(value_ops.reverse_scan(tf.constant(x), tf.constant(decay)), expected, 1e-4, 1e-4)


# --- identities ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(_segments())
def test_on_policy_vtrace_with_lambda_1_is_the_n_step_return(segment):
    returns, advantages = value_ops.vtrace_returns_and_advantages_impl(np.ones_like(segment[0]), *segment)
    expected = value_ops.discounted_return(*segment)
    np.testing.assert_allclose(returns[:-1], expected, rtol=1e-5, atol=1e-5)
    valid = segment[2][:-1] != LAST
    np.testing.assert_allclose(advantages[:-1], valid * (expected - segment[1][:-1]), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(returns[-1], segment[1][-1])
    np.testing.assert_array_equal(advantages[-1], 0 * segment[1][-1])


@settings(max_examples=30, deadline=None)
@given(_segments())
def test_gae_with_lambda_1_is_the_return_minus_the_value(segment):
    returns = _columns(_oracle_return, *segment)
    got = value_ops.generalized_advantage_estimation(*segment, td_lambda=1.0)
    np.testing.assert_allclose(got, returns - segment[1][:-1], rtol=1e-4, atol=2e-4)


@settings(max_examples=30, deadline=None)
@given(_segments())
def test_gae_with_lambda_0_is_the_one_step_error(segment):
    got = value_ops.generalized_advantage_estimation(*segment, td_lambda=0.0)
    valid = segment[2][:-1] != LAST
    one_step = value_ops.one_step_discounted_return(*segment)
    np.testing.assert_allclose(got, valid * (one_step - segment[1][:-1]), rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(_segments(min_steps=5), st.integers(0, 2**31 - 1))
def test_splitting_a_segment_with_the_right_bootstrap_changes_nothing(segment, seed):
    rs = np.random.RandomState(seed)
    ratio = np.minimum(np.exp(rs.randn(*segment[0].shape)), 1).astype(np.float32)
    whole, _ = value_ops.vtrace_returns_and_advantages_impl(ratio, *segment)
    cut = rs.randint(2, len(ratio) - 1)
    rewards, values, step_types, discounts = segment
    # The first part's last row is the second's first; the value there is what the second part says of it.
    late, _ = value_ops.vtrace_returns_and_advantages_impl(ratio[cut:], *(x[cut:] for x in segment))
    np.testing.assert_allclose(late, whole[cut:], rtol=1e-4, atol=1e-4)
    bootstrapped = np.concatenate([values[:cut], late[:1]])
    early, _ = value_ops.vtrace_returns_and_advantages_impl(
        ratio[: cut + 1], rewards[: cut + 1], bootstrapped, step_types[: cut + 1], discounts[: cut + 1]
    )
    np.testing.assert_allclose(early, whole[: cut + 1], rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(_segments(min_steps=5), st.integers(0, 2**31 - 1))
def test_a_return_goes_on_from_the_return_of_the_later_part(segment, seed):
    rewards, values, step_types, discounts = segment
    cut = np.random.RandomState(seed).randint(1, len(rewards) - 1)
    whole = value_ops.discounted_return(*segment).numpy()
    bootstrapped = np.concatenate([values[:cut], whole[cut : cut + 1]])
    early = value_ops.discounted_return(rewards[: cut + 1], bootstrapped, step_types[: cut + 1], discounts[: cut + 1])
    np.testing.assert_allclose(early, whole[:cut], rtol=1e-4, atol=2e-4)


@settings(max_examples=30, deadline=None)
@given(_segments(), st.integers(0, 2**31 - 1))
def test_columns_are_independent_and_axes_are_only_an_order(segment, seed):
    ratio = np.exp(np.random.RandomState(seed).randn(*segment[0].shape)).astype(np.float32)
    order = np.random.RandomState(seed).permutation(ratio.shape[1])
    arrays = (ratio, *segment)
    plain = value_ops.vtrace_returns_and_advantages_impl(*arrays, td_lambda=0.9)
    shuffled = value_ops.vtrace_returns_and_advantages_impl(*(a[:, order] for a in arrays), td_lambda=0.9)
    batch_major = value_ops.vtrace_returns_and_advantages_impl(*(a.T for a in arrays), td_lambda=0.9, time_major=False)
    for i in (0, 1):
        np.testing.assert_array_equal(shuffled[i], plain[i].numpy()[:, order])
        np.testing.assert_array_equal(batch_major[i], plain[i].numpy().T)


@settings(max_examples=30, deadline=None)
@given(_segments(), st.floats(-5, 5, width=32, allow_subnormal=False))
def test_reward_shift_moves_gae_by_the_discounted_length(segment, shift):
    rewards, values, step_types, discounts = segment
    before = value_ops.generalized_advantage_estimation(rewards, values, step_types, discounts, 0.9)
    after = value_ops.generalized_advantage_estimation(rewards + np.float32(shift), values, step_types, discounts, 0.9)
    zeros = np.zeros_like(values)
    length = _columns(lambda *a: _oracle_gae(*a, 0.9), np.ones_like(rewards), zeros, step_types, discounts)
    np.testing.assert_allclose(after - before, shift * length, rtol=1e-3, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(_segments())
def test_nothing_crosses_into_the_next_episode(segment):
    """Whatever comes after a LAST leaves the rows up to it as they are."""
    rewards, values, step_types, discounts = segment
    lasts = np.argwhere(step_types[:, 0] == LAST)
    if not len(lasts) or lasts[0, 0] in (0, len(rewards) - 1):
        return
    end = lasts[0, 0]
    other = [rewards.copy(), values.copy(), step_types, discounts]
    other[0][end + 1 :] += 100
    other[1][end + 1 :] -= 50
    ratio = np.ones_like(rewards)
    for f in (
        lambda s: value_ops.vtrace_returns_and_advantages_impl(ratio, *s)[0],
        lambda s: value_ops.vtrace_returns_and_advantages_impl(ratio, *s)[1],
        lambda s: value_ops.generalized_advantage_estimation(*s, td_lambda=0.9),
        lambda s: value_ops.discounted_return(*s),
    ):
        np.testing.assert_array_equal(f(segment)[: end + 1, 0], f(other)[: end + 1, 0])


@pytest.mark.parametrize("recorded", [True, False])
def test_vtrace_of_training_records(recorded):
    rs = np.random.RandomState(0)
    info = collections.namedtuple("Info", ["action_distribution"])
    rewards, values = rs.randn(5, 1).astype(np.float32), rs.randn(5, 1).astype(np.float32)
    logits = rs.randn(2, 5, 1, 3).astype(np.float32)
    action = rs.randint(0, 3, (5, 1))
    pi, mu = (tfp.distributions.Categorical(logits=x) for x in logits)
    records = TrainingInfo(
        action=tf.constant(action),
        step_type=_LAST_AT_2.T,
        reward=rewards,
        discount=_TRUE_END.T,
        info=info(pi),
        rollout_info=info(mu) if recorded else (),
    )
    spec = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
    got = value_ops.calc_vtrace_returns_and_advantages(records, values, 0.9, spec, td_lambda=0.8)
    ratio = np.exp(pi.log_prob(action) - mu.log_prob(action)) if recorded else np.ones((5, 1))
    expected = _columns(
        lambda *a: _oracle_vtrace(*a, 0.8, 1.0, 1.0), ratio, rewards, values, _LAST_AT_2.T, 0.9 * _TRUE_END.T
    )
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-5)


# --- contracts -------------------------------------------------------------------------------------------------------


def test_two_steps_are_the_minimum():
    two = [np.ones((2, 1), np.float32)] * 2 + [np.full((2, 1), MID, np.int32), np.full((2, 1), 0.5, np.float32)]
    np.testing.assert_allclose(value_ops.discounted_return(*two), [[1.5]])
    one = [x[:1] for x in two]
    for f in (
        value_ops.discounted_return,
        value_ops.one_step_discounted_return,
        value_ops.generalized_advantage_estimation,
        lambda *a: value_ops.vtrace_returns_and_advantages_impl(a[0], *a),
    ):
        with pytest.raises(ValueError, match=r"at least two time steps.*T=1"):
            f(*one)


def test_rho_bar_below_c_bar_is_refused():
    with pytest.raises(ValueError, match="rho_bar >= c_bar"):
        value_ops.vtrace_returns_and_advantages_impl(
            _full(1), _full(1), _full(1), _MIDS, _full(1), time_major=False, rho_bar=0.5, c_bar=1.0
        )


def test_no_gradient_flows():
    values = tf.constant(_full(1).T)
    with tf.GradientTape() as tape:
        tape.watch(values)
        returns, advantages = value_ops.vtrace_returns_and_advantages_impl(
            values, _full(1).T, values, _MIDS.T, _full(0.9).T
        )
        total = tf.reduce_sum(returns + advantages)
        total += tf.reduce_sum(value_ops.discounted_return(_full(1).T, values, _MIDS.T, _full(0.9).T))
        total += tf.reduce_sum(value_ops.one_step_discounted_return(_full(1).T, values, _MIDS.T, _full(0.9).T))
        total += tf.reduce_sum(value_ops.generalized_advantage_estimation(_full(1).T, values, _MIDS.T, _full(0.9).T))
    assert tape.gradient(total, values) is None


def test_graph_with_unknown_length_equals_eager():
    rs = np.random.RandomState(0)
    args = [rs.randn(9, 2).astype(np.float32) for _ in range(2)]
    args += [np.full((9, 2), MID, np.int32), np.full((9, 2), 0.9, np.float32)]
    expected = value_ops.generalized_advantage_estimation(*args, td_lambda=0.8)
    traced = tf.function(
        lambda *a: value_ops.generalized_advantage_estimation(*a, td_lambda=0.8),
        autograph=False,
        input_signature=[tf.TensorSpec([None, None], a.dtype) for a in args],
    )
    np.testing.assert_allclose(traced(*(tf.constant(a) for a in args)), expected, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="two time steps"):
        traced(*(tf.constant(a[:1]) for a in args))
