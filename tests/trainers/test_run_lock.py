"""One live run a directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from alf.trainers import run_lock
from alf.trainers.counts import EnvironmentEpisodes, EnvironmentSteps, TrainingSteps
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.run_index import INDEX_FILE
from alf.trainers.run_lock import LOCK_FILE, RunLock, RunLockedError, holder_of
from alf.trainers.schedule import Schedule
from tests.awake import awake_secs

_HOLD = """
import sys, time, types
m = types.ModuleType('alf'); m.__path__ = ['alf']; sys.modules['alf'] = m
from alf.trainers.run_lock import RunLock
RunLock(sys.argv[1]).acquire()
print('held', flush=True)
time.sleep(60)
"""


def _holder(path, **changes):
    holder = {"pid": os.getpid(), "born": run_lock._born(os.getpid()), "host": socket.gethostname(), **changes}
    (path / LOCK_FILE).write_text(json.dumps(holder))


def _touch(path, ahead=0.0):
    """Gives a sign of life, by a clock that is behind this machine's by so many seconds."""
    then = time.time() - ahead
    os.utime(path / LOCK_FILE, (then, then))


@contextlib.contextmanager
def _giving_signs(path, ahead=0.0):
    """As the holder does, of whom only those tell."""
    over = threading.Event()

    def touch():
        while not over.wait(0.5):
            _touch(path, ahead)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_second_is_refused_until_the_first_lets_go(tmp_path):
    first, second = RunLock(str(tmp_path / "a" / "b")), RunLock(str(tmp_path / "a" / "b"))
    with first:
        assert holder_of(str(tmp_path / "a" / "b"))["pid"] == os.getpid()
        with pytest.raises(RunLockedError, match=rf"in use by process {os.getpid()} on .*, which gave a sign of life"):
            second.acquire()
        second.release()
    assert not (tmp_path / "a" / "b" / LOCK_FILE).exists()
    with second:
        pass
    second.release()
    assert holder_of(str(tmp_path / "a" / "b")) is None


def test_another_process_holds_it_while_it_lives(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match=rf"process {process.pid} on"):
            RunLock(str(tmp_path)).acquire()
    finally:
        process.send_signal(signal.SIGKILL)
        # Not waited for yet: what has ended counts as ended even so.
        deadline = time.monotonic() + 10
        while holder_of(str(tmp_path)) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
    with RunLock(str(tmp_path)):
        assert holder_of(str(tmp_path))["pid"] == os.getpid()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    "changes", [{"pid": 2**22 + 1}, {"born": "1"}, {"pid": -1}, {"pid": True}, {"pid": "x"}, {"pid": 2**70}]
)
def test_a_lock_of_a_process_that_is_gone_is_taken_over(tmp_path, changes):
    _holder(tmp_path, **changes)
    with RunLock(str(tmp_path)):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"pid": null}'])
def test_a_damaged_lock_is_taken_over(tmp_path, content):
    (tmp_path / LOCK_FILE).write_text(content)
    with RunLock(str(tmp_path)):
        pass


def test_a_lock_that_could_not_be_written_is_not_held(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError("No space left on device")

    lock = RunLock(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(run_lock, "write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            lock.acquire()
    lock.acquire()
    assert holder_of(str(tmp_path))["pid"] == os.getpid()
    lock.release()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_run_on_another_machine_lives_as_long_as_it_gives_signs(tmp_path):
    _holder(tmp_path, host="elsewhere")
    with _giving_signs(tmp_path), pytest.raises(RunLockedError, match="on elsewhere"):
        RunLock(str(tmp_path)).acquire()
    _touch(tmp_path, 2 * 3600)
    with RunLock(str(tmp_path)):
        pass


def test_a_run_in_another_container_lives_as_long_as_it_gives_signs(tmp_path):
    """With the network of the machine it has its name, too, and its number there is that of another process here, or none."""
    _holder(tmp_path, pid=2**22 + 1, pid_namespace="pid:[1]")
    assert holder_of(str(tmp_path))["pid"] == 2**22 + 1
    with _giving_signs(tmp_path), pytest.raises(RunLockedError, match=r"in use by process 4194305"):
        RunLock(str(tmp_path)).acquire()
    _touch(tmp_path, 2 * 3600)
    with RunLock(str(tmp_path)):
        written = json.loads((tmp_path / LOCK_FILE).read_text())
    assert written["pid_namespace"] == os.readlink("/proc/self/ns/pid")


@pytest.mark.parametrize("ahead", [100, -100, 1800])
def test_one_elsewhere_that_gives_signs_by_another_clock_is_refused(tmp_path, ahead):
    _holder(tmp_path, host="elsewhere")
    _touch(tmp_path, ahead)
    with _giving_signs(tmp_path, ahead), pytest.raises(RunLockedError, match=r"which gave a sign of life 0 s ago"):
        RunLock(str(tmp_path)).acquire()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["host"] == "elsewhere"


@pytest.mark.parametrize(("ahead", "longest"), [(100, 3), (-100, 6), (1800, 3)])
def test_one_that_died_elsewhere_is_watched_for_a_few_heartbeats_and_taken_over(
    tmp_path, monkeypatch, logged, ahead, longest
):
    """Of one that looks dead; one that died by a clock ahead of this machine's is waited for as any other."""
    _holder(tmp_path, host="elsewhere")
    _touch(tmp_path, ahead)
    monkeypatch.setattr(run_lock, "_PATIENCE_SECS", 3.0)
    monkeypatch.setattr(run_lock, "_WATCH_SECS", 1.0)
    began = awake_secs()
    with RunLock(str(tmp_path)):
        assert holder_of(str(tmp_path))["host"] == socket.gethostname()
    assert awake_secs() - began < longest
    assert "waiting for a sign of life, up to" in logged[0]


def test_one_elsewhere_that_died_long_ago_is_not_waited_for(tmp_path, logged):
    _holder(tmp_path, host="elsewhere")
    _touch(tmp_path, 2 * 3600)
    with RunLock(str(tmp_path)):
        assert holder_of(str(tmp_path))["host"] == socket.gethostname()
    assert [line for line in logged if "waiting" in line] == []


@pytest.mark.parametrize("of_whom", [{"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}])
def test_one_that_died_elsewhere_is_waited_for_and_taken_over(tmp_path, monkeypatch, logged, of_whom):
    """As where a scheduler moves a run, or starts its container again: it goes on by itself."""
    _holder(tmp_path, **of_whom)
    monkeypatch.setattr(run_lock, "_PATIENCE_SECS", 2.0)
    assert holder_of(str(tmp_path)) is not None
    with RunLock(str(tmp_path)):
        assert holder_of(str(tmp_path))["host"] == socket.gethostname()
    assert "waiting for a sign of life, up to" in logged[0]
    assert "which is gone: taken over" in logged[1]


def test_one_elsewhere_that_lets_go_is_not_waited_for_any_longer(tmp_path):
    _holder(tmp_path, host="elsewhere")
    threading.Timer(0.5, os.remove, [tmp_path / LOCK_FILE]).start()
    began = awake_secs()
    with RunLock(str(tmp_path)):
        pass
    assert awake_secs() - began < run_lock._PATIENCE_SECS / 2


@pytest.mark.parametrize(("born", "quiet", "alive"), [(None, 0, True), (None, 100, False), ("1", 0, False)])
def test_a_run_of_another_user_that_the_kernel_hides_lives_as_long_as_it_gives_signs(
    tmp_path, monkeypatch, born, quiet, alive
):
    def forbidden(pid, number):
        raise PermissionError

    _holder(tmp_path)
    then = time.time() - quiet
    os.utime(tmp_path / LOCK_FILE, (then, then))
    monkeypatch.setattr(run_lock.os, "kill", forbidden)
    monkeypatch.setattr(run_lock, "_born", lambda pid: born)
    assert (holder_of(str(tmp_path)) is not None) == alive


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_HEARTBEAT_SECS", 0.01)
    with RunLock(str(tmp_path)):
        os.utime(tmp_path / LOCK_FILE, (0, 0))
        deadline = time.monotonic() + 10
        while os.path.getmtime(tmp_path / LOCK_FILE) == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.path.getmtime(tmp_path / LOCK_FILE) > 0


def test_a_lock_that_cannot_be_read_for_a_while_is_held_on(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(run_lock, "_HEARTBEAT_SECS", 0.01)
    content, looks = run_lock._read, []

    def read(path):
        looks.append(path)
        return {} if len(looks) < 3 else content(path)

    with RunLock(str(tmp_path)):
        monkeypatch.setattr(run_lock, "_read", read)
        os.utime(tmp_path / LOCK_FILE, (0, 0))
        deadline = time.monotonic() + 10
        while len(looks) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(looks) >= 5
        assert os.path.getmtime(tmp_path / LOCK_FILE) > 0
    assert not logged


def test_one_that_stood_still_leaves_the_lock_of_another_alone(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(run_lock, "_HEARTBEAT_SECS", 0.01)
    with RunLock(str(tmp_path)) as lock:
        lock.check()
        theirs = str(tmp_path / "theirs")
        _holder(tmp_path, host="elsewhere", token="theirs")
        os.rename(tmp_path / LOCK_FILE, theirs)
        os.utime(theirs, (1, 1))
        os.replace(theirs, tmp_path / LOCK_FILE)
        deadline = time.monotonic() + 10
        while not logged and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "run.lock is another run's by now" in logged[-1]
        with pytest.raises(RunLockedError, match=r"run\.lock is another run's by now, which took this one for dead"):
            lock.check()
        assert os.path.getmtime(tmp_path / LOCK_FILE) == 1
    assert json.loads((tmp_path / LOCK_FILE).read_text())["host"] == "elsewhere"


def test_of_many_at_once_one_wins(tmp_path):
    locks = [RunLock(str(tmp_path)) for _ in range(8)]
    won, start = [], threading.Barrier(len(locks))

    def attempt(lock):
        start.wait()
        try:
            lock.acquire()
        except RunLockedError:
            return
        won.append(lock)

    threads = [threading.Thread(target=attempt, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()


def test_a_lock_that_somebody_took_away_is_left_to_them(tmp_path):
    lock = RunLock(str(tmp_path))
    lock.acquire()
    _holder(tmp_path, token="theirs")
    lock.release()
    assert (tmp_path / LOCK_FILE).exists()


def test_a_trainer_holds_its_directory_from_its_first_part_to_its_end(small_config, tmp_path):
    schedule = Schedule("8 env_steps", improve_steps="1 training_steps")
    first, second = (small_config(SyncOffPolicyTrainer, schedule=schedule).create_trainer() for _ in range(2))
    one_step, one_episode, iteration = EnvironmentSteps(1), EnvironmentEpisodes(1), TrainingSteps(1)
    with first:
        first.act(one_step)
        parts = [second.initialize, second.improve, second.train]
        parts += [lambda: second.act(one_step), lambda: second.heatup(one_step), lambda: second.evaluate(one_episode)]
        parts += [lambda: second.train_and_act(iteration)]
        for part in parts:
            with pytest.raises(RunLockedError, match=r"if it is this process, close\(\) its trainer"):
                part()
        second.close()
        assert holder_of(str(tmp_path / "run"))["pid"] == os.getpid()
    assert holder_of(str(tmp_path / "run")) is None
    with second:
        second.improve()
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_a_trainer_that_has_ended_holds_its_directory_to_evaluate(small_config, tmp_path):
    with small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer() as trainer:
        trainer.train()
        assert holder_of(str(tmp_path / "run")) is None
        trainer.evaluate(EnvironmentEpisodes(1))
        assert holder_of(str(tmp_path / "run"))["pid"] == os.getpid()
    assert holder_of(str(tmp_path / "run")) is None


def test_a_trainer_that_cannot_be_built_frees_its_directory(small_config, tmp_path):
    with pytest.raises(AttributeError):
        small_config(SyncOffPolicyTrainer, algorithm_ctor=lambda **kwargs: {}).create_trainer().initialize()
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_a_trainer_refuses_a_directory_in_use_and_frees_its_own(small_config, tmp_path):
    with RunLock(str(tmp_path / "run")), pytest.raises(RunLockedError):
        small_config(SyncOffPolicyTrainer).create_trainer().train()
    assert not (tmp_path / "run" / "train").exists()
    small_config(SyncOffPolicyTrainer, num_iterations=1).create_trainer().train()
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_a_run_that_has_lost_its_directory_ends_and_writes_no_checkpoint(small_config, tmp_path, monkeypatch):
    """It stood still, another one on another machine went on, and it wakes up."""
    step, before, root = SyncOffPolicyTrainer._after_iteration, [], tmp_path / "run"

    def written():
        return (root / INDEX_FILE).read_bytes(), sorted(os.listdir(root / "train" / "algorithm"))

    def lost(trainer):
        if trainer.counters.iterations == 2:
            _holder(root, host="elsewhere", token="theirs")
            before.append(written())
        step(trainer)

    monkeypatch.setattr(SyncOffPolicyTrainer, "_after_iteration", lost)
    trainer = small_config(SyncOffPolicyTrainer, num_iterations=9, checkpoint_interval=1).create_trainer()
    with pytest.raises(RunLockedError, match=r"is another run's by now"):
        trainer.train()
    assert [written()] == before
    assert trainer.counters.iterations == 2
    assert json.loads((root / LOCK_FILE).read_text())["token"] == "theirs"
