"""What calling a network by the wrong inputs says."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tf_agents.networks.network import Network
from tf_agents.networks.value_network import ValueNetwork

from alf.networks.calling import call_network


def vector(size: int) -> tf.TensorSpec:
    return tf.TensorSpec([size], tf.float32)


@pytest.mark.parametrize(
    ("takes", "given", "told"),
    [
        (vector(4), tf.zeros([2, 64]), r"takes float32 \[4\] and is given float32 \[64\]: set its input_tensor_spec"),
        (vector(4), tf.zeros([2, 4], tf.uint8), r"takes float32 \[4\] and is given uint8 \[4\]"),
        (
            {"a": vector(4), "b": vector(1)},
            {"a": tf.zeros([2, 4])},
            r"takes {'a': 'float32 \[4\]', 'b': 'float32 \[1\]'} and is given {'a': 'float32 \[4\]'}",
        ),
    ],
)
def test_a_network_that_is_given_something_else_says_what(takes: Any, given: Any, told: str) -> None:
    several = {"preprocessing_combiner": tf.keras.layers.Concatenate()} if isinstance(takes, dict) else {}
    with pytest.raises(ValueError, match=told):
        call_network(ValueNetwork(takes, **several), given)


@pytest.mark.parametrize(
    ("takes", "given"),
    [(vector(4), tf.zeros([2, 4])), ({"a": vector(4)}, {"a": tf.zeros([2, 4]), "further": tf.zeros([2, 1])})],
)
def test_what_goes_wrong_inside_of_a_network_stays_as_it_is(takes: Any, given: Any) -> None:
    class Broken(Network):
        def call(self, inputs: Any, step_type: Any = None, network_state: Any = ()) -> Any:
            raise ValueError("an own reason")

    with pytest.raises(ValueError, match=r"an own reason"):
        call_network(Broken(takes, state_spec=()), given)
