"""Counts: units never mix, arithmetic within a unit, division rounds up."""

from __future__ import annotations

import copy
from fractions import Fraction

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.trainers.counts import UNITS, EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps, count

WHOLE = [EnvironmentSteps, EnvironmentEpisodes, TrainingSteps]
ALL = [*WHOLE, Seconds]
amounts = st.integers(0, 10**18)


@pytest.mark.parametrize("unit", ALL)
def test_equal_within_a_unit_only(unit):
    assert unit(5) == unit(5)
    assert hash(unit(5)) == hash(unit(5))
    assert unit(5) != unit(6)
    assert unit(5) != 5
    for other in ALL:
        assert (other(5) == unit(5)) == (other is unit)
    assert len({u(5) for u in ALL}) == len(ALL) == len(UNITS)


@given(amounts, amounts)
def test_arithmetic_of_whole_numbers(a, b):
    left, right = EnvironmentSteps(a), EnvironmentSteps(b)
    assert left + right == EnvironmentSteps(a + b)
    assert (left < right, left <= right, left > right, left >= right) == (a < b, a <= b, a > b, a >= b)
    if a >= b:
        assert left - right == EnvironmentSteps(a - b)
    else:
        with pytest.raises(ValueError, match="0 or more"):
            left - right
    if b:
        least = -(Fraction(-a, b) // 1)
        assert left / right == least
        assert isinstance(left / right, int)
        assert left / b == EnvironmentSteps(int(least))


def test_seconds_are_shared_without_rounding():
    assert Seconds(1) / 4 == Seconds(0.25)
    assert Seconds(1) / Seconds(0.3) == 4


@pytest.mark.parametrize("mix", ["+", "-", "<", "<=", ">", ">=", "/"])
@pytest.mark.parametrize("other", [EnvironmentEpisodes(2), 2.5, None])
def test_unlike_units_raise(mix, other):
    with pytest.raises(TypeError, match="unit"):
        eval(f"count {mix} other", {"count": EnvironmentSteps(4), "other": other})


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), True, "5", None])
def test_values_that_are_no_count(value):
    with pytest.raises(ValueError, match="EnvironmentSteps takes a"):
        EnvironmentSteps(value)
    if value != 1.5:
        with pytest.raises(ValueError, match="Seconds takes a"):
            Seconds(value)


def test_division_by_nothing():
    with pytest.raises(ZeroDivisionError):
        EnvironmentSteps(4) / EnvironmentSteps(0)
    with pytest.raises(ValueError, match="1 or more shares"):
        EnvironmentSteps(4) / 0


def test_counts_do_not_change_and_can_be_copied():
    steps = EnvironmentSteps(1e6)
    with pytest.raises(AttributeError, match="cannot be changed"):
        steps.value = 3
    assert steps.value == 1_000_000
    assert isinstance(steps.value, int)
    assert copy.deepcopy([steps]) == [copy.copy(steps)] == [steps]
    assert (repr(steps), str(steps)) == ("EnvironmentSteps(1000000)", "1,000,000 env_steps")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("300000 env_steps", EnvironmentSteps(300_000)),
        ("300_000env_steps", EnvironmentSteps(300_000)),
        ("3e5 env_steps", EnvironmentSteps(300_000)),
        ("2,000 episodes", EnvironmentEpisodes(2000)),
        ("12,345,678e1 env_steps", EnvironmentSteps(123_456_780)),
        ("1,500.5 seconds", Seconds(1500.5)),
        (" 50 training_steps ", TrainingSteps(50)),
        ("1.5 seconds", Seconds(1.5)),
        (TrainingSteps(3), TrainingSteps(3)),
    ],
)
def test_from_text(text, expected):
    assert count(text, "it") == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("300000", "is no count"),
        ("many env_steps", "is no count"),
        ("-3 env_steps", "is no count"),
        ("1,5 seconds", r"'1,5 seconds' is no count: .* commas only group thousands, .* '1\.5'"),
        ("0,500 env_steps", "commas only group thousands"),
        ("10,00 env_steps", "commas only group thousands"),
        ("1,0000 env_steps", "commas only group thousands"),
        ("1,,000 env_steps", "commas only group thousands"),
        ("1,000, env_steps", "commas only group thousands"),
        ("1000,000 env_steps", "commas only group thousands"),
        ("3 env_step", "no unit 'env_step'.*Did you mean 'env_steps'"),
        ("1.5 episodes", "whole number"),
        (300, "has no unit: write for example '300 env_steps'"),
        ("3 seconds", "it takes env_steps or episodes"),
    ],
)
def test_texts_that_are_no_count(given, says):
    with pytest.raises(ValueError, match=says):
        count(given, "Schedule.heatup_steps", ("env_steps", "episodes"))


def test_in_gin_beside_the_metric_of_that_name():
    import alf.trainers.schedule

    gin.parse_config(
        """
        warm/counts.EnvironmentSteps.value = 1000
        Schedule.heatup_steps = @warm/counts.EnvironmentSteps()
        Schedule.improve_steps = ['2e3 env_steps', '10 seconds']
        """
    )
    schedule = alf.trainers.schedule.Schedule()
    assert schedule.heatup_steps == EnvironmentSteps(1000)
    assert schedule.improve_steps == (EnvironmentSteps(2000), Seconds(10))
