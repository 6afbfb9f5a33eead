"""Products in bfloat16, which rounds 1 + 1/1024 to 1: only where they are asked for, and then in all threads."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context
from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork

from alf.drivers.unroll import sequential
from alf.utils import mixed_precision

needs_bfloat16 = pytest.mark.skipif(not mixed_precision.supported(), reason="the processor has no bfloat16 arithmetic")

_X = 1 + 2.0**-10


@pytest.fixture(autouse=True)
def _float32_afterwards():
    yield
    mixed_precision.use(False)


@pytest.fixture
def product():
    """The first number of a product of 8x8 matrices: exact 8 * _X**2, in bfloat16 8."""
    ones = tf.fill([8, 8], tf.constant(_X))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, tf.matmul(x, x)), (0, x))[1]

    return lambda: float(tf.function(inner)(ones)[0, 0])


@pytest.fixture
def warnings(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text % args))
    return told


@needs_bfloat16
def test_only_where_it_is_asked_for(product, warnings):
    assert product() == 8 * _X**2
    mixed_precision.use(True)
    assert mixed_precision.in_force()
    assert product() == 8
    with mixed_precision.in_float32():
        assert not mixed_precision.in_force()
        assert product() == 8 * _X**2
    assert product() == 8
    mixed_precision.use(False)
    assert product() == 8 * _X**2
    assert not warnings


@needs_bfloat16
def test_other_threads_have_it_too_and_keep_it_while_one_is_in_float32(product):
    mixed_precision.use(True)
    found: list[float] = []

    def act() -> None:
        found.append(product())
        inside.set()
        assert outside.wait(60)
        found.append(product())

    inside, outside = threading.Event(), threading.Event()
    thread = threading.Thread(target=act)
    thread.start()
    assert inside.wait(60)
    with mixed_precision.in_float32():
        outside.set()
        thread.join(60)
    assert found == [8, 8]


def test_acting_has_what_the_last_run_of_the_process_has_set(monkeypatch):
    """Of the settings alone: any processor shows them."""
    monkeypatch.setattr(mixed_precision, "supported", lambda: True)
    for wanted in (False, True, False):
        mixed_precision.use(wanted)
        with sequential():
            assert mixed_precision.in_force() == wanted
            with mixed_precision.in_float32():
                assert not mixed_precision.in_force()


@needs_bfloat16
def test_activations_are_part_of_products_as_long_as_these_are_in_bfloat16():
    """TensorFlow's own relu takes six times as long in bfloat16 as in float32."""
    for wanted in (False, True, False):
        mixed_precision.use(wanted)
        layer = tf.keras.layers.Dense(4, activation=tf.nn.relu)
        layer.build((2, 4))
        with context.collect_graphs(optimized=True) as graphs:
            tf.function(layer)(tf.ones((2, 4)))
        operations = {node.op for graph in graphs for node in graph.node}
        assert ("Relu" in operations, "_FusedMatMul" in operations) == (not wanted, wanted)


def _network() -> tf.keras.Sequential:
    """From rows of 8 numbers to one, built."""
    layers = [tf.keras.layers.Dense(64, tf.nn.relu, input_shape=(8,)), tf.keras.layers.Dense(64, tf.nn.relu)]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])


@needs_bfloat16
def test_gradients_of_many_rows_and_their_norm_are_summed_in_float32():
    """Sums in bfloat16 end at 256 times what is added."""
    tf.random.set_seed(0)
    network, x = _network(), tf.random.stateless_normal((20_000, 8), [1, 2])

    @tf.function
    def step() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(x) - 1.0))
        gradients = tape.gradient(loss, network.trainable_variables)
        return gradients, [tf.clip_by_norm(gradient, 1e-3) for gradient in gradients]

    exact, _ = step()
    mixed_precision.use(True)
    got, clipped = tf.function(step.python_function)()
    for mine, other, short in zip(got, exact, clipped, strict=True):
        assert float(tf.reduce_max(tf.abs(mine - other))) < 0.02 * float(tf.reduce_max(tf.abs(other)))
        assert float(tf.norm(short)) == pytest.approx(1e-3, rel=1e-3)


@needs_bfloat16
def test_gradients_of_many_steps_of_a_recurrent_network_are_summed_in_float32():
    tf.random.set_seed(0)
    network = LSTMEncodingNetwork(tf.TensorSpec([8], tf.float32), lstm_size=(32,))
    network.create_variables()
    x, step_type = tf.random.stateless_normal((16, 512, 8), [1, 2]), tf.fill((16, 512), 1)

    @tf.function
    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(x, step_type=step_type)[0] - 1.0))
        return tape.gradient(loss, network.trainable_variables)

    exact = step()
    mixed_precision.use(True)
    for mine, other in zip(tf.function(step.python_function)(), exact, strict=True):
        assert float(tf.norm(mine - other)) < 0.02 * float(tf.norm(other))


@needs_bfloat16
def test_losses_are_of_the_whole_difference_between_values_and_targets():
    """Of numbers near 200, which bfloat16 has in steps of one."""
    tf.random.set_seed(0)
    network, x = _network(), tf.random.stateless_normal((256, 8), [1, 2])
    network.layers[-1].bias.assign([200.0])
    targets = 200.0 + tf.random.stateless_uniform((256, 1), [3, 4])

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            values = network(x)
            error = values - targets
            loss = tf.reduce_mean(tf.square(error))
        return values, error, tape.gradient(loss, network.trainable_variables)

    mixed_precision.use(True)
    values, errors, _ = step()
    assert np.array_equal(errors, values - targets)
    assert len(np.unique(errors)) > 200


@needs_bfloat16
@pytest.mark.parametrize("lists", [("INFERLIST_REMOVE",), ("INFERLIST_REMOVE", "DENYLIST_ADD")])
def test_what_the_program_keeps_in_float32_stays_there_too(product, monkeypatch, lists):
    """TensorFlow rewrites nothing where its lists contradict each other."""
    names = [f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name}" for name in lists]
    for name in ("INFERLIST_REMOVE", "DENYLIST_ADD"):
        monkeypatch.delenv(f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name}", raising=False)
    for name in names:
        monkeypatch.setenv(name, "Tanh")
    mixed_precision.use(True)
    assert product() == 8
    for name in names:
        assert {"Tanh", "BiasAddGrad"} <= set(os.environ[name].split(","))


def test_what_the_program_has_set_of_merging_stays(monkeypatch):
    """Of the settings alone: any processor shows them."""
    monkeypatch.setattr(mixed_precision, "supported", lambda: True)
    set_options, options = tf.config.optimizer.set_experimental_options, tf.config.optimizer.get_experimental_options
    alfs = options().get("remapping")
    if alfs is None:
        pytest.skip("without oneDNN alf leaves it to TensorFlow")
    set_options({"remapping": not alfs})
    try:
        for wanted in (True, False):
            mixed_precision.use(wanted)
            assert options()["remapping"] is not alfs
    finally:
        set_options({"remapping": alfs})


@pytest.mark.parametrize(
    ("flags", "told"),
    [("flags\t\t: fpu avx512f avx512_bf16", False), ("flags : amx_bf16 amx_tile", False), ("flags : fpu avx2", True)]
    + [("model name : avx512_bf16", True), (None, True)],
)
def test_processors_without_it_stay_in_float32_and_say_so(tmp_path, monkeypatch, warnings, flags, told):
    processors = tmp_path / "cpuinfo"
    if flags is not None:
        processors.write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(mixed_precision, "_PROCESSORS", processors)
    mixed_precision.use(False)
    assert not warnings
    mixed_precision.use(True)
    assert mixed_precision.in_force() != told
    assert ["mixed_precision=True has no effect" in text for text in warnings] == [True] * told


def test_gpus_round_products_only_where_it_is_asked_for(monkeypatch, warnings):
    """Of the setting alone."""
    rounds = tf.config.experimental.tensor_float_32_execution_enabled
    assert not rounds()
    monkeypatch.setattr(mixed_precision, "has_gpu", lambda: True)
    monkeypatch.setattr(mixed_precision, "supported", lambda: False)
    mixed_precision.use(True)
    assert rounds()
    with mixed_precision.in_float32():
        assert not rounds()
    assert rounds()
    mixed_precision.use(False)
    assert not rounds()
    assert not warnings
