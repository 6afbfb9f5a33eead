"""Totals by phase, the phase a thread is in, episodes counted from experience."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience
from alf.trainers import checkpointing
from alf.trainers.counters import Counters, EpisodeCounter
from alf.trainers.counts import UNITS, EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps
from alf.trainers.phases import Phase, Phases

AMOUNTS = (EnvironmentSteps(7), EnvironmentEpisodes(2), TrainingSteps(3), Seconds(0.5))


def test_the_old_name_is_the_same_class():
    assert checkpointing.Counters is Counters


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_has_totals_of_its_own_in_every_unit(phase):
    counters = Counters()
    counters[phase].add(*AMOUNTS)
    counters[phase].add(*AMOUNTS)
    for other in Phase:
        for amount in AMOUNTS:
            assert counters[other].like(amount) == (amount + amount if other is phase else type(amount)(0))
    assert {type(a) for a in AMOUNTS} == set(UNITS.values())
    assert counters.seconds == 1.0
    trains = phase is Phase.TRAIN
    assert (counters.env_steps, counters.iterations) == ((14, 6) if trains else (0, 0))


def test_a_comparison_looks_at_one_unit_only():
    totals = Counters()[Phase.TEST]
    totals.add(EnvironmentSteps(1000), EnvironmentEpisodes(2))
    assert totals < EnvironmentEpisodes(3)
    assert totals <= EnvironmentEpisodes(2)
    assert not totals < EnvironmentEpisodes(2)
    assert not totals > EnvironmentEpisodes(2)
    assert totals >= EnvironmentSteps(1000)
    assert totals > EnvironmentSteps(999)


def test_a_target_leaves_the_total_alone():
    counters = Counters()
    counters[Phase.TRAIN].add(EnvironmentSteps(5))
    target = counters[Phase.TRAIN] + EnvironmentSteps(10)
    assert target == EnvironmentSteps(15)
    assert counters.env_steps == 5
    assert not counters.reached(target)
    counters.env_step.assign(15)
    assert counters.reached(target)
    assert not counters.reached(target, Phase.TEST)


def test_totals_are_in_checkpoints(tmp_path):
    def objects(counters):
        return {"counters": counters, "phases": counters.phases}

    first, second = Counters(), Counters()
    for phase in Phase:
        first[phase].add(*AMOUNTS)
    first.global_counter.assign(9)
    checkpointing.Checkpointer(str(tmp_path), objects(first), 1).save(9)
    assert checkpointing.Checkpointer(str(tmp_path), objects(second), 1).restore()
    for phase in Phase:
        assert [second[phase].like(a) for a in AMOUNTS] == list(AMOUNTS)
    assert (second.global_steps, second.iterations, second.env_steps) == (9, 3, 7)


def test_checkpoints_without_totals_are_restored(tmp_path):
    first, second = Counters(), Counters()
    first.env_step.assign(7)
    checkpointing.Checkpointer(str(tmp_path), {"counters": first}, 1).save(9)
    checkpointer = checkpointing.Checkpointer(str(tmp_path), {"counters": second, "phases": second.phases}, 1)
    assert checkpointer.restore()
    assert second[Phase.TRAIN].of(EnvironmentSteps) == EnvironmentSteps(7)
    assert second[Phase.HEATUP].of(EnvironmentSteps) == EnvironmentSteps(0)


def test_phases_nest_and_are_left_however_the_block_ends():
    phases = Phases()
    assert phases.current is Phase.TRAIN
    with phases.phase_context(Phase.HEATUP):
        with pytest.raises(ZeroDivisionError), phases.phase_context(Phase.TEST):
            assert phases.current is Phase.TEST
            raise ZeroDivisionError
        assert phases.current is Phase.HEATUP
        with phases.phase_context(Phase.TRAIN):
            assert phases.current is Phase.TRAIN
        assert phases.current is Phase.HEATUP
    assert phases.current is Phase.TRAIN


def test_phases_of_threads_and_trainers_do_not_mix():
    phases, other = Phases(), Phases()
    entered, leave, seen = threading.Event(), threading.Event(), []

    def work():
        with phases.phase_context(Phase.TEST):
            entered.set()
            leave.wait(10)
            seen.append(phases.current)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    with phases.phase_context(Phase.HEATUP):
        assert (phases.current, other.current) == (Phase.HEATUP, Phase.TRAIN)
        leave.set()
        thread.join(10)
        assert phases.current is Phase.HEATUP
    assert seen == [Phase.TEST]


def test_episodes_are_counted_once_across_segments():
    """A stream cut into segments of any length: the ends are those of the stream."""
    rng = np.random.default_rng(0)
    rows, steps = 3, 24
    stream = rng.choice([0, 1, 1, 2], size=(steps + 1, rows))
    ids = np.arange(rows) + 5
    for length in (1, 4, 24):
        counter, taken = EpisodeCounter(), 0
        for start in range(0, steps, length):
            bootstrap = Bootstrap(ActionTimeStep(step_type=tf.constant(stream[start + length])[np.newaxis]))
            counter(
                Experience(
                    step_type=tf.constant(stream[start : start + length])[np.newaxis],
                    env_id=tf.broadcast_to(ids, [1, length, rows]),
                    bootstrap=bootstrap,
                )
            )
            taken += counter.take()
            if start == 0:
                ended = stream[1 : length + 1] == 2
                assert counter.rows() == np.count_nonzero(ended.any(0))
        assert taken == np.count_nonzero(stream[1:] == 2)
        assert counter.take() == 0
        counter.forget_rows()
        assert counter.rows() == 0
