"""Commands that only use a trained policy leave the run as it is: every name, every byte, every time."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from alf.bin import evaluate, export, play, status
from tests.bin.running import run_here, snapshot

COMMANDS = {
    "play": (play.main, ["--num_episodes=1", "--sleep_time_per_step=0"]),
    "evaluate": (evaluate.main, ["--num_episodes=1", "--num_parallel_environments=2"]),
    "watch": (evaluate.main, ["--watch", "--num_episodes=1", "--deterministic"]),
    "export": (export.main, ["--export_dir={elsewhere}"]),
    "status": (status.main, []),
}


def _contents(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in pathlib.Path(root).rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_in_the_run_changes(name, trained, tmp_path):
    main, arguments = COMMANDS[name]
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    contents, times = _contents(run), snapshot(run)
    assert run_here(main, f"--root_dir={run}", *(a.format(elsewhere=tmp_path / "model") for a in arguments)) == 0
    assert _contents(run) == contents
    assert snapshot(run) == times, "a file was made and removed, or written with what it held"
    assert {p.name for p in tmp_path.iterdir()} <= {"run", "model"}
