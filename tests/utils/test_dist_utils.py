"""Log-probabilities, entropies, samples and ratios against TensorFlow Probability, scipy-free numpy and statistics."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import utils as tfa_distributions
from tf_agents.distributions.masked import MaskedCategorical
from tf_agents.networks import normal_projection_network
from tf_agents.specs import tensor_spec

from alf.utils import dist_utils, rng

tfd = tfp.distributions
_Spec = tensor_spec.BoundedTensorSpec
_BOX = _Spec([2], tf.float32, [-2.0, 0.0], [2.0, 6.0])


def _random(shape, seed):
    return tf.random.stateless_normal(shape, [seed, 7])


def _squashed(outer):
    normal = tfd.MultivariateNormalDiag(_random([*outer, 2], 1), tf.exp(_random([*outer, 2], 2)))
    return tfa_distributions.SquashToSpecNormal(normal, _BOX)


# name: (distribution of outer axes, action spec)
CASES = {
    "discrete": (lambda o: tfd.Categorical(logits=_random([*o, 5], 1), dtype=tf.int64), _Spec([], tf.int64, 0, 4)),
    "discrete_1": (lambda o: tfd.Categorical(logits=_random([*o, 1, 5], 1)), _Spec([1], tf.int32, 0, 4)),
    "multi_discrete": (lambda o: tfd.Categorical(logits=_random([*o, 3, 5], 1)), _Spec([3], tf.int32, 0, 4)),
    "probs": (lambda o: tfd.Categorical(probs=tf.nn.softmax(_random([*o, 5], 1))), _Spec([], tf.int32, 0, 4)),
    "normal_0": (lambda o: tfd.Normal(_random(o, 1), 0.7), _Spec([], tf.float32, -1, 1)),
    "normal": (
        lambda o: tfd.MultivariateNormalDiag(_random([*o, 2], 1), tf.constant([0.5, 2.0])),
        _Spec([2], tf.float32, -1, 1),
    ),
    "normal_columns": (lambda o: tfd.Normal(_random([*o, 2], 1), tf.fill([*o, 2], 0.3)), _Spec([2], tf.float32, -1, 1)),
    "independent": (
        lambda o: tfd.Independent(tfd.Normal(_random([*o, 2], 1), tf.ones([*o, 2])), 1),
        _Spec([2], tf.float32, -1, 1),
    ),
    "squashed": (_squashed, _BOX),
    "beta": (lambda o: tfd.Beta(tf.fill(o, 2.0), tf.fill(o, 3.0)), _Spec([], tf.float32, 0, 1)),
}


def _reference_log_prob(dist, action, outer_rank):
    log_prob = dist.log_prob(action).numpy()
    return log_prob.sum(axis=tuple(range(outer_rank, log_prob.ndim)))


@pytest.mark.parametrize("outer", [(6,), (3, 4)])
@pytest.mark.parametrize("name", CASES)
def test_log_probability_equals_tfp(name, outer):
    make, _ = CASES[name]
    dist = make(outer)
    action = dist.sample(seed=[3, 4])
    got = dist_utils.compute_log_probability(dist, action, len(outer))
    assert got.shape == outer
    # Near the bounds of a squashed action the inverse of tanh loses digits, in either computation.
    tolerance = 2e-3 if name == "squashed" else 1e-5
    np.testing.assert_allclose(got, _reference_log_prob(dist, action, len(outer)), tolerance, tolerance)


@pytest.mark.parametrize("name", [n for n in CASES if n != "squashed"])
def test_entropy_equals_tfp(name):
    make, spec = CASES[name]
    dist = make((3, 4))
    expected = dist.entropy().numpy()
    expected = expected.sum(axis=tuple(range(2, expected.ndim)))
    for entropy, for_gradient in (
        dist_utils.compute_entropy(dist, 2),
        dist_utils.entropy_with_fallback(dist, spec),
        dist_utils.compute_log_probability_and_entropy(dist, dist.sample(seed=[1, 2]), 2)[1:],
    ):
        np.testing.assert_allclose(entropy, expected, rtol=1e-5, atol=1e-5)
        assert for_gradient is entropy


def _nest(outer):
    return {"a": CASES["multi_discrete"][0](outer), "b": (CASES["normal"][0](outer), CASES["squashed"][0](outer))}


def test_nests_are_summed():
    dists = _nest((3, 4))
    action = tf.nest.map_structure(lambda d: d.sample(seed=[3, 4]), dists)
    expected = sum(
        _reference_log_prob(d, a, 2) for d, a in zip(tf.nest.flatten(dists), tf.nest.flatten(action), strict=True)
    )
    log_prob, entropy, for_gradient = dist_utils.compute_log_probability_and_entropy(dists, action, 2)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist_utils.compute_log_probability(dists, action, 2), expected, rtol=1e-4, atol=1e-4)
    assert entropy.shape == [3, 4]
    assert for_gradient is entropy


def test_known_values():
    dist = tfd.Categorical(logits=tf.math.log([[0.5, 0.25, 0.25]]))
    np.testing.assert_allclose(dist_utils.compute_log_probability(dist, tf.constant([1]), 1), [math.log(0.25)], 1e-6)
    np.testing.assert_allclose(dist_utils.compute_entropy(dist, 1)[0], [1.5 * math.log(2)], rtol=1e-6)
    dist = tfd.Normal(tf.zeros([1]), 2.0)
    np.testing.assert_allclose(
        dist_utils.compute_log_probability(dist, tf.constant([2.0]), 1),
        [-0.5 - math.log(2) - 0.5 * math.log(2 * math.pi)],
        rtol=1e-6,
    )


def test_squashed_entropy_and_its_gradient_are_right_in_the_mean():
    """H(Y) = E[-log p(Y)]; both sides by samples of their own, with the gradient by finite differences."""

    def entropies(loc, scale, rows, seed):
        normal = tfd.MultivariateNormalDiag(tf.fill([rows, 1], loc), tf.fill([rows, 1], scale))
        dist = tfa_distributions.SquashToSpecNormal(normal, _Spec([1], tf.float32, -2, 2))
        return dist, dist_utils.compute_entropy(dist, 1, seed=tf.constant(seed))

    loc, scale = tf.constant(0.4), tf.constant(0.8)
    with tf.GradientTape() as tape:
        tape.watch([loc, scale])
        dist, (entropy, for_gradient) = entropies(loc, scale, 40000, [1, 2])
        total = tf.reduce_mean(for_gradient)
    reference = -float(tf.reduce_mean(dist.log_prob(dist.sample(seed=[5, 6]))))
    assert float(tf.reduce_mean(entropy)) == pytest.approx(reference, abs=0.02)
    gradients = tape.gradient(total, [loc, scale])
    for i, gradient in enumerate(gradients):
        shift = np.eye(2)[i] * 0.01
        ends = [
            float(tf.reduce_mean(entropies(loc + s * shift[0], scale + s * shift[1], 40000, [1, 2])[1][0]))
            for s in (-1, 1)
        ]
        assert float(gradient) == pytest.approx((ends[1] - ends[0]) / 0.02, abs=0.02)


def test_a_component_that_can_take_one_value_only_adds_nothing():
    """It is certain: the rest of the action has the density, the entropy and the targets that it has alone."""
    pinned = _Spec([2], tf.float32, [-1.0, 0.5], [3.0, 0.5])
    alone = _Spec([1], tf.float32, [-1.0], [3.0])
    loc, scale = tf.Variable(_random([6, 2], 1)), tf.exp(_random([6, 2], 2))

    def squashed(spec, size):
        normal = tfd.MultivariateNormalDiag(loc[:, :size], scale[:, :size])
        return tfa_distributions.SquashToSpecNormal(normal, spec)

    with tf.GradientTape(persistent=True) as tape:
        with rng.scope(tf.constant([1, 2])):
            action, log_prob = dist_utils.sample_with_log_probability(squashed(pinned, 2), 1)
        expected = dist_utils.compute_log_probability(squashed(alone, 1), action[:, :1], 1)
        recorded = dist_utils.compute_log_probability(squashed(pinned, 2), tf.stop_gradient(action), 1)
        with rng.scope(tf.constant([1, 2])):
            entropy, _ = dist_utils.compute_entropy(squashed(pinned, 2), 1)
    assert (action.numpy()[:, 1] == 0.5).all()
    np.testing.assert_allclose(log_prob, expected, atol=1e-4)
    np.testing.assert_allclose(recorded, expected, atol=1e-4)
    for what in (log_prob, recorded, entropy):
        gradient = tape.gradient(what, loc).numpy()
        assert np.isfinite(what).all()
        assert np.isfinite(gradient).all()
        assert (gradient[:, 1] == 0).all()
    for target in (dist_utils.calc_default_target_entropy, dist_utils.calc_default_max_entropy):
        assert target(pinned) == pytest.approx(target(alone))


@pytest.mark.parametrize("names", [*([name] for name in CASES), ["squashed", "multi_discrete", "normal_0"]])
def test_the_log_probability_of_what_is_drawn_is_that_of_all_its_parts(names):
    parts = {name: CASES[name][0]([4, 5]) for name in names}
    with rng.scope(tf.constant([1, 2])):
        action, log_prob = dist_utils.sample_with_log_probability(parts, 2)
    expected = sum(part.log_prob(action[name]).numpy().reshape(4, 5, -1).sum(-1) for name, part in parts.items())
    # Of an action at its bound TensorFlow Probability no longer knows what was squashed.
    inside = np.ones([4, 5], bool)
    if "squashed" in names:
        middle, half = (_BOX.maximum + _BOX.minimum) / 2.0, (_BOX.maximum - _BOX.minimum) / 2.0
        inside = (np.abs(action["squashed"] - middle) < 0.999 * half).all(-1)
    assert inside.sum() > 10
    np.testing.assert_allclose(log_prob.numpy()[inside], expected[inside], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("reparametrized", [True, False])
def test_estimated_entropy_and_its_gradient(reparametrized):
    scale = tf.constant(1.7)
    with tf.GradientTape() as tape:
        tape.watch(scale)
        normal = tfd.Normal(tf.zeros([20000]), scale * tf.ones([20000]))
        if not reparametrized:
            normal._reparameterization_type = tfd.NOT_REPARAMETERIZED
        entropy, for_gradient = dist_utils.estimated_entropy(normal, seed=tf.constant([1, 2]), num_samples=4)
        total = tf.reduce_mean(for_gradient)
    assert entropy.shape == [20000]
    assert float(tf.reduce_mean(entropy)) == pytest.approx(
        math.log(1.7) + 0.5 * math.log(2 * math.pi * math.e), abs=0.02
    )
    assert float(tape.gradient(total, scale)) == pytest.approx(1 / 1.7, abs=0.02)
    assert (for_gradient is entropy) == reparametrized


def test_entropy_falls_back_where_there_is_no_closed_form():
    mixture = tfd.MixtureSameFamily(
        tfd.Categorical(logits=tf.zeros([5000, 2])), tfd.Normal(tf.constant([[-50.0, 50.0]] * 5000), tf.ones([5000, 2]))
    )
    spec = tf.TensorSpec([], tf.float32)
    entropy, _ = dist_utils.entropy_with_fallback(mixture, spec, seed=tf.constant([1, 2]))
    expected = math.log(2) + 0.5 * math.log(2 * math.pi * math.e)
    assert float(tf.reduce_mean(entropy)) == pytest.approx(expected, abs=0.05)


def test_with_a_seed_too_each_distribution_of_a_nest_has_a_sample_of_its_own():
    mixture = tfd.MixtureSameFamily(tfd.Categorical(logits=tf.zeros([64, 2])), tfd.Normal([[-1.0, 2.0]] * 64, 1.0))
    seed = tf.constant([1, 2])
    together, _ = dist_utils.compute_entropy((mixture, mixture), 1, seed=seed)
    alone, _ = dist_utils.compute_entropy(mixture, 1, seed=seed)
    np.testing.assert_array_equal(dist_utils.compute_entropy((mixture, mixture), 1, seed=seed)[0], together)
    assert np.corrcoef(together - alone, alone)[0, 1] < 0.5


def test_masked_categorical_keeps_its_mask():
    dist = MaskedCategorical(tf.zeros([4, 3]), tf.constant([[True, False, True]] * 4))
    with rng.scope(tf.constant([1, 2])):
        samples = tf.stack([dist_utils.sample_action_distribution(dist) for _ in range(30)])
    assert set(np.unique(samples)) == {0, 2}
    log_prob = dist_utils.compute_log_probability(dist, tf.zeros([4], tf.int32), 1)
    np.testing.assert_allclose(log_prob, [math.log(0.5)] * 4, rtol=1e-5)


def test_actions_forbidden_by_an_infinite_logit_spoil_nothing():
    logits = tf.Variable([[0.0, 1.0, -math.inf], [-math.inf, 0.0, -math.inf]])
    action = tf.constant([1, 1])
    with tf.GradientTape(persistent=True) as tape:
        dist = tfd.Categorical(logits=logits)
        ours = dist_utils.compute_log_probability(dist, action, 1), dist_utils.compute_entropy(dist, 1)[1]
        unlikely = tfd.Categorical(logits=tf.maximum(logits, -1e4))
        theirs = unlikely.log_prob(action), unlikely.entropy()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        gradient = tape.gradient(a, logits)
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, tape.gradient(b, logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_samples_have_shape_dtype_and_follow_the_seed(name):
    make, spec = CASES[name]
    dist = make((4,))
    draws = []
    for seed in ((1, 2), (1, 2), (3, 4)):
        with rng.scope(tf.constant(seed)):
            draws.append(dist_utils.sample_action_distribution((dist, dist)))
    assert draws[0][0].shape == [4, *spec.shape]
    assert draws[0][0].dtype == dist.dtype
    np.testing.assert_array_equal(draws[0][0], draws[1][0])
    if dist.dtype.is_floating:
        assert not np.isclose(draws[0][0], draws[0][1]).any()
        assert not np.isclose(draws[0][0], draws[2][0]).any()


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_categorical_frequencies(shape, dtype):
    probs = np.array([0.6, 0.3, 0.1], np.float32)
    dist = tfd.Categorical(logits=tf.broadcast_to(tf.math.log(probs), [20000, *shape, 3]), dtype=dtype)
    with rng.scope(tf.constant([1, 2])):
        sample = dist_utils.sample_action_distribution(dist)
    assert sample.dtype == dtype
    assert sample.shape == [20000, *shape]
    counts = np.stack([(sample.numpy() == i).mean(0) for i in range(3)], -1)
    np.testing.assert_allclose(counts, np.broadcast_to(probs, counts.shape), atol=0.015)


def test_squashed_samples_follow_the_distribution():
    dist = tfa_distributions.SquashToSpecNormal(
        tfd.MultivariateNormalDiag(tf.fill([20000, 2], 0.3), tf.fill([20000, 2], 0.5)), _BOX
    )
    with rng.scope(tf.constant([1, 2])):
        got = dist_utils.sample_action_distribution(dist).numpy()
    expected = dist.sample(seed=[8, 9]).numpy()
    np.testing.assert_allclose(got.mean(0), expected.mean(0), atol=0.03)
    np.testing.assert_allclose(got.std(0), expected.std(0), atol=0.03)


@pytest.mark.parametrize("name", ["discrete", "discrete_1", "multi_discrete", "normal_0", "normal", "squashed"])
def test_epsilon_0_is_the_mode(name):
    dist = CASES[name][0]((6,))
    action = dist_utils.epsilon_greedy_sample(dist, 0.0)
    np.testing.assert_allclose(action, dist.mode(), rtol=1e-6)
    assert action.dtype == dist.dtype


def test_mode_of_a_transformed_distribution():
    normal = tfd.MultivariateNormalDiag(tf.constant([[0.5, -1.0]]), tf.ones([2]))
    dist = tfd.TransformedDistribution(normal, tfp.bijectors.Tanh())
    np.testing.assert_allclose(dist_utils.epsilon_greedy_sample(dist, 0.0), np.tanh([[0.5, -1.0]]), rtol=1e-6)


def test_actions_of_no_axis_are_told_where_the_network_gives_no_distribution_of_them():
    act = tensor_spec.BoundedTensorSpec([], tf.float32, -1, 1)
    network = normal_projection_network.NormalProjectionNetwork(act, state_dependent_std=True)
    dist, _ = network(tf.ones([3, 4]), outer_rank=1)
    with pytest.raises(ValueError, match="one axis, as Box"):
        dist_utils.sample_action_distribution(dist)


def test_epsilon_is_one_coin_a_row():
    rows = 4000
    dists = {
        "a": tfd.MultivariateNormalDiag(tf.zeros([rows, 3]), tf.ones([3])),
        "b": tfd.Normal(tf.zeros([rows]), 1.0),
    }
    with rng.scope(tf.constant([1, 2])):
        action = dist_utils.epsilon_greedy_sample(dists, 0.3)
    explored = action["a"].numpy() != 0
    assert (explored == explored[:, :1]).all()
    np.testing.assert_array_equal(explored[:, 0], action["b"].numpy() != 0)
    assert explored[:, 0].mean() == pytest.approx(0.3, abs=0.03)


def test_epsilon_1_samples_every_row_and_tensors_are_actions():
    dists = (tfd.Normal(tf.zeros([50]), 1.0), tf.fill([50, 2], 3.0), ())
    action = dist_utils.epsilon_greedy_sample(dists, 1.0)
    assert (action[0].numpy() != 0).all()
    np.testing.assert_array_equal(action[1], dists[1])
    assert dist_utils.epsilon_greedy_sample((), 0.5) == ()


@pytest.mark.parametrize("name", ["discrete", "discrete_1", "multi_discrete", "normal", "squashed"])
def test_ratio_of_equal_distributions_is_exactly_1(name):
    make, spec = CASES[name]
    pi, mu = make((3, 4)), make((3, 4))
    ratio, clipped = dist_utils.action_importance_ratio(
        pi, mu, mu.sample(seed=[1, 2]), spec, "double_sided", "test", importance_ratio_clipping=0.2
    )
    np.testing.assert_array_equal(ratio, np.ones([3, 4]))
    np.testing.assert_array_equal(clipped, np.ones([3, 4]))


@pytest.mark.parametrize(
    ("mode", "clipping", "expected"),
    [
        ("double_sided", 0.2, [0.8, 0.9, 1.2]),
        ("capping", 0.2, [0.1, 0.9, 1.2]),
        ("capping", 0.0, [0.1, 0.9, 1.0]),
        ("double_sided", 0.5, [0.5, 0.9, 1.5]),
    ],
)
def test_ratio_and_clipping(mode, clipping, expected):
    spec = _Spec([], tf.int64, 0, 1)
    ratios = np.array([0.1, 0.9, 1.9], np.float32)
    pi = tfd.Categorical(probs=np.stack([ratios / 2, 1 - ratios / 2], -1))
    mu = tfd.Categorical(logits=tf.zeros([3, 2]))
    action = tf.zeros([3], tf.int64)
    ratio, clipped = dist_utils.action_importance_ratio(pi, mu, action, spec, mode, "test", clipping)
    np.testing.assert_allclose(ratio, ratios, rtol=1e-5)
    np.testing.assert_allclose(clipped, expected, rtol=1e-5)


def test_unknown_clipping_mode_is_refused():
    pi = tfd.Categorical(logits=tf.zeros([3, 2]))
    with pytest.raises(ValueError, match="'double_sided' or 'capping', got 'both'"):
        dist_utils.action_importance_ratio(pi, pi, tf.zeros([3], tf.int64), _Spec([], tf.int64, 0, 1), "both", "x")


def test_ratio_never_overflows_and_log_prob_clipping_bounds_it():
    pi, mu = tfd.Normal(tf.zeros([1]), 1.0), tfd.Normal(tf.fill([1], 1e3), 1.0)
    spec = tf.TensorSpec([], tf.float32)
    ratio, _ = dist_utils.action_importance_ratio(pi, mu, tf.zeros([1]), spec, "capping", "x", check_numerics=True)
    assert np.isfinite(ratio).all()
    assert ratio > 1e6
    ratio, _ = dist_utils.action_importance_ratio(mu, pi, tf.zeros([1]), spec, "capping", "x", check_numerics=True)
    assert ratio == 0
    ratio, _ = dist_utils.action_importance_ratio(pi, mu, tf.zeros([1]), spec, "capping", "x", log_prob_clipping=2.0)
    np.testing.assert_allclose(ratio, np.exp([2 - 0.5 * math.log(2 * math.pi)]), rtol=1e-5)


def test_ratio_has_no_gradient_into_the_behaviour():
    logits = tf.Variable([[0.1, 0.2]])
    with tf.GradientTape(persistent=True) as tape:
        pi, mu = (tfd.Categorical(logits=x) for x in (tf.constant([[0.3, 0.0]]), logits))
        ratio, _ = dist_utils.action_importance_ratio(
            pi, mu, tf.zeros([1], tf.int64), _Spec([], tf.int64, 0, 1), "capping", "x"
        )
    assert tape.gradient(ratio, logits) is None


def test_bad_nests_are_refused():
    with pytest.raises(ValueError, match="empty"):
        dist_utils.compute_log_probability((), (), 1)
    with pytest.raises(ValueError, match="no 2 leading axes"):
        dist_utils.compute_log_probability(tfd.Normal(tf.zeros([3]), 1.0), tf.zeros([3]), 2)


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "normal", "squashed"])
def test_gradients_equal_those_of_tfp(name):
    make, _ = CASES[name]
    action = make((4,)).sample(seed=[1, 2])
    shape = {"discrete": [4, 5], "multi_discrete": [4, 3, 5]}.get(name, [4, 2])
    offset = tf.Variable(tf.zeros(shape))

    def shifted():
        if "discrete" in name:
            return tfd.Categorical(logits=_random(shape, 1) + offset)
        normal = tfd.MultivariateNormalDiag(_random([4, 2], 1) + offset, tf.exp(offset))
        return tfa_distributions.SquashToSpecNormal(normal, _BOX) if name == "squashed" else normal

    with tf.GradientTape(persistent=True) as tape:
        dist = shifted()
        ours = dist_utils.compute_log_probability(dist, action, 1)
        theirs = tf.reduce_sum(tf.reshape(dist.log_prob(action), [4, -1]), -1)
    np.testing.assert_allclose(tape.gradient(ours, offset), tape.gradient(theirs, offset), rtol=1e-3, atol=1e-4)


def test_sampling_in_a_graph_loop_with_unknown_batch():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.int32)])
    def unroll(logits, seed):
        out = tf.TensorArray(tf.int64, 5)

        def body(t, out):
            with rng.scope(tf.stack([seed, t])):
                dists = {"a": tfd.Categorical(logits=logits, dtype=tf.int64), "b": tfd.Normal(logits[:, 0], 1.0)}
                action = dist_utils.sample_action_distribution(dists)
                dist_utils.epsilon_greedy_sample(dists, 0.5)
                return t + 1, out.write(t, action["a"])

        return tf.while_loop(lambda t, _: t < 5, body, (0, out))[1].stack()

    first = unroll(tf.zeros([50, 3]), 1)
    assert first.shape == [5, 50]
    np.testing.assert_array_equal(first, unroll(tf.zeros([50, 3]), 1))
    assert (first[0].numpy() != first[1].numpy()).any()
