"""Target networks follow their models by the rule, at the times, that are asked for."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from alf.utils.common import get_target_updater


class Model(tf.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = tf.Variable([value, 2.0 * value])
        self.steady = tf.Variable(value, trainable=False)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.25])
@pytest.mark.parametrize("period", [1, 3])
def test_targets_move_every_period_of_updates(tau: float, period: int, traced: bool) -> None:
    model, target = Model(1.0), Model(5.0)
    update = get_target_updater(model, target, tau, period, copy=False)
    call = tf.function(update, autograph=False) if traced else update
    expected = np.array([5.0, 10.0])
    for i in range(1, 8):
        model.weight.assign([float(i), -float(i)])
        call()
        if i % period == 0:
            expected += tau * (np.array([i, -i]) - expected)
        np.testing.assert_allclose(target.weight, expected, rtol=1e-6)


def test_counters_are_copied_where_weights_are_blended() -> None:
    """Such as Keras' Normalization has; a share of a whole number is none."""
    model, target = tf.Module(), tf.Module()
    model.count, target.count = tf.Variable(7, dtype=tf.int64), tf.Variable(3, dtype=tf.int64)
    get_target_updater(model, target, tau=0.5, copy=False)()
    assert int(target.count) == 7


def test_copying_copies_every_variable_of_every_model() -> None:
    models, targets = [Model(1.0), Model(2.0)], [Model(7.0), Model(8.0)]
    get_target_updater(models, targets, tau=0.1)
    assert [float(t.steady) for t in targets] == [1.0, 2.0]
    np.testing.assert_array_equal(targets[1].weight, [2.0, 4.0])


def test_targets_move_when_so_many_env_steps_have_passed() -> None:
    model, target = Model(0.0), Model(0.0)
    env_steps = tf.Variable(0, dtype=tf.int64)
    update = tf.function(
        get_target_updater(model, target, period=100, unit="env_steps", env_steps=env_steps), autograph=False
    )
    moved = []
    for steps in range(0, 500, 30):
        env_steps.assign(steps)
        model.steady.assign(float(steps))
        update()
        moved.append(float(target.steady))
    # The first time at or after each multiple of the period, without drift.
    assert sorted(set(moved)) == [0.0, 120.0, 210.0, 300.0, 420.0]


def test_the_clock_is_in_the_checkpoint(tmp_path: pathlib.Path) -> None:
    model, target = Model(1.0), Model(1.0)
    update = get_target_updater(model, target, period=3)
    update()
    update()
    path = tf.train.Checkpoint(updater=update).write(str(tmp_path / "ckpt"))
    again = get_target_updater(model, target, period=3)
    tf.train.Checkpoint(updater=again).read(path).assert_consumed()
    model.steady.assign(9.0)
    again()
    assert float(target.steady) == 9.0


@pytest.mark.parametrize("unit", ["updates", "env_steps"])
@pytest.mark.parametrize("period", [1, 2, 5])
def test_what_is_due_is_what_moves(unit: str, period: int) -> None:
    model, target = Model(0.0), Model(0.0)
    env_steps = tf.Variable(0, dtype=tf.int64) if unit == "env_steps" else None
    update = get_target_updater(model, target, period=period, unit=unit, env_steps=env_steps)
    announced = tf.function(lambda: (update.due(), update())[0], autograph=False)
    moves = []
    for i, steps in enumerate([1, 3, 3, 4, 9, 10, 11, 20], 1):
        model.steady.assign(float(i))
        if env_steps is not None:
            env_steps.assign(steps)
        due = bool(announced())
        assert due == (float(target.steady) == i)
        moves.append(due)
    assert any(moves)
    assert all(moves) == (period == 1 and unit == "updates")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.0}, "0 < tau <= 1"),
        ({"tau": 1.5}, "0 < tau <= 1"),
        ({"period": 0}, "period >= 1"),
        ({"unit": "episodes"}, "updates or env_steps, not 'episodes'"),
        ({"unit": "env_steps"}, "give the variable env_steps"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_target_updater(Model(1.0), Model(1.0), **arguments)  # type: ignore[arg-type]


def test_networks_that_do_not_match_are_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be followed"):
        get_target_updater([Model(1.0), Model(1.0)], Model(1.0))
