"""Small helpers that every room uses."""

from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.curiosity import Transition
from alf.data_structures import PolicyStep
from alf.utils import common
from alf.utils.common import packer


@pytest.mark.parametrize(
    "structure",
    [
        0,
        [0],
        (0, 0),
        {"b": 0, "a": 0},
        collections.OrderedDict(b=0, a=0),
        {"b": {"y": 0, "x": 0}, "a": (0, [0])},
        {},
        PolicyStep(0, (), {"x": 0}),
    ],
)
def test_a_packer_does_what_tensorflow_does(structure: Any) -> None:
    flat = list(range(1, 1 + len(tf.nest.flatten(structure))))
    expected = tf.nest.pack_sequence_as(structure, flat)
    given = packer(structure)(flat)
    assert given == expected
    assert type(given) is type(expected)


class _Choices:
    """What `get_action_spec` asks: an environment with so many choices."""

    def __init__(self, spec: Any) -> None:
        self.action_spec = lambda: spec


def test_the_target_entropy_of_a_share_of_the_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    target = common.active_action_target_entropy
    monkeypatch.setattr(common, "get_env", lambda: _Choices(BoundedTensorSpec([], tf.int64, 0, 17)))
    assert target() == pytest.approx(math.log(0.2 * 18))
    assert target(0.5) == pytest.approx(math.log(9))
    assert target(1 / 18) == 0.3
    with pytest.raises(ValueError, match=r"active_action_portion=0\.0 must be above 0 and at most 1"):
        target(0.0)
    monkeypatch.setattr(common, "get_env", lambda: _Choices(BoundedTensorSpec([2], tf.float32, -1, 1)))
    with pytest.raises(ValueError, match="is for a single discrete action"):
        target()


@pytest.mark.parametrize(
    ("observation", "field", "said"),
    [
        ({"image": tf.zeros([1]), "speed": tf.zeros([1])}, "imgae", r"no field 'imgae' .*only \['image', 'speed'\]"),
        ({"seen": {"image": tf.zeros([1])}}, "seen.imgae", r"'imgae' .*only \['image'\]"),
        (Transition(observation=tf.zeros([1])), "imgae", r"'imgae' .*only \['observation'"),
        (tf.zeros([1]), "image", "'image' in an observation, which has no parts"),
    ],
)
def test_a_field_that_is_not_there_is_said(observation: Any, field: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        common.field_of(observation, field)
    with pytest.raises(ValueError, match=said):
        common.transform_observation(observation, field, tf.identity)


@pytest.mark.parametrize(
    "transform", [common.image_scale_transformer, lambda o: common.scale_transformer(o, 2.0)], ids=["image", "scale"]
)
def test_a_transform_of_one_tensor_says_what_an_observation_of_several_parts_needs(transform: Any) -> None:
    seen = {"image": tf.zeros([1], tf.uint8), "speed": tf.zeros([1])}
    with pytest.raises(
        ValueError, match=r"got an observation of parts \['image', 'speed'\]: name those .* by `fields`"
    ):
        transform(seen)


@pytest.mark.parametrize("limits", [(-1.0, 1.0), (0.0, 1.0), (0.1, 0.7), (-3.0, 7.0), (1.0, -1.0), (0.0, 255.0)])
def test_a_scaled_picture_is_the_same_to_the_last_bit_by_one_operation_and_by_three(
    limits: tuple[float, float],
) -> None:
    low, high = limits
    picture = tf.constant(np.arange(256, dtype=np.uint8).reshape(4, 8, 8))
    scale = lambda: common.image_scale_transformer(picture, min=low, max=high)  # noqa: E731
    traced = tf.function(scale, autograph=False).get_concrete_function()
    with common.portable():
        plain = tf.function(scale, autograph=False).get_concrete_function()
    kinds = [{node.type for node in function.graph.get_operations()} for function in (traced, plain)]
    assert ["Dequantize" in kind for kind in kinds] == [True, False]
    wanted = np.arange(256, dtype=np.float32).reshape(4, 8, 8) * np.float32((high - low) / 255.0) + np.float32(low)
    np.testing.assert_array_equal(traced(), wanted)
    np.testing.assert_array_equal(plain(), wanted)
