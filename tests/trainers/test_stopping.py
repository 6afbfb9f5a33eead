"""Stop conditions, judged from made-up evaluations."""

from __future__ import annotations

import math

import pytest
from absl import logging

from alf.trainers.agent_evaluation import BehaviorEvaluation
from alf.trainers.config import TrainerConfig
from alf.trainers.evaluation import Evaluation
from alf.trainers.stopping import MeanReturn, Plateau, Standing, SuccessRate, TimeLimit, check_judged, first_reason

NOTHING_ENDED = Evaluation(0, math.nan, math.nan, math.nan)


def _run(*returns, rate=math.nan, seconds=0.0):
    """A run whose evaluations had these returns."""
    made = []
    for values in returns:
        mean = sum(values) / len(values)
        made.append(Evaluation(len(values), mean, 0.0, 1.0, rate, 0, tuple(values)))
    return Standing(made, seconds)


CONDITIONS = [SuccessRate(0.0), MeanReturn(-1e9), Plateau(1), TimeLimit(1e9)]


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("run", [Standing([], 0.0), Standing([NOTHING_ENDED], 0.0), Standing([NOTHING_ENDED] * 5, 0.0)])
def test_nothing_stops_without_an_episode(condition, run):
    assert condition(run) is None


def test_success_rate():
    assert SuccessRate(0.8)(_run([1, 2], rate=0.75)) is None
    assert SuccessRate(0.75)(_run([1, 2], rate=0.75)) == "the success rate of 2 episodes is 0.75, at least 0.75"
    assert SuccessRate(0.0)(_run([1, 2], rate=0.0)) is not None
    # The last evaluation decides.
    good, bad = _run([1], rate=1.0).evaluations[0], _run([1], rate=0.0).evaluations[0]
    assert SuccessRate(1.0)(Standing([good, bad], 0.0)) is None
    assert SuccessRate(1.0)(Standing([good, NOTHING_ENDED], 0.0)) is None
    assert MeanReturn(0.0)(Standing([good, NOTHING_ENDED], 0.0)) is None


def test_mean_return():
    assert MeanReturn(2.0)(_run([2.0])) == "the mean return of 1 evaluation episodes is 2, at least 2"
    # Of all episodes of the last evaluation: in the order of their ends, the last of some in parallel is a long one.
    assert MeanReturn(5.5)(_run([1.0, 9.0])) is None
    assert MeanReturn(5.0)(_run([1.0], [1.0, 9.0])) == "the mean return of 2 evaluation episodes is 5, at least 5"
    assert MeanReturn(2.1, 2)(_run([9.0, 1.0, 3.0])) is None
    assert MeanReturn(0.0)(_run([-0.1])) is None
    assert MeanReturn(0.0)(_run([0.0])) is not None
    assert MeanReturn(1.0, 150)(_run([1.0] * 150)) is not None
    # Over the last episodes of several evaluations, once there are enough.
    assert MeanReturn(2.0, 3)(_run([9.0], [1.0])) is None
    assert MeanReturn(2.0, 3)(_run([9.0], [1.0], [2.0, 3.0])) is not None
    assert MeanReturn(2.1, 3)(_run([9.0], [1.0], [2.0, 3.0])) is None
    assert MeanReturn(2.0, 3)(_run([9.0], [1.0], [2.0], [3.0])) is not None


def test_plateau():
    plateau = Plateau(2)
    assert plateau(_run([1.0], [1.0])) is None
    assert plateau(_run([1.0], [1.0], [1.0])) == "2 evaluations in a row did not raise the mean return of 1"
    assert plateau(_run([1.0], [1.0], [1.1])) is None
    assert plateau(_run([1.0], [1.1], [1.0])) is None
    assert plateau(_run([1.0], [1.1], [1.0], [1.1])) is not None
    assert plateau(_run([9.0], [1.0], [2.0], [3.0])) == "2 evaluations in a row did not raise the mean return of 9"
    assert Plateau(2, min_improvement=0.5)(_run([1.0], [1.2], [1.5])) is not None
    assert Plateau(2, min_improvement=0.5)(_run([1.0], [1.2], [1.6])) is None


def test_whole_numbers_may_be_written_as_floats():
    assert MeanReturn(2.0, 1e0)(_run([9.0], [2.0])) is not None
    assert Plateau(1e0)(_run([1.0], [1.0])) is not None


def _of_agents(*of_evaluations, rates=None):
    """A run whose evaluations had these returns, by behavior."""
    made = []
    for returns in of_evaluations:
        behaviors = tuple(
            BehaviorEvaluation(
                name, len(v), sum(v) / len(v) if v else math.nan, 0.0, 1.0, (rates or {}).get(name), tuple(v)
            )
            for name, v in returns.items()
        )
        made.append(Evaluation(1, 0.0, 0.0, 1.0, behaviors=behaviors))
    return Standing(made, 0.0)


def test_targets_of_several_behaviors_are_all_to_be_reached():
    both = MeanReturn({"a": 2.0, "b": -1.0}, 2)
    assert both(_of_agents({"a": [2.0, 2.0], "b": [-1.0, -2.0]})) is None
    assert both(_of_agents({"a": [1.0, 2.0], "b": [0.0, 0.0]})) is None
    assert both(_of_agents({"a": [2.0], "b": [0.0, 0.0]})) is None
    assert both(_of_agents({"a": [9.0, 2.0], "b": [0.0, 0.0]}, {"a": [2.0], "b": [-2.0, 0.0]})) == (
        "a: the mean return of 2 evaluation episodes is 2, at least 2; "
        "b: the mean return of 2 evaluation episodes is -1, at least -1"
    )
    # Behaviors that are not named may do what they like; those that an evaluation knows nothing of reach nothing.
    assert MeanReturn({"b": 0.0})(_of_agents({"a": [-9.0], "b": [0.0]})) is not None
    assert MeanReturn({"b": 0.0})(_of_agents({"a": [9.0]})) is None
    assert MeanReturn({"b": 0.0})(_of_agents({"b": [0.0]}, {"b": []})) is None
    returns = {"a": [0.0], "b": [0.0]}
    success = SuccessRate({"a": 0.5, "b": 0.9})
    assert success(_of_agents(returns, rates={"a": 0.4, "b": 1.0})) is None
    assert success(_of_agents(returns, rates={"a": 0.5, "b": math.nan})) is None
    assert "b: the success rate of 1 episodes is 0.9" in success(_of_agents(returns, rates={"a": 0.5, "b": 0.9}))
    plateau = Plateau(1, {"a": 0.0, "b": 0.5})
    assert plateau(_of_agents({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [1.6]})) is None
    assert plateau(_of_agents({"a": [1.0], "b": [1.0]}, {"a": [1.1], "b": [1.5]})) is None
    assert plateau(_of_agents({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [1.5]})) is not None


def test_time_limit():
    assert TimeLimit(2.0)(_run(seconds=1.9)) is None
    assert TimeLimit(2.0)(_run(seconds=2.0)) == "the time limit of 2 s is reached"


def test_the_first_reason_counts():
    run = _run([5.0], seconds=10.0)
    assert first_reason([], run) is None
    assert first_reason([MeanReturn(6.0), TimeLimit(11.0)], run) is None
    assert first_reason([MeanReturn(6.0), TimeLimit(9.0), MeanReturn(5.0)], run) == "the time limit of 9 s is reached"


@pytest.mark.parametrize("answer", [False, True, "", 0.5])
def test_a_condition_that_says_neither_why_nor_none_is_an_error(answer):
    def enough(run):
        return answer

    with pytest.raises(ValueError, match=f"enough gave {answer!r}: .* or None while it may not"):
        first_reason([TimeLimit(9.0), enough], _run([5.0]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SuccessRate(1.1), "target=1.1"),
        (lambda: MeanReturn(math.nan), "target=nan"),
        (lambda: MeanReturn(1.0, 0), "episodes=0"),
        (lambda: MeanReturn({"a": 1.0}, 101), "episodes=101 is more than the 100 returns"),
        (lambda: Plateau(0), "evaluations=0"),
        (lambda: Plateau(1000), "evaluations=1000"),
        (lambda: Plateau(3, -1.0), "min_improvement=-1.0"),
        (lambda: TimeLimit(0), "secs=0"),
        (lambda: TimeLimit(None), "TimeLimit.secs=None must be a number"),
        (lambda: MeanReturn(1.0, 2.5), "MeanReturn.episodes=2.5 must be a whole number or None"),
        (lambda: Plateau(2.5), "Plateau.evaluations=2.5 must be a whole number"),
        (lambda: TrainerConfig("r", stop_conditions=None), "stop_conditions=None must be a list of conditions"),
        (lambda: SuccessRate({"a": 0.5, "b": 1.5}), r"target\['b'\]=1.5"),
        (lambda: MeanReturn({"a": "1"}), r"target\['a'\]='1' must be a number"),
        (lambda: MeanReturn({}), "target={} names no behavior"),
        (lambda: Plateau(3, {"a": -1.0}), r"min_improvement\['a'\]=-1.0"),
        (lambda: TrainerConfig("r", reward_success_threshold="9"), "reward_success_threshold='9' must be a number, or"),
        (lambda: TrainerConfig("r", reward_success_threshold={"a": None}), r"threshold\['a'\]=None must be a number"),
    ],
)
def test_numbers_out_of_range_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_targets_that_nothing_judges_are_told(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text % args))
    check_judged([MeanReturn(1.0)], True, False)
    check_judged([TimeLimit(1.0)], False, False)
    assert not told
    with pytest.raises(ValueError, match=r"MeanReturn\.target judges by evaluations, .* never end: set"):
        check_judged([MeanReturn(1.0)], False, False)
    check_judged([SuccessRate(1.0)], False, True)
    check_judged([SuccessRate(1.0), TimeLimit(1.0)], False, False)
    assert [text.startswith("SuccessRate.target judges by evaluations") for text in told] == [True, True]
