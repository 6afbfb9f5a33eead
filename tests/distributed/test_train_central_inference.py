"""The train command with workers that only step environments, over Ray."""

from __future__ import annotations

import json

import pytest

from alf.bin import status
from tests.bin.running import run_here, start, started

SETTINGS = (
    "--num_workers=2",
    "--gin_file=async_ppo_cart_pole.gin",
    "--gin_param=TrainerConfig.central_inference=True",
    "--gin_param=create_environment.num_parallel_environments=4",
    "--gin_param=TrainerConfig.num_envs=2",
    "--gin_param=TrainerConfig.unroll_length=8",
    "--gin_param=TrainerConfig.summary_interval=1",
    "--gin_param=TrainerConfig.num_iterations=4",
    "--gin_param=TrainerConfig.export_saved_model=False",
)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_acts_in_environments_of_workers(tmp_path, capsys):
    pytest.importorskip("ray")
    process = start("alf.bin.train", f"--root_dir={tmp_path}", *SETTINGS)
    try:
        said = process.stdout.read()
        assert process.wait(60) == 0, said
    finally:
        started.remove(process)
        process.kill()
        process.stdout.close()
    assert "4 environments of batch 4 of 2 workers that step 2 environments each, on Ray" in said
    assert "stepped outside the graph" in said
    # What only the workers have used is part of what the run goes on by, with --root_dir alone.
    assert "Bindings that nothing has used" not in said
    assert "\ncreate_environment.num_parallel_environments = 4\n" in (tmp_path / "configured.gin").read_text()
    assert run_here(status.main, f"--root_dir={tmp_path}", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "finished"
    assert told["checkpoints"][-1]["iterations"] == 4
    assert [(row["worker"], row["restarts"]) for row in told["workers"]["workers"]] == [(0, 0), (1, 0)]
    assert run_here(status.main, f"--root_dir={tmp_path}") == 0
    assert "2 workers that step 2 environments each" in capsys.readouterr().out
