"""Signals: the first asks, handlers are put back, other threads are left alone."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading

import pytest

from alf.replay.replay_buffer import ReplayBuffer
from alf.trainers.counters import Counters
from alf.trainers.evaluations import Evaluations
from alf.trainers.interrupts import Interrupted, StopSignals
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.run_index import RunIndex
from alf.trainers.run_lock import LOCK_FILE
from alf.utils.uninterrupted import held_up


@pytest.fixture
def hangups():
    """SIGHUP has its usual meaning, though the tests may run under nohup; the handler."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield signal.SIG_DFL
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_a_request_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.requested is None
        os.kill(os.getpid(), number)
        assert signals.requested == signal.Signals(number).name
    assert signal.getsignal(number) is before


def test_a_signal_leaves_an_interruptible_wait():
    with StopSignals() as signals:
        with pytest.raises(Interrupted), signals.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10)
        assert signals.requested == "SIGTERM"
        with pytest.raises(Interrupted), signals.interruptible():
            pytest.fail("a wait that begins after the request is not entered")


def test_handlers_are_put_back_after_an_exception():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError), StopSignals():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("taken", [signal.SIG_IGN, lambda number, frame: None])
def test_what_an_environment_has_taken_over_is_taken_back(small_config, monkeypatch, logged, taken):
    """Simulators that start at the first reset set handlers then; where they are rebuilt, once more."""
    step = SyncOffPolicyTrainer._after_iteration

    def interrupted(trainer):
        step(trainer)
        if trainer.counters.iterations == 1:
            signal.signal(signal.SIGTERM, taken)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SyncOffPolicyTrainer, "_after_iteration", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=9).create_trainer()
    trainer.train()
    assert trainer.counters.iterations == 2
    assert signal.getsignal(signal.SIGTERM) is before
    assert any(
        "has set a handler for SIGTERM, which is taken back" in line and "leave signals alone" in line
        for line in logged
    )


def test_outside_the_main_thread_nothing_is_installed():
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with StopSignals() as signals:
            seen.append(signal.getsignal(signal.SIGINT))
            with signals.interruptible():
                seen.append(signals.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before, None]


def test_second_signal_ends_the_process_at_once():
    code = (
        "import os, signal, sys, time\n"
        "from alf.trainers.interrupts import StopSignals\n"
        "with StopSignals() as s:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert s.requested\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True)
    assert done.returncode == -signal.SIGTERM


_SIGNALLED = """
import signal, time
from alf.trainers.interrupts import StopSignals
from alf.utils.uninterrupted import held_up
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def send(*numbers):
    for number in numbers:
        signal.raise_signal(number)
with StopSignals() as signals:
    {body}
    print(signals.requested, flush=True)
    send(signal.SIGTERM)
    time.sleep(60)
"""
_AT_ONCE = """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGTERM])
    send(signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP, signal.SIGTERM])
"""
_WHILE_SAVING = """
    with held_up():
        send(signal.SIGHUP, signal.SIGTERM, signal.SIGHUP)
        print("saved", flush=True)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("send(signal.SIGHUP, signal.SIGTERM)", ["SIGHUP"]),
        ("send(signal.SIGTERM, signal.SIGHUP)", ["SIGTERM"]),
        (_AT_ONCE, ["SIGHUP"]),
        (_WHILE_SAVING, ["saved", "SIGHUP"]),
    ],
)
def test_a_hangup_beside_another_signal_is_no_second_one(body, said):
    """A machine that goes down sends both, and Python handles the lower number first; the next SIGTERM is the second."""
    command = [sys.executable, "-c", _SIGNALLED.format(body=body.strip())]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (said, -signal.SIGTERM), done.stderr


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_closes_may_tell_of_it_again(first, hangups):
    with StopSignals() as signals:
        for number in (first, signal.SIGHUP, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert signals.requested == first.name
    assert signal.getsignal(signal.SIGHUP) is hangups


@pytest.mark.usefixtures("hangups")
def test_a_terminal_that_closes_breaks_nothing_off():
    done = []
    with StopSignals() as signals, pytest.raises(Interrupted), signals.interruptible(), held_up():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        done.append("the whole of it")
    assert done


def test_an_ignored_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.requested is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_where_somebody_types_the_second_one_is_an_exception(monkeypatch, logged):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.requested == "SIGINT"
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [line for line in logged if "ends training at once" in line]


def test_no_signal_leaves_a_batch_half_stored(small_config, monkeypatch):
    """One that comes while a memory stores a batch is heard after it: the batch counts, and the memory is whole."""
    add = ReplayBuffer.add

    def torn(self, exp):
        os.kill(os.getpid(), signal.SIGTERM)
        add(self, exp)

    settings = {"whole_replay_buffer_training": False, "mini_batch_length": 2, "initial_collect_steps": 1000}
    trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
    monkeypatch.setattr(ReplayBuffer, "add", torn)
    trainer.train()
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (0, 16)
    assert trainer.algorithm.exp_replayer.total_steps == 16


@pytest.mark.parametrize(("where", "updates"), [("update", 3), ("collecting", 2)])
def test_a_signal_ends_an_iteration_of_many_updates_at_the_next(where, updates, small_config, tmp_path):
    """Each is of 16 steps, and the iteration of twenty: what was made of it counts, and a run that goes on makes the rest."""
    settings = {"num_steps_per_iter": 16 * 20, "num_iterations": 0, "num_env_steps": 16 * 25, "unroll_length": 4}
    trainer = small_config(OnPolicyTrainer, **settings).create_trainer()
    trainer.initialize()
    interrupted = {"update": (trainer.algorithm, "train"), "collecting": (trainer._envs[0], "step")}[where]
    call, calls = getattr(*interrupted), []

    def third(*args):
        calls.append(args)
        if len(calls) == {"update": 3, "collecting": 9}[where]:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(*args)

    object.__setattr__(*interrupted, third)
    trainer.train()
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (1, 16 * updates)
    assert int(trainer.algorithm.iterations) == updates
    assert RunIndex.load(str(tmp_path / "run")).run["status"] == "interrupted"
    again = small_config(OnPolicyTrainer, **settings).create_trainer()
    again.train()
    assert (again.counters.iterations, again.counters.env_steps) == (3, 16 * (updates + 40))


@pytest.mark.parametrize(("at", "exact"), [(2, False), (4, False), (4, True)])
def test_an_evaluation_that_a_signal_cuts_is_played_by_the_run_that_goes_on(
    at, exact, small_config, tmp_path, monkeypatch
):
    """In the midst, or of what the run ends with: it has not finished before."""
    settings = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 2, "num_iterations": 4}
    settings |= {"exact_resume": True, "checkpoint_interval": 2} if exact else {}
    play = Evaluations.play
    monkeypatch.setattr(Counters, "seconds", property(lambda self: 1000.0))  # as of a long run

    def cut(self, count, step, *rest):
        if step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self, count, step, *rest)

    monkeypatch.setattr(Evaluations, "play", cut)
    small_config(SyncOffPolicyTrainer, **settings).create_trainer().train()
    run = RunIndex.load(str(tmp_path / "run")).run
    assert (run["status"], run["why"]) == ("interrupted", "SIGTERM received")
    monkeypatch.setattr(Evaluations, "play", play)
    for _ in range(2):
        trainer = small_config(SyncOffPolicyTrainer, **settings).create_trainer()
        trainer.train()
        assert [e.step for e in trainer._evaluations.history.all] == [2, 4]
        index = RunIndex.load(str(tmp_path / "run"))
        assert index.run["status"] == "finished"
        assert index.final().step == 4
        assert index.find("4").reward == trainer._evaluations.history.last.average_return
    with (tmp_path / "run" / "eval" / "stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["global_step"] for row in rows] == ["2", "4"]
    assert all(float(row["seconds"]) >= 1000.0 for row in rows)


def test_an_interrupt_while_a_run_is_closed_leaves_nothing_else_open(small_config, tmp_path, monkeypatch):
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer()
    trainer.initialize()
    closed = []

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluations, "close", interrupted)
    trainer._closers.append(lambda: closed.append("environments"))
    with pytest.raises(KeyboardInterrupt):
        trainer.close()
    assert closed == ["environments"]
    assert not (tmp_path / "run" / LOCK_FILE).exists()
