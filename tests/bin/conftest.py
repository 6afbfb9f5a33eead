"""A tiny trained run that the tests of the commands share, and the end of what they start."""

from __future__ import annotations

import pytest

from alf.bin import train
from tests.bin.running import SMALL, run_here, started


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Directory of a finished run of two iterations, with a checkpoint after each; to be read only."""
    root = tmp_path_factory.mktemp("trained")
    settings = [
        f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=2", "TrainerConfig.checkpoint_interval=1")
    ]
    assert run_here(train.main, f"--root_dir={root}", "--gin_file=async_ppo_cart_pole", *settings) == 0
    return root


@pytest.fixture(autouse=True)
def _ends_what_it_started():
    """A test that fails half-way must not leave a run going beside all that follow."""
    yield
    while started:
        process = started.pop()
        if process.poll() is None:
            process.kill()
            process.wait(10)
        process.stdout.close()
