"""The train command with workers over Ray: interrupted, resumed, finished, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import psutil
import pytest

from alf.bin import status, train
from tests.bin.running import read_until, run_here, start, started

SETTINGS = (
    "--gin_file=async_ppo_cart_pole.gin",
    "--gin_param=create_environment.num_parallel_environments=4",
    "--gin_param=TrainerConfig.num_envs=1",
    "--gin_param=TrainerConfig.unroll_length=8",
    "--gin_param=TrainerConfig.summary_interval=1",
    "--gin_param=TrainerConfig.export_saved_model=False",
)


@pytest.fixture
def ended_processes():
    """Ends what a test that fails half-way has left, with all it has started."""
    left: list[psutil.Process] = []
    yield left
    for process in left:
        if process.is_running():
            process.kill()
    while started:
        command = started.pop()
        command.wait(10)
        command.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_is_interrupted_and_the_same_command_finishes_it(tmp_path, capsys, ended_processes):
    pytest.importorskip("ray")
    command = (f"--root_dir={tmp_path}", "--num_workers=2", *SETTINGS)
    first = start("alf.bin.train", *command, "--gin_param=TrainerConfig.num_iterations=1000000")
    ended_processes.append(psutil.Process(first.pid))
    read_until(first, "Training: 2 workers of 1 environment threads each")
    below = psutil.Process(first.pid).children(recursive=True)
    ended_processes.extend(below)
    assert len(below) >= 4
    assert run_here(status.main, f"--root_dir={tmp_path}") == 0
    assert "2 workers of 1 environment threads each" in capsys.readouterr().out
    os.kill(first.pid, signal.SIGTERM)
    said = first.stdout.read()
    assert first.wait(60) == 0, said
    assert "SIGTERM received" in said
    assert [p for p in psutil.wait_procs(below, 30)[1] if p.status() != psutil.STATUS_ZOMBIE] == []

    assert run_here(status.main, f"--root_dir={tmp_path}", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    assert before["state"] == "interrupted"
    assert [row["worker"] for row in before["workers"]["workers"]] == [0, 1]
    iterations = before["checkpoints"][-1]["iterations"]
    assert iterations >= 1
    end = iterations + 3
    # Without the flag: the run's own configuration has it.
    second = start("alf.bin.train", f"--root_dir={tmp_path}", f"--gin_param=TrainerConfig.num_iterations={end}")
    ended_processes.append(psutil.Process(second.pid))
    said = second.stdout.read()
    assert second.wait(60) == 0, said
    assert f"iteration {iterations}," in said
    assert "2 workers of 1 environment threads each" in said
    assert f"num_iterations={end} is reached" in said
    assert run_here(status.main, f"--root_dir={tmp_path}") == 0
    shown = capsys.readouterr().out
    assert "State: finished" in shown
    assert "Problem" not in shown


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_without_ray_one_sentence_says_what_to_install(tmp_path, logged, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_here(train.main, f"--root_dir={tmp_path}", "--num_workers=2", *SETTINGS) == 2
    assert logged[-1].startswith("TrainerConfig.num_workers=2: Remote workers need Ray")
    assert 'pip install ".[distributed]"' in logged[-1]


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "nowhere"])
def test_a_wrong_address_is_told_in_a_sentence(tmp_path, logged, address):
    pytest.importorskip("ray")
    address = address.format(port=_free_port())
    code = run_here(train.main, f"--root_dir={tmp_path}", "--num_workers=2", f"--ray_address={address}", *SETTINGS)
    assert code == 2
    assert logged[-1].startswith(f"TrainerConfig.num_workers=2, ray_address='{address}': ")


def test_flags_win_over_gin_and_are_written_down(tmp_path):
    settings = ("--gin_param=TrainerConfig.num_workers=2", "--gin_param=TrainerConfig.num_iterations=1")
    code = run_here(
        train.main, f"--root_dir={tmp_path}", "--num_workers=0", "--ray_address=local", *SETTINGS, *settings
    )
    assert code == 0
    written = (tmp_path / "configured.gin").read_text()
    assert "TrainerConfig.num_workers = 0" in written
    assert "TrainerConfig.ray_address = 'local'" in written


def test_workers_need_a_trainer_that_takes_them(tmp_path, logged):
    assert run_here(train.main, f"--root_dir={tmp_path}", "--num_workers=2", "--gin_file=ppo_cart_pole") == 2
    assert "num_workers=2 is for @async_off_policy_trainer" in logged[-1]
