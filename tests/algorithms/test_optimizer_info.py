"""What an algorithm says of its optimisers can be read as JSON, by a program too."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

from alf.algorithms.algorithm import Algorithm


class _Learns(Algorithm):
    """Has one variable, of its own optimiser."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer=optimizer, name="Learns")
        self._weight = tf.Variable(1.0, name="weight")


@pytest.mark.parametrize("kind", [tf.keras.optimizers.legacy.Adam, tf.keras.optimizers.Adam])
def test_what_optimizers_are_made_of_is_told_in_plain_numbers_and_texts(kind: Any) -> None:
    (told,) = json.loads(_Learns(kind(learning_rate=1e-3)).get_optimizer_info())
    assert (told["algorithm"], told["modules"]) == ("Learns", ["weight:0"])
    settings = told["optimizer"]
    assert (settings["name"], settings["amsgrad"]) == ("Adam", False)
    assert (settings["learning_rate"], settings["beta_1"], settings["epsilon"]) == (0.001, 0.9, 1e-7)


def test_a_schedule_of_an_optimizer_is_told_with_its_settings() -> None:
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.9)
    (told,) = json.loads(_Learns(tf.keras.optimizers.legacy.Adam(schedule)).get_optimizer_info())
    assert told["optimizer"]["learning_rate"]["config"]["decay_rate"] == 0.9
