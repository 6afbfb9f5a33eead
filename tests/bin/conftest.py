"""A tiny trained run that the tests of the commands share, and what commands log."""

from __future__ import annotations

import pytest

from alf.bin import train
from tests.bin.running import SMALL, run_here


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Directory of a finished run of two iterations, with a checkpoint after each; to be read only."""
    root = tmp_path_factory.mktemp("trained")
    settings = [
        f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=2", "TrainerConfig.checkpoint_interval=1")
    ]
    assert run_here(train.main, f"--root_dir={root}", "--gin_file=async_ppo_cart_pole", *settings) == 0
    return root
