"""What a trainer waits for has an end, and a sentence for it: a memory that never fills, an evaluation that hangs."""

from __future__ import annotations

import itertools
import math
import re
import threading
from types import SimpleNamespace

import gin
import pytest

from alf.replay.experience_replayer import ReplayTooSmallError
from alf.trainers import evaluations
from alf.trainers.counts import EnvironmentEpisodes
from alf.trainers.evaluations import EvaluationBeside, Evaluations
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.utils import standstill
from tests.replay.q_learning import TinyQ

TRAINERS = pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, AsyncOffPolicyTrainer])

# ---- a memory that never holds a minibatch ----


@pytest.fixture
def gapped(small_config):
    """Makes a trainer on samples of two steps whose streams have a gap after each step, but for every `whole`-th."""

    def make(trainer_class, whole=0, **kwargs):
        gin.bind_parameter("ReplayBuffer.max_length", 20)
        gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", 1)
        settings = {"algorithm_ctor": TinyQ, "whole_replay_buffer_training": False, "mini_batch_length": 2}
        settings |= {"mini_batch_size": 8, "unroll_length": 1, "num_iterations": 1, "num_envs": 1, **kwargs}
        trainer = small_config(trainer_class, **settings).create_trainer()
        trainer.initialize()
        replayer, batches = trainer.algorithm.exp_replayer, itertools.count(1)

        def cut(exp):
            if not whole or next(batches) % whole:
                replayer.end_streams()

        trainer.algorithm.add_experience_observer(cut)
        return trainer, replayer

    return make


@TRAINERS
def test_a_memory_full_of_gaps_ends_the_run_with_a_sentence(trainer_class, gapped):
    trainer, replayer = gapped(trainer_class)
    rows = replayer.batch_size
    with pytest.raises(
        ReplayTooSmallError, match=r"never holds mini_batch_size=8 sequences of mini_batch_length=2"
    ) as told:
        trainer.train()
    assert re.search(rf"came to 0, and \d+ more steps, over twice the {rows * 20} that it keeps", str(told.value))
    collected = int(replayer.buffer.index.count.sum())
    # Not before the memory was filled twice, and not long after.
    assert 2 * rows * 20 < collected <= 2 * rows * 20 + 4 * rows
    assert trainer.counters.iterations == 0


@TRAINERS
def test_a_memory_too_small_for_a_minibatch_is_told_before_anything_is_collected(trainer_class, gapped):
    with pytest.raises(ReplayTooSmallError, match=r"never hold mini_batch_size=800 .* raise max_length"):
        gapped(trainer_class, mini_batch_size=800)


def test_a_memory_that_fills_slowly_is_waited_for(gapped):
    """Every sixth batch is followed up, and so gives four sequences: eight are there after the second one."""
    trainer, replayer = gapped(SyncOffPolicyTrainer, whole=6)
    trainer.train()
    assert trainer.counters.iterations == 1
    assert replayer.num_sequences(2) == 8
    assert trainer.counters.env_steps == 13 * 4


def test_initial_steps_beyond_the_memory_are_no_gap(gapped):
    trainer, replayer = gapped(SyncOffPolicyTrainer, whole=1, initial_collect_steps=800, unroll_length=10)
    trainer.train()
    assert trainer.counters.env_steps == 800
    assert replayer.total_steps == 80


# ---- an evaluation that hangs ----


class _Stepwise:
    """An evaluator that makes a step whenever it is told to, and ends when `should_stop` or the last step says so."""

    def __init__(self, steps):
        self.steps, self.go, self.done = steps, threading.Semaphore(0), threading.Semaphore(0)

    def freeze(self):
        pass

    def play(self, count, step, max_episode_steps, should_stop):
        for _ in range(self.steps):
            self.go.acquire(timeout=60)
            stopped = should_stop()
            self.done.release()
            if stopped:
                return None
        return "result"


@pytest.fixture
def clock(monkeypatch):
    """Time for who waits passes by 40 s a look."""

    def clock_of(ticks):
        return SimpleNamespace(monotonic=lambda: float(next(ticks)), process_time=lambda: 0.0)

    ticks = itertools.count(0, 40)
    for module in (evaluations, standstill):
        monkeypatch.setattr(module, "time", clock_of(ticks))
    monkeypatch.setattr(standstill, "_LONGEST_GAP_SECS", 100.0)
    monkeypatch.setattr(evaluations, "_POLL_SECS", 0.001)
    return ticks


def test_an_evaluation_may_take_long_while_it_comes_on(clock):
    evaluator = _Stepwise(30)
    beside = EvaluationBeside(evaluator, stall_timeout_secs=100.0)
    assert beside.start(EnvironmentEpisodes(1), 7, 100)
    waits = itertools.count()

    def one_step():
        if next(waits) < 30:
            evaluator.go.release()
            evaluator.done.acquire(timeout=60)
        else:
            beside._thread.join(60)
        return False

    assert beside.take(wait=True, give_up=one_step) == "result"
    assert next(waits) >= 30
    assert next(clock) > 1000, "ten times the limit has passed, as those who wait see it"


def test_an_evaluation_that_hangs_is_told(clock):
    evaluator = _Stepwise(30)
    beside = EvaluationBeside(evaluator, stall_timeout_secs=100.0)
    beside.start(EnvironmentEpisodes(1), 7, 100)
    message = r"evaluation of step 7 has made no step of its environment for 120 s \(EvaluationBeside.stall_timeout_secs=100\)"
    with pytest.raises(TimeoutError, match=message):
        beside.take(wait=True)
    assert beside.running
    evaluator.go.release(30)
    beside.stop()
    assert not [t for t in threading.enumerate() if t.name == "alf-evaluation"]


def test_waiting_is_given_up_and_nothing_else_plays_meanwhile():
    evaluator = _Stepwise(2)
    held = Evaluations(lambda: evaluator)
    assert held.start_beside(EnvironmentEpisodes(1), 3, 100)
    assert held.take_beside(True, lambda: True) is None
    assert held.play(EnvironmentEpisodes(1), 4, 100, lambda: False) is None
    evaluator.go.release(2)
    assert held.take_beside(True) == "result"


def test_what_ended_one_evaluation_ends_not_the_next():
    evaluator = _Stepwise(0)
    play, evaluator.play = evaluator.play, lambda *args: 1 // 0
    beside = EvaluationBeside(evaluator)
    beside.start(EnvironmentEpisodes(1), 3, 100)
    with pytest.raises(ZeroDivisionError):
        beside.take(wait=True)
    evaluator.play = play
    assert beside.start(EnvironmentEpisodes(1), 4, 100)
    assert beside.take(wait=True) == "result"


def test_an_evaluation_in_turn_after_one_beside_is_of_the_present_weights():
    """Who plays beside training has frozen weights, which an evaluation that training waits for must not be of."""
    evaluator, frozen = _Stepwise(0), []
    evaluator.freeze = lambda: frozen.append(step)
    held = Evaluations(lambda: evaluator)
    step = 3
    held.start_beside(EnvironmentEpisodes(1), step, 100)
    held.take_beside(True)
    step = 4
    assert held.play(EnvironmentEpisodes(1), step, 100, lambda: False) == "result"
    assert frozen == [3, 4]


def test_a_limit_that_is_none_is_refused():
    for value in (0, -1.0, math.nan, None, "60"):
        with pytest.raises(ValueError, match=r"EvaluationBeside.stall_timeout_secs=.* must be a number above 0"):
            EvaluationBeside(_Stepwise(1), stall_timeout_secs=value)


def test_a_run_whose_evaluation_hangs_ends_and_keeps_what_it_learned(small_config, monkeypatch):
    gin.bind_parameter("EvaluationBeside.stall_timeout_secs", 0.01)
    trainer = small_config(
        SyncOffPolicyTrainer, num_iterations=2, evaluate=True, eval_interval=1, evaluate_beside=True
    ).create_trainer()
    trainer.initialize()
    gate = threading.Event()
    trainer._evaluations.prepare().play = lambda *args: gate.wait(60)
    save_after = trainer._saver.save_after

    def release_then_save(error):
        gate.set()
        save_after(error)

    monkeypatch.setattr(trainer._saver, "save_after", release_then_save)
    with pytest.raises(TimeoutError, match="The evaluation of step 1 has made no step"):
        trainer.train()
    index = RunIndex.load(trainer._root_dir)
    assert index.run["status"] == "failed"
    assert index.run["why"].startswith("TimeoutError: The evaluation of step 1")
    assert index.records()[-1].step == 2
    assert not [t for t in threading.enumerate() if t.name == "alf-evaluation"]
