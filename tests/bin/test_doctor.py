"""The doctor command: what it advises, from made-up measurements and for real."""

from __future__ import annotations

import errno

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.bin import doctor, output_flag, train
from alf.bin.doctor_advice import Facts, advise, effective_rate, gin_text, memory_bytes, unroll_length
from alf.environments.testing import CountingEnvironment
from alf.environments.timing import Measurement
from alf.utils import mixed_precision
from tests.bin.running import SMALL, run_here

pytestmark = pytest.mark.slow

QUICK = ("--seconds_per_measurement=0", "--check_steps=60")


class NotANumber(gymnasium.Env):
    """Gives NaN in its third step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(2, np.nan if self.time == 3 else 0.0, np.float32), 0.0, False, False, {}


class AsksForFlags(NotANumber):
    """Ends the program when it is made, as argparse does."""

    def __init__(self):
        raise SystemExit(2)


class ThreeRows(CountingEnvironment):
    """A batch of three, whoever asks for how many."""

    def __init__(self):
        super().__init__(3)


def _facts(measurements, **kwargs):
    return Facts(measurements, **{"processors": 2, "step_bytes": 100, **kwargs})


def _linear(kind, sizes, per_row, per_call=0.0):
    return [Measurement(kind, b, per_call + per_row * b) for b in sizes]


def _steps_per_iteration(advice):
    return advice.learn_queue_cap * advice.unroll_length * advice.batch_size


def test_a_vectorised_environment_wins_over_a_loop():
    loop = _linear("sync", (8, 16, 32), 5e-6)
    vector = _linear("vector_entry_point", (16, 64, 128, 256), 0.1e-6, 30e-6)
    advice = advise(_facts([*loop, *vector]))
    assert (advice.vectorization, advice.num_envs, advice.learn_queue_cap) == ("vector_entry_point", 1, 1)
    assert _steps_per_iteration(advice) == 2048
    assert any("'sync'" in reason for reason in advice.reasons)


def test_processes_win_only_where_steps_are_slow():
    fast = [*_linear("sync", (8, 32), 5e-6), Measurement("async", 4, 300e-6)]
    assert advise(_facts(fast)).vectorization == "sync"
    slow = [*_linear("sync", (8, 32), 20e-3), Measurement("async", 8, 25e-3)]
    advice = advise(_facts(slow))
    assert (advice.vectorization, advice.batch_size, advice.num_envs) == ("async", 8, 2)
    assert _steps_per_iteration(advice) < 2048


def test_threads_are_for_steps_that_leave_python_free():
    loop = _linear("sync", (8,), 1e-3)
    assert advise(_facts(loop, processors=8, thread_gain=1.0)).num_envs == 2
    advice = advise(_facts(loop, processors=8, thread_gain=1.9))
    assert advice.num_envs == 7
    assert any("1.9 times as fast" in reason for reason in advice.reasons)


def test_what_cannot_be_had_is_left_out():
    advice = advise(_facts([Measurement("envpool", 16, problem="not installed"), *_linear("sync", (8,), 1e-5)]))
    assert advice.vectorization == "sync"
    with pytest.raises(ValueError, match="No way to vectorise"):
        advise(_facts([Measurement("sync", 8, problem="?")]))


def test_an_actor_thread_is_for_a_gpu():
    loop = _linear("sync", (8,), 1e-5)
    assert advise(_facts(loop)).num_actor_queues == 0
    with_actor = advise(_facts(loop, gpus=1))
    assert with_actor.num_actor_queues == 1
    for advice in (with_actor, advise(_facts(loop))):
        text = gin_text(advice, "t", None, True)
        assert ("AsyncOffPolicyDriver.actor_queue_cap = 1" in text) == bool(advice.num_actor_queues)


@given(st.floats(0.1, 1e5), st.one_of(st.none(), st.integers(1, 64)))
def test_segments_are_whole_sequences(wanted, multiple_of):
    length = unroll_length(wanted, multiple_of)
    assert 1 <= length <= 128
    assert length % (multiple_of or 1) == 0
    if multiple_of is None:
        assert length in (8, 16, 32, 64, 128)
        assert length <= max(8, wanted)


@given(st.lists(st.tuples(st.sampled_from([8, 16, 32, 64]), st.floats(1e-6, 1.0)), min_size=1, max_size=6))
def test_fewer_rows_are_taken_only_for_little_speed(sizes_and_times):
    measurements = [Measurement("sync", b, secs) for b, secs in sizes_and_times]
    advice = advise(_facts(measurements))
    best = max(map(effective_rate, measurements))
    taken = max(effective_rate(m) for m in measurements if m.batch_size == advice.batch_size)
    assert taken >= 0.8 * best


def test_memory_grows_with_what_is_kept():
    advice = advise(_facts(_linear("sync", (8,), 1e-5)))
    sizes = memory_bytes(advice, 1000)
    assert sizes["one segment"] == advice.unroll_length * advice.batch_size * 1000
    # Two threads fill a segment each; the learner takes two at a time, and shuffles a copy.
    assert [size / sizes["one segment"] for size in sizes.values()] == [1, 2, 6, 4]
    assert memory_bytes(advice, 2000) == {what: 2 * size for what, size in sizes.items()}


def test_a_trainer_that_is_chosen_stays():
    advice = advise(_facts(_linear("sync", (8,), 1e-5)))
    text = gin_text(advice, "t", None, False)
    assert "TrainerConfig.trainer" not in text
    assert "AsyncOffPolicyDriver.learn_queue_cap = 2" in text
    assert "TrainerConfig.trainer = @async_off_policy_trainer" in gin_text(advice, "t", "'X'", True)


def test_a_trainer_that_takes_turns_has_no_threads_and_queues():
    advice = advise(_facts(_linear("vector_entry_point", (64,), 1e-6), processors=8, asynchronous=False, gpus=1))
    assert advice.batch_size * advice.unroll_length == 2048
    assert "an iteration learns from 2048 steps." in advice.reasons[-1]
    text = gin_text(advice, "t", None, False)
    assert "TrainerConfig.unroll_length = 32\n" in text
    for absent in ("num_envs", "num_actor_queues", "learn_queue_cap", "thread", "TrainerConfig.trainer", "off_policy"):
        assert absent not in text.replace("in one thread", "")
    sizes = memory_bytes(advice, 1000)
    assert [size / sizes["one segment"] for size in sizes.values()] == [1, 2]


@pytest.mark.parametrize(("asynchronous", "steps"), [(True, 2 * 8 * 16), (False, 8 * 16)])
def test_a_learner_from_samples_keeps_its_unroll_length(asynchronous, steps):
    """With another one an iteration would make as many updates of many more steps."""
    advice = advise(_facts(_linear("sync", (16,), 1e-5), asynchronous=asynchronous, unroll_length=8))
    assert (advice.unroll_length, _steps_per_iteration(advice)) == (8, steps)
    assert f"collects {steps} steps and makes num_updates_per_train_step updates from samples" in advice.reasons[-1]


@pytest.mark.parametrize(
    ("example", "length"), [("ppo_cart_pole", None), ("sac_pendulum", "TrainerConfig.unroll_length = 8")]
)
def test_settings_for_an_example_that_takes_turns(example, length, tmp_path, capsys, logged):
    path = tmp_path / "settings.gin"
    assert run_here(doctor.main, f"--gin_file={example}", *QUICK, f"--output={path}") == 0, logged
    assert "num_envs" not in capsys.readouterr().out
    text = path.read_text()
    assert "AsyncOffPolicyDriver" not in text
    assert ("updates from samples" in text) == (length is not None)
    assert length is None or length in text.splitlines()


def test_its_settings_train_with_the_example(tmp_path, capsys, logged):
    path = tmp_path / "new" / "settings.gin"
    assert run_here(doctor.main, "--gin_file=async_ppo_cart_pole", *QUICK, f"--output={path}") == 0, logged
    text = capsys.readouterr().out
    for expected in (
        "Environment CartPole-v1",
        "ok   seed",
        "vector_entry_point   batch   16",
        "Recommended",
        "Memory",
    ):
        assert expected in text
    code = run_here(
        train.main,
        f"--root_dir={tmp_path}/run",
        "--gin_file=async_ppo_cart_pole",
        f"--gin_file={path}",
        "--gin_param=TrainerConfig.num_iterations=1",
        "--strict",
    )
    assert code == 0, logged


@pytest.mark.parametrize("bfloat16", [True, False])
def test_an_environment_by_name(tmp_path, capsys, monkeypatch, bfloat16):
    monkeypatch.setattr(mixed_precision, "supported", lambda: bfloat16)
    path = tmp_path / "settings.gin"
    name = "tests.environments.toy_environments:ToyEnv"
    assert run_here(doctor.main, f"--env_name={name}", *QUICK, f"--output={path}") == 0
    text = path.read_text()
    assert f"create_environment.env_name = '{name}'" in text
    assert "TrainerConfig.trainer = @async_off_policy_trainer" in text
    out = capsys.readouterr().out
    assert "numpy-vectorised" in out
    assert ("TrainerConfig.mixed_precision = True" in out) == bfloat16


def test_settings_that_find_no_room_are_told_in_a_sentence(tmp_path, capsys, logged, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output_flag, "write_atomically", full)
    monkeypatch.setattr(doctor, "measure_all", lambda subject: Facts([Measurement("sync", 8, 1e-4)], 2, 40))
    path, name = tmp_path / "settings.gin", "tests.environments.toy_environments:ToyEnv"
    assert run_here(doctor.main, f"--env_name={name}", *QUICK, f"--output={path}") == 2
    assert logged[-1] == f"--output={path} cannot be written (No space left on device): give another path."
    assert "Written" not in capsys.readouterr().out


@pytest.mark.parametrize("bound", [None, 3, 5])
def test_an_environment_with_a_fixed_number_of_rows(tmp_path, capsys, logged, bound):
    more = [] if bound is None else [f"--gin_param=create_environment.num_parallel_environments = {bound}"]
    path = tmp_path / "settings.gin"
    arguments = ("--env_name=tests.bin.test_doctor:ThreeRows", *QUICK, *more, f"--output={path}")
    code = run_here(doctor.main, *arguments)
    out = capsys.readouterr().out
    if bound == 5:
        assert code == 1
        assert "The environment has 3 rows where 5 are wanted" in out
        assert "No way to vectorise" in logged[-1]
        return
    assert code == 0, logged
    assert "auto                 batch    3" in out
    assert "num_parallel_environments = 3" in path.read_text()


def test_a_failed_check_ends_with_code_1(capsys, logged):
    assert run_here(doctor.main, "--env_name=tests.bin.test_doctor:NotANumber", *QUICK) == 1
    assert "FAIL finite: at step 2 observation holds nan: correct the environment." in capsys.readouterr().out
    assert "1 of " in logged[-1]
    assert run_here(doctor.main, "--env_name=tests.bin.test_doctor:AsksForFlags", *QUICK) == 1
    assert "FAIL make: it cannot be made: RuntimeError: The environment asked" in capsys.readouterr().out
    assert run_here(doctor.main, "--env_name=Nowhere-v3", *QUICK) == 1
    assert "Gymnasium knows no environment 'Nowhere-v3'" in capsys.readouterr().out


def test_a_module_that_ends_the_program_is_told_in_a_sentence(tmp_path, monkeypatch, logged):
    (tmp_path / "asks_for_flags.py").write_text("import argparse\nargparse.ArgumentParser().error('no --level')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_here(doctor.main, "--env_name=asks_for_flags:Env") == 2
    assert logged[-1].startswith("The environment asked the program to end, by sys.exit(2): ")


def test_mistakes_are_told_in_a_sentence(logged):
    for wrong in (
        (),
        ("--env_name=X", "--gin_file=ppo_cart_pole"),
        ("--env_name=X", "--output=x.txt"),
        ("--env_name=X", "--check_steps=0"),
        ("--env_name=X", "--seconds_per_measurement=-1"),
        ("--env_name=no_such_module:X",),
        ("--gin_file=no_such_file",),
        ("--env_name=X", "stray"),
    ):
        assert run_here(doctor.main, *wrong) == 2, wrong
    text = "\n".join(logged)
    for expected in (
        "either by --gin_file=FILE.gin or by --env_name=ID",
        "--output=x.txt must end in .gin",
        "--check_steps=0 must be at least 1",
        "--seconds_per_measurement=-1.0 must be at least 0",
        "No module named 'no_such_module'",
        "No gin file 'no_such_file'",
        "Unexpected argument 'stray'",
    ):
        assert expected in text


def test_a_gin_file_of_ones_own(tmp_path, capsys):
    settings = tmp_path / "mine.gin"
    macros = [
        "L = 24",
        "TrainerConfig.mini_batch_length = %L",
        "T = @async_off_policy_trainer",
        "TrainerConfig.trainer = %T",
    ]
    settings.write_text("\n".join([*SMALL, *macros]))
    out = tmp_path / "o.gin"
    assert run_here(doctor.main, f"--gin_file={settings}", *QUICK, f"--output={out}") == 0
    assert "TrainerConfig.num_envs = " in out.read_text()
    assert "TrainerConfig.trainer" not in out.read_text()
    length = next(line for line in out.read_text().splitlines() if line.startswith("TrainerConfig.unroll_length"))
    assert int(length.rpartition(" ")[2]) % 24 == 0
