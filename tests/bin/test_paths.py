"""Names of paths, and what is printed, in locales that have ASCII only; output that nobody reads to its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from alf.bin import evaluate
from tests.bin.running import ROOT, copy_run, run_here

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def run_in(settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    env = {key: value for key, value in os.environ.items() if key not in ("LANG", "PYTHONIOENCODING")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**env, **settings}, capture_output=True, timeout=120
    )


@pytest.mark.parametrize("command", ["train", "evaluate", "grid_search"])
def test_a_directory_whose_name_tensorflow_would_not_find_is_told_at_once(command, tmp_path):
    flags = [f"--root_dir={tmp_path}/läufe", "--gin_file=async_ppo_cart_pole"]
    ended = run_in(ASCII, "-m", f"alf.bin.{command}", *flags)
    told = ended.stderr.decode("ascii").splitlines()
    assert ended.returncode == 2
    assert told[-1].endswith("set PYTHONUTF8=1 in the environment, or give a path of ASCII letters.")
    assert "/l\\udcc3\\udca4ufe" in told[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("locale", [ASCII, {**ASCII, "PYTHONUTF8": "1"}], ids=["ascii", "utf8"])
def test_a_status_needs_no_tensorflow(locale, tmp_path):
    (tmp_path / "läufe").mkdir()
    (tmp_path / "läufe" / "configured.gin").write_text("")
    ended = run_in(locale, "-m", "alf.bin.status", f"--root_dir={tmp_path}/läufe")
    assert f"--root_dir='{tmp_path}/läufe'" in ended.stdout.decode(), ended.stderr.decode()
    assert ended.returncode == 0


def test_what_a_terminal_cannot_show_is_spelled_out():
    code = "from alf.bin import command_line; command_line.start(lambda argv: print('1 \\xb5s, \\u2013, \\udce4'))"
    ended = run_in(ASCII, "-c", code)
    assert ended.stdout == b"1 \\xb5s, \\u2013, \xe4\n", ended.stderr.decode()


def test_a_checkpoint_whose_path_is_a_pattern_is_not_called_damaged(trained, tmp_path, logged):
    copy_run(trained, tmp_path / "run [1]", 2)
    checkpoint = tmp_path / "run [1]" / "train" / "algorithm" / "ckpt-2"
    assert run_here(evaluate.main, f"--root_dir={trained}", f"--checkpoint={checkpoint}") == 2
    assert "cannot be read: TensorFlow finds no checkpoint whose path has a [ or \\: rename" in logged[-1]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_nobody_reads_to_the_end(size, unbuffered):
    code = f"from alf.bin import command_line as c; c.start(lambda argv: c.run(lambda: print('x' * {size})))"
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=pipe, stderr=pipe) as p:
        p.stdout.close()
        assert p.stderr.read() == b""
    assert p.returncode == 141


def test_a_command_without_standard_output():
    code = "from alf.bin import command_line as c; c.start(lambda argv: c.run(lambda: print('x')))"
    closing = f"import os; os.close(1); os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {code!r}])"
    ended = subprocess.run([sys.executable, "-c", closing], cwd=ROOT, stderr=subprocess.PIPE, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")
