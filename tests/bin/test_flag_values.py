"""Any value of any flag: the command's work begins, or one sentence says what is wrong; no traceback, and never a hang."""

from __future__ import annotations

import os

import pytest
from absl import flags
from absl.testing import flagsaver
from hypothesis import given
from hypothesis import strategies as st

import alf.algorithms.agent as agent
import alf.trainers.off_policy_trainer as off_policy_trainer
from alf.bin import (
    command_line,
    doctor,
    estimate,
    evaluate,
    export,
    grid_search,
    output_flag,
    play,
    record,
    status,
    train,
)
from tests.awake import awake_secs
from tests.bin.running import run_here

pytestmark = pytest.mark.slow

assert agent  # so that gin knows the names of the examples
assert off_policy_trainer

_SECONDS = 20.0
COMMANDS = {
    "train": (train, "train_eval", ["strict", "initialize_from"]),
    "play": (play, "_play_by_flags", ["follow", "epsilon_greedy", "sleep_time_per_step", "behavior_from"]),
    "evaluate": (
        evaluate,
        "_evaluate_by_flags",
        ["deterministic", "num_parallel_environments", "success_threshold", "watch", "max_evaluation_steps"],
    ),
    "record": (record, "record", ["epsilon_greedy", "num_parallel_environments"]),
    "estimate": (estimate, "_estimate_by_flags", ["epsilon_greedy", "dataset", "gamma"]),
    "export": (export, "export", ["export_dir", "onnx", "behavior"]),
    "doctor": (doctor, "examine", ["env_name", "check_steps", "seconds_per_measurement"]),
    "grid_search": (grid_search, "run_search", ["search_config", "repeats", "workers", "metric"]),
    "status": (status, "describe", ["json"]),
}
SHARED = ["gin_file", "gin_param", "gin_bindings", "intra_op_threads", "inter_op_threads", "use_cpu"]
PLAYING = ["checkpoint", "checkpoint_name", "num_episodes", "record_file", "random_seed", "max_wait_secs", "output"]

_NUMBERS = st.sampled_from(
    [
        "0",
        "-1",
        "1",
        "3",
        "1e3",
        "nan",
        "inf",
        "-inf",
        "0.5",
        "1" + "0" * 30,
        "9" * 5000,
        "0x10",
        "1_000",
        "true",
        "no",
        "",
    ]
)
_PATHS = st.sampled_from(
    [
        ".",
        "..",
        "file",
        "file/below",
        "folder",
        "folder/new/deep",
        "none.json",
        "x" * 300,
        "new/" + "y" * 300,
        "a b/ü",
        "*[?]",
    ]
    + ["/dev/null", "/dev/null/x", "/proc/none", "v.gif", "v.mp4", "new/r.json", "l.jsonl", "s.gin", "search.json"]
    + ["ppo_cart_pole", "ckpt-1", "best", "latest"]
)
# Without separators, so that nothing is made outside of the test's own directory.
_TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), max_size=12)
_BINDINGS = st.sampled_from(
    ["TrainerConfig.num_envs=2", "TrainerConfig.num_envs=", "=", "x=1", "import nothing_there", "@"]
)
VALUES = _NUMBERS | _PATHS | _TEXTS | _BINDINGS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory to be in, with a file, a folder, and a plan of a search."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "file").write_text("text")
    (folder / "folder").mkdir()
    (folder / "search.json").write_text('{"parameters": {"Adam.learning_rate": [0.1, 0.2]}}')
    (folder / "s.gin").write_text("Adam.learning_rate = [0.1]\n")
    return folder


@pytest.mark.parametrize("name", COMMANDS)
@given(data=st.data())
def test_any_value_begins_the_work_or_is_told(name, data, place):
    command, work, own = COMMANDS[name]
    arguments = [f"--root_dir={data.draw(_PATHS | _TEXTS)}"] if data.draw(st.integers(0, 9)) else []
    if name in ("train", "play", "evaluate", "record", "estimate", "export", "grid_search") and data.draw(
        st.booleans()
    ):
        arguments.append("--gin_file=ppo_cart_pole")
    if name == "grid_search" and data.draw(st.booleans()):
        arguments.append("--search_config=search.json")
    if name == "export" and data.draw(st.booleans()):
        arguments.append("--export_dir=folder/model")
    if name == "estimate" and data.draw(st.booleans()):
        arguments.append("--dataset=file")
    if name == "doctor":
        arguments = ["--env_name=CartPole-v1"] if data.draw(st.booleans()) else []
    for flag in data.draw(st.lists(st.sampled_from([*own, *SHARED, *PLAYING]), max_size=3)):
        arguments.append(f"--{flag}={data.draw(VALUES)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        lines: list[str] = []
        for level in ("error", "warning", "info"):
            patch.setattr(command_line.logging, level, lambda text, *args: lines.append(text % args if args else text))
        # What begins once the command line is understood; here it is enough that it would.
        patch.setattr(command, work, lambda *args, **kwargs: [] if name in ("export", "status") else 0)
        patch.setattr(export, "_tell_usage", lambda directory: None)
        patch.setattr(command_line, "set_up", command_line.set_up_logging)
        began = awake_secs()
        code = _code(command, arguments, lines)
        assert awake_secs() - began < _SECONDS
    assert code in (0, command_line.MISTAKE)
    if code:
        assert len(lines[-1].strip()) > 10
        # Not the word alone, which may be a value: Hypothesis draws words of the sources too.
        assert "Traceback (most recent call last)" not in lines[-1]
        assert len(lines[-1]) < 20_000


def _code(command, arguments, lines):
    """The exit code, as `command_line.start` gives it."""
    try:
        return run_here(command.main, *arguments)
    except flags.Error as e:
        lines.append(str(e))
        return command_line.MISTAKE


@pytest.mark.parametrize("command", [train, play, evaluate, record, estimate, export])
def test_help_has_the_flags_that_commands_share(command):
    shown = {flag.name for flag in flags.FLAGS.get_key_flags_for_module(command)}
    assert shown >= {"root_dir", *SHARED}


def test_a_suffix_may_be_in_capitals(tmp_path):
    with flagsaver.flagsaver():
        flags.FLAGS(["alf", f"--output={tmp_path / 'R.JSON'}"])
        command_line.has_suffix(output_flag.OUTPUT, ".json")
        assert str(tmp_path / "R.JSON") == output_flag.OUTPUT.value


def test_a_wrong_flag_is_one_line(logged):
    with pytest.raises(SystemExit) as ended:
        command_line._parse_flags(["alf", "--intra_op_threads=many"])
    assert ended.value.code == command_line.MISTAKE
    assert logged[-1].startswith("flag --intra_op_threads=many")
    assert logged[-1].endswith("See --help.")
    with pytest.raises(SystemExit):
        command_line._parse_flags(["alf", "--root_dri=r"])
    assert logged[-1].endswith("Did you mean: root_dir? See --help.")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (train, ("--root_dir=/dev/null/x", "--gin_file=ppo_cart_pole"), "--root_dir=/dev/null/x cannot be a directory"),
        (train, (f"--root_dir={'r' * 300}",), "There is no --gin_file"),
        (train, ("--root_dir=r", f"--gin_file={'x' * 5000}"), "No gin file"),
        (train, ("--root_dir=r", "--gin_param=import nowhere_at_all", "--gin_file=ppo_cart_pole"), "No module named"),
        (evaluate, ("--root_dir=r", "--output=/dev/null/r.json"), "The place of --output=/dev/null cannot be"),
        (play, ("--root_dir=r", "--record_file=/dev/null/v.gif"), "The place of --record_file=/dev/null cannot be"),
        (play, ("--root_dir=r",), "There is no directory --root_dir=r: check the path."),
        (play, ("--root_dir=r", "--follow"), "There is no --gin_file"),
        (evaluate, ("--root_dir=r",), "There is no directory --root_dir=r: check the path."),
        (evaluate, ("--root_dir=r", "--watch"), "There is no --gin_file"),
        (record, ("--root_dir=.",), "--output is missing: give the file to write"),
        (record, ("--root_dir=.", "--output=d.json"), "--output=d.json must end in .npz."),
        (estimate, ("--root_dir=.",), "--dataset is missing: give recorded episodes"),
        (export, ("--root_dir=r", "--export_dir=m"), "There is no directory --root_dir=r: check the path."),
        (export, ("--root_dir=.", f"--export_dir={__file__}"), "test_flag_values.py is a file: give a directory."),
        (export, ("--root_dir=.", "--export_dir=/dev/null/m"), "The place of --export_dir=/dev/null cannot be"),
        (doctor, ("--env_name=CartPole-v1", "--output=/dev/null/s.gin"), "The place of --output=/dev/null cannot be"),
        (
            train,
            ("--root_dir=/sys/kernel", "--gin_file=ppo_cart_pole"),
            "--root_dir=/sys/kernel cannot be written to (",
        ),
        (evaluate, ("--root_dir=.", "--output=/sys/r.json"), "The place of --output=/sys cannot be written to ("),
        (play, ("--root_dir=.", "--record_file=/sys/v.gif"), "The place of --record_file=/sys cannot be written to ("),
        (evaluate, ("--root_dir=.", "--success_threshold=nan"), "--success_threshold=nan must be a finite number."),
        (estimate, ("--root_dir=.", "--gamma=nan"), "--gamma=nan must be a finite number."),
        (estimate, ("--root_dir=.", "--epsilon_greedy=nan"), "--epsilon_greedy=nan must be a finite number."),
        (record, ("--root_dir=.", "--epsilon_greedy=nan"), "--epsilon_greedy=nan must be a finite number."),
        (play, ("--root_dir=.", "--epsilon_greedy=nan"), "--epsilon_greedy=nan must be a finite number."),
        (play, ("--root_dir=.", "--sleep_time_per_step=inf"), "--sleep_time_per_step=inf must be a finite number."),
        (doctor, ("--env_name=X", "--seconds_per_measurement=inf"), "--seconds_per_measurement=inf must be a finite"),
        (status, ("--root_dir=.", "--gin_file=ppo_cart_pole"), "--gin_file has no effect here"),
        (status, ("--root_dir=.", "--use_cpu"), "--use_cpu has no effect here"),
    ],
)
def test_what_cannot_work_is_told_before_the_work(command, arguments, message, logged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_here(command.main, *arguments) == command_line.MISTAKE
    assert message in logged[-1]
    assert not os.listdir(tmp_path)
