"""Schedules: units, targets, when evaluations are due, and what older settings amount to."""

from __future__ import annotations

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.trainers.config import TrainerConfig
from alf.trainers.counters import Counters
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps
from alf.trainers.phases import Phase
from alf.trainers.schedule import Schedule, schedule_of


def _totals(**totals):
    counters = Counters()
    counters[Phase.TRAIN].add(EnvironmentSteps(totals.get("steps", 0)), TrainingSteps(totals.get("iterations", 0)))
    return counters[Phase.TRAIN]


def test_four_parts_with_units():
    schedule = Schedule("100 env_steps", "5 training_steps", "3 episodes", "1000 env_steps")
    assert schedule.heatup_steps == EnvironmentSteps(100)
    assert schedule.steps_between_evaluation_periods == schedule.period == TrainingSteps(5)
    assert schedule.evaluation_steps == EnvironmentEpisodes(3)
    assert schedule.improve_steps == (EnvironmentSteps(1000),)
    nothing = Schedule()
    assert (nothing.period, nothing.improve_steps, nothing.heatup_steps.value) == (None, (), 0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"heatup_steps": "3 seconds"}, "Schedule.heatup_steps='3 seconds' is given in seconds; it takes env_steps"),
        ({"heatup_steps": 300}, "Schedule.heatup_steps=300 has no unit"),
        ({"evaluation_steps": TrainingSteps(2)}, "evaluation_steps=.* it takes env_steps or episodes"),
        ({"improve_steps": [TrainingSteps(2), 5]}, "improve_steps=5 has no unit"),
        ({"improve_is": "more"}, "improve_is='more' is not one of total, additional"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"max_episode_steps": None}, "Schedule.max_episode_steps=None must be a whole number"),
        ({"heatup_using_network_decisions": "False"}, "heatup_using_network_decisions='False' must be True or False"),
        ({"improve_steps": "1.5 episodes"}, "Schedule.improve_steps='1.5 episodes': .* takes a whole number"),
        ({"steps_between_evaluation_periods": "3 episodes"}, "evaluations of no length"),
    ],
)
def test_settings_that_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Schedule(**settings)


def test_total_and_additional():
    totals = _totals(steps=70, iterations=7)
    total = Schedule(improve_steps=["100 env_steps", "10 training_steps"])
    assert total.targets(totals) == (EnvironmentSteps(100), TrainingSteps(10))
    assert total.goal() == "100 env steps or 10 iterations"
    more = Schedule(improve_steps=["100 env_steps", "10 training_steps"], improve_is="additional")
    assert more.targets(totals) == (EnvironmentSteps(170), TrainingSteps(17))
    assert more.goal() == "100 more env steps or 10 more iterations"
    assert Schedule(improve_steps=Seconds(1.5)).goal() == "1.5 seconds"


@given(st.integers(1, 50), st.integers(0, 500))
def test_evaluations_are_due_at_multiples_of_the_period(period, done):
    schedule = Schedule(steps_between_evaluation_periods=EnvironmentSteps(period), evaluation_steps="1 episodes")
    due = schedule.next_evaluation(_totals(steps=done))
    assert due.value % period == 0
    assert done < due.value <= done + period


def test_no_evaluations():
    assert Schedule().next_evaluation(_totals()) is None
    assert Schedule(steps_between_evaluation_periods="0 env_steps").period is None


def test_what_a_configuration_without_a_schedule_amounts_to():
    config = TrainerConfig("root", num_iterations=7, num_env_steps=90)
    assert schedule_of(config) == Schedule(improve_steps=["7 training_steps", "90 env_steps"])
    config = TrainerConfig("root", num_iterations=7, evaluate=True, eval_interval=3, num_eval_episodes=5)
    assert schedule_of(config) == Schedule("0 env_steps", "3 training_steps", "5 episodes", ["7 training_steps"])
    config.num_iterations = 9
    assert schedule_of(config).improve_steps == (TrainingSteps(9),)


def test_a_configuration_with_a_schedule():
    schedule = Schedule(improve_steps="10 seconds")
    config = TrainerConfig("root", num_iterations=0, schedule=schedule)
    assert schedule_of(config) == schedule
    with pytest.raises(ValueError, match=r"both 0, so training would never end; set one, Schedule\.improve_steps or"):
        TrainerConfig("root", num_iterations=0, schedule=Schedule())
    with pytest.raises(ValueError, match="evaluate_beside=True has nothing to evaluate"):
        TrainerConfig("root", evaluate_beside=True)
    with pytest.raises(ValueError, match="must be a list of conditions"):
        TrainerConfig("root", stop_conditions=lambda run: None)


def test_what_a_schedule_leaves_open_is_as_without_one():
    limits = {"num_iterations": 7, "num_env_steps": 90}
    evaluations = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 5}
    heatup = Schedule("100 env_steps")
    config = TrainerConfig("root", schedule=heatup, **limits)
    assert schedule_of(config) == Schedule("100 env_steps", improve_steps=["7 training_steps", "90 env_steps"])
    config = TrainerConfig("root", schedule=heatup, evaluate_beside=True, **limits, **evaluations)
    assert schedule_of(config) == Schedule(
        "100 env_steps", "3 training_steps", "5 episodes", ["7 training_steps", "90 env_steps"]
    )
    longer = Schedule(evaluation_steps="9 episodes", improve_steps="1 seconds")
    config = TrainerConfig("root", schedule=longer, **limits, **evaluations)
    assert schedule_of(config) == Schedule("0 env_steps", "3 training_steps", "9 episodes", "1 seconds")
    never = Schedule(steps_between_evaluation_periods="0 env_steps", improve_steps="1 seconds")
    assert schedule_of(TrainerConfig("root", schedule=never, **limits, **evaluations)) == never
    assert schedule_of(config, Schedule("8 env_steps")).improve_steps == (TrainingSteps(7), EnvironmentSteps(90))


def test_a_stop_condition_alone_ends_a_run():
    for schedule in (None, Schedule()):
        config = TrainerConfig("root", num_iterations=0, schedule=schedule, stop_conditions=[lambda run: None])
        assert schedule_of(config) == Schedule()


def test_bound_in_gin():
    import alf.trainers.stopping as stopping

    gin.parse_config(
        """
        TrainerConfig.schedule = @Schedule()
        Schedule.heatup_steps = '100 env_steps'
        Schedule.improve_steps = '1 seconds'
        TrainerConfig.stop_conditions = [@MeanReturn(), @alf.TimeLimit(), @Plateau(), @SuccessRate()]
        MeanReturn.target = 0.0
        alf.TimeLimit.secs = 60
        SuccessRate.target = 1.0
        TrainerConfig.reward_success_threshold = 0.0
        """
    )
    config = TrainerConfig("root")
    assert config.schedule == Schedule("100 env_steps", improve_steps="1 seconds")
    kinds = [type(condition) for condition in config.stop_conditions]
    assert kinds == [stopping.MeanReturn, stopping.TimeLimit, stopping.Plateau, stopping.SuccessRate]
    assert config.reward_success_threshold == 0.0
