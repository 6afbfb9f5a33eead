"""Distributions to parameters and back, with every projection network and by hand."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import actor_distribution_network, normal_projection_network
from tf_agents.specs import tensor_spec

from alf.utils import nest_utils

tfd = tfp.distributions
_Spec = tensor_spec.BoundedTensorSpec
_SCALED = {
    "continuous_projection_net": functools.partial(
        normal_projection_network.NormalProjectionNetwork,
        scale_distribution=True,
        mean_transform=None,
        state_dependent_std=True,
    )
}
_TANH = {"continuous_projection_net": tanh_normal_projection_network.TanhNormalProjectionNetwork}
_NORMAL = {"loc": [2], "scale_diag": [2]}

NETWORKS = {
    "discrete": (_Spec([], tf.int64, 0, 3), {}, {"logits": [4]}),
    "discrete_1": (_Spec([1], tf.int32, 0, 3), {}, {"logits": [1, 4]}),
    "multi_discrete": (_Spec([3], tf.int64, 0, 1), {}, {"logits": [3, 2]}),
    "normal": (_Spec([2], tf.float32, -1, 1), {}, _NORMAL),
    "scaled": (_Spec([2], tf.float32, -2, 2), _SCALED, {"distribution": _NORMAL}),
    "tanh": (_Spec([2], tf.float32, -2, 2), _TANH, {"distribution": _NORMAL}),
    "dict": (
        {"a": _Spec([], tf.int32, 0, 3), "b": (_Spec([2], tf.float32, -1, 1),)},
        {},
        {"a": {"logits": [4]}, "b": ({"loc": [2], "scale_diag": [2]},)},
    ),
}


def _network(name):
    spec, kwargs, _ = NETWORKS[name]
    network = actor_distribution_network.ActorDistributionNetwork(
        tf.TensorSpec([3], tf.float32), spec, fc_layer_params=(5,), **kwargs
    )
    tf.random.set_seed(5)
    network.create_variables()
    return network


def _act(network, rows, seed=0):
    observation = tf.random.stateless_normal([rows, 3], [seed, 1])
    return network(observation, tf.ones([rows], tf.int32), ())[0]


def _leaf_pairs(a, b):
    return zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)


def _stack(params, steps):
    return tf.nest.map_structure(lambda x: tf.stack([x] * steps), params)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_round_trip_with_any_leading_axes(name):
    network = _network(name)
    spec = nest_utils.extract_spec(_act(network, 4))
    param_spec = nest_utils.to_distribution_param_spec(spec)
    assert _shapes(param_spec) == NETWORKS[name][2]
    dists = _act(network, 6, seed=1)
    params = nest_utils.distributions_to_params(dists)
    tf.nest.assert_same_structure(params, param_spec)
    rebuilt = nest_utils.params_to_distributions(_stack(params, 5), spec)
    for dist, copy in _leaf_pairs(dists, rebuilt):
        sample = dist.mode()  # samples of a squashed distribution can lie on its bound, where digits are lost
        assert type(copy) is type(dist)
        assert copy.dtype == dist.dtype
        expected = np.stack([dist.log_prob(sample)] * 5)
        np.testing.assert_allclose(copy.log_prob(tf.stack([sample] * 5)), expected, rtol=1e-4, atol=1e-4)


def _shapes(param_spec):
    if isinstance(param_spec, dict):
        return {key: _shapes(value) for key, value in param_spec.items()}
    if isinstance(param_spec, tuple):
        return tuple(_shapes(value) for value in param_spec)
    return param_spec.shape.as_list()


HAND_MADE = {
    "shared_scale": lambda: tfd.MultivariateNormalDiag(tf.random.normal([4, 2]), tf.constant([1.0, 2.0])),
    "shared_variable": lambda: tfd.MultivariateNormalDiag(tf.random.normal([4, 2]), tf.Variable([1.0, 2.0])),
    "independent": lambda: tfd.Independent(tfd.Normal(tf.random.normal([4, 2]), tf.constant([1.0, 2.0]))),
    "independent_discrete": lambda: tfd.Independent(tfd.Categorical(logits=tf.random.normal([4, 2, 3])), 1),
    "deterministic": lambda: tfd.Deterministic(tf.random.normal([4, 2])),
    "probs": lambda: tfd.Categorical(probs=tf.fill([4, 2], 0.5)),
    "transformed": lambda: tfd.TransformedDistribution(
        tfd.MultivariateNormalDiag(tf.random.normal([4, 2]), tf.ones([2])), tfp.bijectors.Tanh()
    ),
    "constant_bijector": lambda: tfd.TransformedDistribution(
        tfd.Normal(tf.random.normal([4]), 1.0), tfp.bijectors.Shift(np.float32(2.0))
    ),
    "triangular": lambda: tfd.MultivariateNormalTriL(tf.random.normal([4, 2]), tf.eye(2)),
    "mixture": lambda: tfd.MixtureSameFamily(
        tfd.Categorical(logits=tf.random.normal([4, 3])), tfd.Normal(tf.random.normal([4, 3]), tf.ones([4, 3]))
    ),
    "beta": lambda: tfd.Beta(tf.fill([4], 2.0), tf.constant(3.0)),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_shared_parameters_come_out_once_a_row(name):
    tf.random.set_seed(4)
    dist = HAND_MADE[name]()
    spec = nest_utils.extract_spec(dist)
    params = nest_utils.distributions_to_params(dist)
    tf.nest.map_structure(lambda s, p: _assert_fits(s, p, [4]), spec.param_spec, params)
    rebuilt = spec.build(_stack(params, 3))
    assert rebuilt.batch_shape == [3, *dist.batch_shape]
    assert rebuilt.event_shape == dist.event_shape
    sample = dist.sample(seed=[1, 2])
    np.testing.assert_allclose(rebuilt.log_prob(tf.stack([sample] * 3))[1], dist.log_prob(sample), rtol=1e-3, atol=1e-4)


def _assert_fits(spec, tensor, outer):
    assert tensor.shape == [*outer, *spec.shape]
    assert tensor.dtype == spec.dtype


def test_rows_can_be_taken_apart():
    dist = HAND_MADE["independent"]()
    spec, params = nest_utils.extract_spec(dist), nest_utils.distributions_to_params(dist)
    flat = tf.nest.map_structure(lambda x: tf.reshape(tf.stack([x] * 3), [12, *x.shape[1:]]), params)
    rebuilt = spec.build(flat)
    assert rebuilt.batch_shape == [12]
    np.testing.assert_array_equal(rebuilt.mean()[8:], dist.mean())


def test_bijector_tensor_without_rows_is_refused():
    dist = tfd.TransformedDistribution(tfd.Normal(tf.zeros([4]), 1.0), tfp.bijectors.Shift(tf.constant([1.0])))
    with pytest.raises(ValueError, match=r"bijector of TransformedDistribution.*numpy constant"):
        nest_utils.distributions_to_params(dist)


def test_unknown_parameter_is_refused():
    spec = nest_utils.extract_spec(tfd.Categorical(logits=tf.zeros([2, 3])))
    with pytest.raises(ValueError, match="Categorical takes no tensor 'loc'"):
        spec.build({"loc": tf.zeros([2])})


def test_tensors_pass_and_empty_nests_stay():
    nest = (tf.zeros([4, 2]), (), {"a": ()})
    spec = nest_utils.extract_spec(nest)
    assert spec == (tf.TensorSpec([2], tf.float32), (), {"a": ()})
    assert nest_utils.extract_spec(()) == ()
    assert nest_utils.to_distribution_param_spec(()) == ()
    assert nest_utils.distributions_to_params(()) == ()
    assert nest_utils.params_to_distributions((), ()) == ()
    assert nest_utils.to_distribution_param_spec(spec) == spec
    np.testing.assert_array_equal(nest_utils.params_to_distributions(nest, spec)[0], nest[0])
    assert nest_utils.extract_spec(np.zeros([3, 4, 5], np.uint8), from_dim=2) == tf.TensorSpec([5], tf.uint8)


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "tanh", "dict"])
def test_in_a_graph_loop_with_unknown_batch(name):
    network = _network(name)
    spec = nest_utils.extract_spec(_act(network, 2))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3])])
    def unroll(observation):
        param_spec = nest_utils.to_distribution_param_spec(spec)
        arrays = tf.nest.map_structure(lambda s: tf.TensorArray(s.dtype, 3), param_spec)

        def body(t, arrays):
            dists = network(observation + tf.cast(t, tf.float32), tf.ones(tf.shape(observation)[:1], tf.int32), ())[0]
            params = nest_utils.distributions_to_params(dists)
            return t + 1, tf.nest.map_structure(lambda ta, p: ta.write(t, p), arrays, params)

        arrays = tf.while_loop(lambda t, _: t < 3, body, (0, arrays))[1]
        stacked = tf.nest.map_structure(lambda ta: ta.stack(), arrays)
        return tf.nest.map_structure(lambda d: d.mode(), nest_utils.params_to_distributions(stacked, spec))

    observation = tf.random.stateless_normal([5, 3], [1, 1])
    modes = unroll(observation)
    for t in range(3):
        expected = network(observation + float(t), tf.ones([5], tf.int32), ())[0]
        for mode, dist in _leaf_pairs(modes, expected):
            np.testing.assert_allclose(mode[t], dist.mode(), rtol=1e-5, atol=1e-6)


def test_spec_holds_no_tensor():
    """A spec outlives the graph it was made in."""
    specs = []

    @tf.function(autograph=False)
    def trace(x):
        specs.append(nest_utils.extract_spec(tfd.MultivariateNormalDiag(x, tf.ones([2]))))
        return x

    trace(tf.zeros([4, 2]))
    dist = specs[0].build({"loc": tf.zeros([3, 2]), "scale_diag": tf.ones([3, 2])})
    assert dist.sample(seed=[1, 2]).shape == [3, 2]
    assert specs[0].template.params == specs[0].param_spec
    assert specs[0].param_spec == {key: tf.TensorSpec([2], tf.float32) for key in ("loc", "scale_diag")}
    assert specs[0].type is tfd.MultivariateNormalDiag


Point = collections.namedtuple("Point", ["x", "y"])


def test_is_namedtuple():
    assert nest_utils.is_namedtuple(Point(1, 2))
    assert not nest_utils.is_namedtuple((1, 2))
    assert not nest_utils.is_namedtuple(Point)


def test_find_field():
    nest = {"a": Point(x=1, y=({"x": 2}, [Point(x=(), y=3)])), "x": Point(x=4, y=5)}
    assert nest_utils.find_field(nest, "x") == [1, 2, Point(4, 5)]
    assert nest_utils.find_field(nest, "x", ignore_empty=False) == [1, 2, (), Point(4, 5)]
    assert nest_utils.find_field(nest, "z") == []


def test_get_nest_batch_size():
    nest = {"a": (), "b": (tf.zeros([3, 2]), tf.zeros([3]))}
    assert nest_utils.get_nest_batch_size(nest) == 3
    assert nest_utils.get_nest_batch_size(nest, tf.int64).dtype == tf.int64
    with pytest.raises(ValueError, match="no batch size"):
        nest_utils.get_nest_batch_size(())
    traced = tf.function(
        lambda x: nest_utils.get_nest_batch_size(x), autograph=False, input_signature=[tf.TensorSpec([None, 2])]
    )
    assert int(traced(tf.zeros([7, 2]))) == 7
