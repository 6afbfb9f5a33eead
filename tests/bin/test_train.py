"""The train command: examples, mistakes on the command line, signals, resume."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from alf.bin import command_line, train
from alf.trainers.run_index import RunIndex
from tests.awake import awake_secs
from tests.bin.running import ROOT, SMALL, read_until, run_here, start

# Those that tests/examples runs, smaller than the bindings here make them.
ELSEWHERE = ("off_policy_ac_breakout.gin", "ppo_rnd_mrevenge.gin", "sac_bipedal_walker.gin")
ELSEWHERE += ("ppo_minigrid.gin", "ppo_bullet_humanoid.gin", "async_ppo_bullet_humanoid.gin")
ELSEWHERE += ("multi_agent_spread.gin", "multi_agent_rock_paper_scissors.gin", "multi_agent_pursuit.gin")
ELSEWHERE += ("multi_agent_tic_tac_toe.gin", "bc_cart_pole.gin", "offline_dqn_cart_pole.gin")
EXAMPLES = sorted(
    p.name
    for p in (ROOT / "examples").glob("*.gin")
    if "TrainerConfig.trainer" in p.read_text(encoding="utf-8") and p.name not in ELSEWHERE
)
NEEDS = {"half_cheetah": "mujoco", "hopper": "mujoco", "lunar_lander": "Box2D"}
TINY = [f"--gin_param={b}" for b in SMALL]


def _checkpoints(root):
    return sorted(p.stem for p in pathlib.Path(root, "train", "algorithm").glob("ckpt-*.index"))


FIRST = {
    "ac_cart_pole.gin",
    "ppo_cart_pole.gin",
    "async_ppo_cart_pole.gin",
    "async_vtrace_cart_pole.gin",
    "async_ppo_pendulum.gin",
    "async_ppo_rnn_memory.gin",
}


def test_all_examples_are_here():
    assert set(EXAMPLES) >= FIRST


@pytest.mark.parametrize("example", [pytest.param(e, marks=() if e in FIRST else pytest.mark.slow) for e in EXAMPLES])
def test_example_runs_and_uses_all_it_binds(example, tmp_path, logged):
    if "breakout" in example:
        pytest.importorskip("ale_py", reason="ale-py (alf[atari]) is not installed")
        pytest.importorskip("cv2", reason="OpenCV (alf[atari]) is not installed")
    for task, package in NEEDS.items():
        if task in example:
            pytest.importorskip(package)
    code = run_here(
        train.main,
        f"--root_dir={tmp_path}",
        f"--gin_file={example}",
        "--strict",
        "--gin_param=create_environment.num_parallel_environments=4",
        "--gin_param=TrainerConfig.unroll_length=8",
        "--gin_param=TrainerConfig.num_iterations=2",
        *(
            ["--gin_param=TrainerConfig.initial_collect_steps=300"]
            if example.startswith(("c51_", "dqn_", "sac_"))
            else []
        ),
        *(["--gin_param=TrainerConfig.num_steps_per_iter=64"] if example.startswith(("ac_", "icm_", "trac_")) else []),
    )
    assert code == 0, logged
    assert (tmp_path / "configured.gin").is_file()
    assert len(_checkpoints(tmp_path)) == 1
    text = "\n".join(logged)
    for expected in ("tensorboard --logdir", "alf.bin.play --root_dir", "ckpt-", "configured.gin"):
        assert expected in text


def test_same_command_resumes_and_root_dir_is_enough(tmp_path, logged):
    settings = [*TINY, "--gin_bindings=TrainerConfig.num_iterations=2"]
    assert run_here(train.main, f"--root_dir={tmp_path}", "--gin_file=ppo_cart_pole", *settings) == 0
    assert run_here(train.main, f"--root_dir={tmp_path}", "--gin_param=TrainerConfig.num_iterations=4") == 0
    assert _checkpoints(tmp_path) == ["ckpt-2", "ckpt-4"]
    text = "\n".join(logged)
    assert "Resumed from" in text
    assert "iteration 2, 64 env steps" in text
    assert "Training ended: num_iterations=4 is reached; iteration 4, 128 env steps" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--root_dir is missing"),
        (("--root_dir=x", "stray"), "Unexpected argument 'stray'"),
        (("--root_dir=nowhere",), "There is no --gin_file"),
        (("--root_dir=x", "--gin_file=async_ppo_cartpole"), "Did you mean 'async_ppo_cart_pole.gin'"),
        (
            ("--root_dir=x", "--gin_file=ppo_cart_pole", "--gin_param=TrainerConfig.num_iter=3"),
            "doesn't have a parameter",
        ),
        (
            ("--root_dir=x", "--gin_file=ppo_cart_pole", "--gin_param=TrainerConfg.num_envs=3"),
            "Did you mean 'TrainerConfig'",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, message, logged):
    assert run_here(train.main, *arguments) == 2
    assert message in "\n".join(logged)


def test_initialize_from_takes_the_weights_of_another_run(tmp_path, logged):
    settings = ["--gin_file=ppo_cart_pole", *TINY, "--gin_param=TrainerConfig.num_iterations=1"]
    assert run_here(train.main, f"--root_dir={tmp_path / 'new'}", f"--initialize_from={tmp_path / 'a'}", *settings) == 2
    assert "there is no run and no checkpoint of that name" in "\n".join(logged)
    assert run_here(train.main, f"--root_dir={tmp_path / 'a'}", *settings) == 0
    assert run_here(train.main, f"--root_dir={tmp_path / 'new'}", f"--initialize_from={tmp_path / 'a'}", *settings) == 0
    assert any(line.startswith(f"Weights from {tmp_path / 'a'}") for line in logged)
    assert _checkpoints(tmp_path / "new") == ["ckpt-1"]
    # Killed before its first checkpoint, it begins so again by what it has written down.
    shutil.rmtree(tmp_path / "new" / "train")
    (tmp_path / "new" / "training_status.json").unlink()
    logged.clear()
    assert run_here(train.main, f"--root_dir={tmp_path / 'new'}") == 0
    assert any(line.startswith(f"Weights from {tmp_path / 'a'}") for line in logged)


def test_resume_insists_on_a_run_and_force_starts_anew(tmp_path, logged):
    root = tmp_path / "run"
    command = [f"--root_dir={root}", "--gin_file=ppo_cart_pole", *TINY]
    assert run_here(train.main, *command, "--resume") == 2
    assert f"--resume: there is no checkpoint in --root_dir={root} to go on from" in logged[-1]
    assert not root.exists()
    assert run_here(train.main, *command, "--gin_param=TrainerConfig.num_iterations=2", "--force") == 0
    assert run_here(train.main, *command, "--gin_param=TrainerConfig.num_iterations=3", "--resume") == 0
    assert _checkpoints(root) == ["ckpt-2", "ckpt-3"]
    assert run_here(train.main, *command, "--resume", "--force") == 2
    assert run_here(train.main, *command, "--force", f"--initialize_from={root}:best") == 2
    assert f"--force would rename {root}, which --initialize_from={root}:best begins with" in logged[-1]
    assert run_here(train.main, *command, "--force", f"--gin_param=TrainerConfig.initialize_from='{root}'") == 2
    assert f"--force would rename {root}, which --initialize_from={root} begins with" in logged[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    (tmp_path / "link").symlink_to(root)
    arguments = [f"--root_dir={tmp_path / 'link'}", *command[1:]]
    assert run_here(train.main, *arguments, "--force", f"--initialize_from={root}:best") == 2
    (tmp_path / "link").unlink()
    # Without a gin file that of the run before is used, which goes aside with it.
    assert run_here(train.main, f"--root_dir={root}", "--gin_param=TrainerConfig.num_iterations=1", "--force") == 0
    assert f"The run that was in {root} is in {root}-1 now." in logged
    assert (_checkpoints(root), _checkpoints(f"{root}-1")) == (["ckpt-1"], ["ckpt-2", "ckpt-3"])
    assert len([line for line in logged if line.startswith("Resumed from")]) == 1


def test_force_in_the_directory_of_the_run_itself_leaves_that_run_alone(tmp_path, logged, monkeypatch):
    root = tmp_path / "run"
    root.mkdir()
    monkeypatch.chdir(root)
    command = ["--root_dir=.", "--gin_file=ppo_cart_pole", *TINY]
    assert run_here(train.main, *command, "--gin_param=TrainerConfig.num_iterations=2") == 0
    assert run_here(train.main, *command, "--gin_param=TrainerConfig.num_iterations=1", "--force") == 0, logged
    assert (_checkpoints(root), _checkpoints(f"{root}-1")) == (["ckpt-1"], ["ckpt-2"])


def test_a_run_whose_checkpoints_are_gone_begins_anew_with_force(tmp_path, logged):
    root = tmp_path / "run"
    command = [f"--root_dir={root}", "--gin_file=ppo_cart_pole", *TINY, "--gin_param=TrainerConfig.num_iterations=1"]
    assert run_here(train.main, *command) == 0
    shutil.rmtree(root / "train" / "algorithm")
    del logged[:]
    assert run_here(train.main, f"--root_dir={root}") == 2
    assert f"Checkpoint {root}/train/algorithm/ckpt-1 is gone." in logged
    assert "train with --force to start anew" in logged[-1]
    assert not any("damaged" in line for line in logged)
    assert run_here(train.main, f"--root_dir={root}", "--force") == 0
    assert _checkpoints(root) == ["ckpt-1"]
    assert (tmp_path / "run-1" / "configured.gin").is_file()


def test_a_seed_that_was_drawn_is_in_the_configuration(tmp_path):
    command = ["--gin_file=ppo_cart_pole", *TINY, "--gin_param=TrainerConfig.num_iterations=1"]
    assert run_here(train.main, f"--root_dir={tmp_path}", *command) == 0
    seed = RunIndex.load(str(tmp_path)).run["seed"]
    assert f"TrainerConfig.random_seed = {seed}\n" in (tmp_path / "configured.gin").read_text()
    assert run_here(train.main, f"--root_dir={tmp_path}", "--gin_param=TrainerConfig.num_iterations=2") == 0
    assert RunIndex.load(str(tmp_path)).run["seed"] == seed


def test_strict_makes_unused_bindings_an_error(tmp_path, logged):
    command = [
        f"--root_dir={tmp_path}",
        "--gin_file=ppo_cart_pole",
        *TINY,
        "--gin_param=TrainerConfig.num_iterations=1",
    ]
    assert run_here(train.main, *command, "--gin_param=idle = 3") == 0
    assert "Bindings that nothing has used: idle." in "\n".join(logged)
    command[0] = f"--root_dir={tmp_path}/strict"
    assert run_here(train.main, *command, "--gin_param=idle = 3", "--strict") == 2


def _start_training(tmp_path, *bindings):
    return start(
        "alf.bin.train",
        f"--root_dir={tmp_path}",
        "--gin_file=async_ppo_cart_pole.gin",
        *TINY,
        "--gin_param=TrainerConfig.num_iterations=100000000",
        *(f"--gin_param={b}" for b in bindings),
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_a_checkpoint_and_code_0(number, tmp_path):
    process = _start_training(tmp_path)
    read_until(process, "Training:")
    process.send_signal(number)
    began = awake_secs()
    output, _ = process.communicate(timeout=30)
    assert awake_secs() - began < 10
    assert process.returncode == 0, output
    assert f"Training ended: {signal.Signals(number).name} received" in output
    assert len(_checkpoints(tmp_path)) == 1
    assert "Traceback" not in output


def test_a_signal_while_the_learner_starves(tmp_path):
    process = _start_training(
        tmp_path,
        "create_environment.env_name='tests.bin.slow_environment:SlowEnvironment'",
        "create_environment.vectorization='sync'",
        "create_environment.num_parallel_environments=1",
    )
    _wait_until(lambda: RunIndex.load(str(tmp_path)).run.get("status") == "running", "the end of building")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    began = awake_secs()
    output, _ = process.communicate(timeout=30)
    assert awake_secs() - began < 5
    assert process.returncode == 0, output
    assert "SIGINT received; iteration 0" in output
    assert _checkpoints(tmp_path) == ["ckpt-0"]


def test_two_signals_end_at_once(tmp_path):
    process = _start_training(tmp_path)
    read_until(process, "Training:")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), output


def _wait_until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def test_ctrl_c_while_starting_is_one_line(tmp_path):
    importing, reading = (_start_training(tmp_path) for _ in range(2))
    maps = psutil.Process(importing.pid).memory_maps
    _wait_until(lambda: any("libtensorflow" in m.path for m in maps()), "the import of TensorFlow")
    _interrupted(importing, -signal.SIGINT, "while starting")
    read_until(reading, "TensorFlow threads")
    _interrupted(reading, 130, "Interrupted.")
    building = _start_training(tmp_path)
    read_until(building, "this run uses")
    _interrupted(building, 130, "Interrupted.")
    assert not os.listdir(tmp_path)


def _interrupt_becomes(error):
    """As libraries in C have it, which are at work when Ctrl-C comes."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        raise error from None


@pytest.fixture
def interruptible():
    """SIGINT is heard, also where the tests run in the background of a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_a_library_makes_another_error_of_is_one(interruptible):
    def building():
        with command_line.told_as_usage():
            _interrupt_becomes(TypeError("'NoneType' object is not callable"))

    def building_a_part():
        with command_line.told_as_usage():
            try:
                _interrupt_becomes(TypeError("'NoneType' object is not callable"))
            except TypeError as e:
                raise ValueError("The part cannot be made.") from e

    def failing():
        raise SystemError("of its own")

    assert command_line.run(lambda: _interrupt_becomes(SystemError("returned a result with an exception set"))) == 130
    assert command_line.run(building) == 130
    assert command_line.run(building_a_part) == 130
    with pytest.raises(SystemError, match="of its own"):
        command_line.run(failing)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("error", [OSError, RuntimeError, SystemError])
def test_what_fails_after_an_interrupt_that_was_dealt_with_is_told(error, monkeypatch, interruptible):
    def body():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            now = time.monotonic()
            monkeypatch.setattr(time, "monotonic", lambda: now + 60)
        raise error("real")

    with pytest.raises(error, match="real"):
        command_line.run(body)


def test_sigterm_while_building_leaves_no_process(tmp_path):
    process = _start_training(tmp_path, "create_environment.vectorization='async'", "TrainerConfig.num_envs=2")
    training = psutil.Process(process.pid)
    read_until(process, "this run uses")
    _wait_until(lambda: training.children(recursive=True), "a process of the environments")
    started = training.children(recursive=True)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM, output
    assert "Traceback" not in output
    _wait_until(lambda: not any(map(psutil.Process.is_running, started)), "the end of the environments' processes")
    assert set(os.listdir(tmp_path)) <= {"run.lock"}


def _interrupted(process, code, line):
    process.send_signal(signal.SIGINT)
    began = awake_secs()
    output, _ = process.communicate(timeout=30)
    assert awake_secs() - began < 5
    assert process.returncode == code, output
    assert line in output
    # Where it comes while TensorFlow's own code in C imports, that prints what it made of it.
    by_tensorflow = (" ", "Traceback ", "SystemError: <built-in function __import__>")
    assert len([text for text in output.splitlines() if not text.startswith(by_tensorflow)]) == 1, output


def test_a_killed_run_leaves_no_worker_process(tmp_path):
    process = _start_training(tmp_path, "create_environment.vectorization='async'", "TrainerConfig.num_envs=2")
    read_until(process, "Training:")
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 8
    process.kill()
    output, _ = process.communicate(timeout=30)
    assert "Traceback" not in output
    psutil.wait_procs(workers, timeout=5)
    left = [w for w in workers if w.is_running() and w.status() != psutil.STATUS_ZOMBIE]
    assert not left


@pytest.mark.parametrize(("seconds", "told"), [(3.0, True), (0.1, False)])
def test_threads_that_hold_a_process_up_are_named(seconds, told):
    """Python ends when all threads have; an environment's may never."""
    script = (
        "import threading; from alf.bin import command_line\n"
        "command_line._SECONDS_TO_END = 1.0\n"
        f"threading.Thread(target=threading.Event().wait, args=({seconds},), name='viewer').start()\n"
        "threading.Thread(target=threading.Event().wait, name='harmless', daemon=True).start()\n"
        "command_line.start(lambda argv: 3)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3, ended.stderr
    line = "its process waits for threads that still run, of an environment perhaps: viewer. Have its close()"
    assert (line in ended.stderr) == told
