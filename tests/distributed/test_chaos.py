"""Kill -9 of whatever a run on a cluster consists of, over and over: training goes on, learns, and leaves nothing.

ALF_CHAOS_KILLS says how often; from 20 on the run also has to learn what it learns without kills (0 does not kill).
"""

from __future__ import annotations

import csv
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from tests.distributed import chaos

KILLS = int(os.environ.get("ALF_CHAOS_KILLS", "4"))
LONG = KILLS >= 20 or KILLS == 0
WORKERS = 4 if LONG else 2
# Of each kind once.
SHORT_TURNS = ("worker", "node", "evaluator", "learner")
# A fiftieth of the example's learning rate over thirty times its iterations, so that it is learning that is disturbed.
ITERATIONS = 2500
SETTINGS = [
    "create_environment.num_parallel_environments=32",
    "AsyncOffPolicyDriver.learn_queue_cap=4",
    "PolynomialDecay.initial_learning_rate=6e-5",
    f"PolynomialDecay.decay_steps={16 * ITERATIONS}",
    "TrainerConfig.random_seed=1",
    "TrainerConfig.evaluate=True",
    "TrainerConfig.evaluation_worker=True",
    "TrainerConfig.eval_interval=50",
    "TrainerConfig.num_eval_episodes=5",
    "TrainerConfig.checkpoint_interval=20",
    "TrainerConfig.checkpoint_max_to_keep=3",
    "TrainerConfig.export_saved_model=False",
    # A busy machine is not to look like one that is lost.
    *(f"{who}.start_timeout_secs={chaos.PATIENCE_SECS}" for who in ("WorkerPool", "RemoteEvaluator")),
    *(f"{who}.heartbeat_timeout_secs={chaos.PATIENCE_SECS}" for who in ("WorkerPool", "RemoteEvaluator")),
    # Until enough was killed.
    "TrainerConfig.num_iterations=100000000",
]
# Without kills a run reaches 500, the most there is, in its last ten evaluations; this leaves 5 % for its spread.
LEAST_RETURN = 475.0
# Open files, and objects, beyond those after the first kill: connections to the dead are closed after a while. Ray's own
# services were seen to keep three to four for each kill.
MORE_FDS, MORE_OBJECTS = 60, 60
MORE_RAY_FDS = 30 + 5 * KILLS


@pytest.fixture
def living() -> Iterator[Callable[[], list[psutil.Process]]]:
    """Lists what is left of the test's processes, which are killed after it."""
    pytest.importorskip("ray")
    with chaos.adopted_orphans() as living:
        yield living


def _returns(root_dir: pathlib.Path) -> list[float]:
    with open(root_dir / "eval" / "stats.csv", newline="") as file:
        return [float(row["Metrics/AverageReturn"]) for row in csv.DictReader(file)]


def _check_growth(kills: list[chaos.Kill]) -> None:
    """No more is open or stored at the end than at the beginning, but for what comes and goes."""
    for name, more in (("ray_fds", MORE_RAY_FDS), ("store_objects", MORE_OBJECTS)):
        values = [getattr(kill, name) for kill in kills]
        assert min(values[-3:]) <= values[0] + more, f"{name} grows: {values}"
    # A learner's own begin anew with it.
    lives: list[list[int]] = [[]]
    for kill in kills:
        if kill.what == "learner":
            lives.append([])
        lives[-1].append(kill.learner_fds)
    for fds in lives:
        assert not fds or fds[-1] <= fds[0] + MORE_FDS, f"open files of the learner grow: {fds}"


@pytest.mark.chaos
@pytest.mark.timeout(900 + 300 * KILLS)
def test_whatever_is_killed_the_run_goes_on(
    tmp_path: pathlib.Path, living: Callable[[], list[psutil.Process]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    begin = time.monotonic()
    cluster = chaos.Cluster()
    run = chaos.Run(tmp_path / "run", cluster.address, WORKERS, SETTINGS)
    kills: list[chaos.Kill] = []
    try:
        run.start()
        run.until_all_run(0.0, 0, {})
        print(f"\nall up after {time.monotonic() - begin:.0f} s")
        turns = chaos.Chaos.TURNS if LONG else SHORT_TURNS
        chaos_of = chaos.Chaos(cluster, run, seed=KILLS)
        for number in range(KILLS):
            kills.append(chaos_of.kill(turns[number % len(turns)]))
            print(f"kill {number + 1:2}: {kills[-1]}", flush=True)
        os.kill(run.pid(), signal.SIGTERM)
        assert run.wait() == 0, run.told()
        done = run.check_index()
        # To its end: the learning that is left, or a little more.
        end = max(done + 60, ITERATIONS) if LONG else done + 60
        run.start(f"TrainerConfig.num_iterations={end}")
        assert run.wait(1200.0) == 0, run.told()
        assert run.check_index() == end
        assert f"num_iterations={end} is reached" in run.told()
    finally:
        if run.process is not None and run.process.poll() is None:
            run.kill()
        cluster.close()
    gone, left = psutil.wait_procs(living(), chaos.PATIENCE_SECS)
    assert [p for p in left if p.is_running()] == [], [p.cmdline() for p in left]
    returns = _returns(run.root_dir)
    print(
        f"{len(kills)} kills survived in {time.monotonic() - begin:.0f} s; {end} iterations; "
        f"{len(returns)} evaluations, the last ten: {np.mean(returns[-10:]):.1f}; ended {len(gone)} processes"
    )
    assert returns
    if LONG:
        assert np.mean(returns[-10:]) >= LEAST_RETURN
    if kills:
        _check_growth(kills)
