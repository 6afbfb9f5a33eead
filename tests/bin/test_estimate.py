"""Recording episodes of a run, and estimating from them what another policy would earn, against playing it."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

from alf.bin import estimate, record, train
from tests.bin.running import SMALL, run_here, snapshot


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Directory of a run that is the same each time; to be read only."""
    root = tmp_path_factory.mktemp("trained")
    settings = [*SMALL, "TrainerConfig.num_iterations=2", "TrainerConfig.random_seed=0"]
    settings = [f"--gin_param={binding}" for binding in settings]
    assert run_here(train.main, f"--root_dir={root}", "--gin_file=ppo_cart_pole", *settings) == 0
    return root


@pytest.fixture(scope="module")
def recorded(trained, tmp_path_factory):
    """Episodes in which half of the actions are sampled."""
    path = tmp_path_factory.mktemp("recorded") / "episodes.npz"
    before = snapshot(trained)
    arguments = ["--num_episodes=1000", "--num_parallel_environments=50", "--epsilon_greedy=0.5", "--random_seed=1"]
    assert run_here(record.main, f"--root_dir={trained}", f"--output={path}", *arguments) == 0
    assert snapshot(trained) == before
    return path


def _estimate(root, dataset, tmp_path, *arguments):
    path = tmp_path / "estimates.json"
    assert run_here(estimate.main, f"--root_dir={root}", f"--dataset={dataset}", f"--output={path}", *arguments) == 0
    return json.loads(path.read_text())


def test_the_policy_that_has_played_earns_what_it_has_earned(trained, recorded, tmp_path, logged):
    result = _estimate(trained, recorded, tmp_path, "--epsilon_greedy=0.5")
    with np.load(recorded) as archive:
        steps = archive["reward"].sum()
    returns = steps / 1000
    assert set(result["estimates"]) == {
        "behavior",
        "importance_sampling",
        "weighted_importance_sampling",
        "per_decision_importance_sampling",
        "doubly_robust",
    }
    for name, one in result["estimates"].items():
        assert one["mean"] == pytest.approx(returns, rel=1e-4), name
    assert result["effective_episodes"] == pytest.approx(1000, rel=1e-4)
    assert (result["checkpoint"], result["episodes"], result["gamma"]) == ("ckpt-2", 1000, 1.0)
    assert result["steps"] == steps, "CartPole gives 1 for each"
    assert "ckpt-2, of 1000 episodes, which weigh as 1000.0 equal ones." in logged


@pytest.mark.parametrize("epsilon", [0.35, 0.65])
def test_estimates_are_what_playing_earns(epsilon, trained, recorded, tmp_path):
    found = _estimate(trained, recorded, tmp_path, f"--epsilon_greedy={epsilon}")["estimates"]
    path = tmp_path / "played.npz"
    arguments = [
        "--num_episodes=1000",
        "--num_parallel_environments=50",
        f"--epsilon_greedy={epsilon}",
        "--random_seed=9",
    ]
    assert run_here(record.main, f"--root_dir={trained}", f"--output={path}", *arguments) == 0
    again = _estimate(trained, path, tmp_path, f"--epsilon_greedy={epsilon}")["estimates"]["behavior"]
    behavior, played = found.pop("behavior")["mean"], again["mean"]
    assert abs(played - behavior) > 1.0, "else anything would do"
    for name, one in found.items():
        spread = np.hypot(one["high"] - one["low"], again["high"] - again["low"]) / 4
        assert abs(one["mean"] - played) < 4 * spread, name
    assert abs(found["weighted_importance_sampling"]["mean"] - played) < abs(behavior - played) / 2


def test_gamma_discounts(trained, recorded, tmp_path):
    found = _estimate(trained, recorded, tmp_path, "--epsilon_greedy=0.5", "--gamma=0.9")["estimates"]
    with np.load(recorded) as archive:
        lengths = np.diff(np.flatnonzero(np.append(archive["step_type"] == 0, True))) - 1
    expected = np.mean((1 - 0.9**lengths) / (1 - 0.9))
    for name, one in found.items():
        assert one["mean"] == pytest.approx(expected, rel=1e-4), name


@pytest.mark.parametrize("rows", [1, 5])
def test_what_was_recorded_is_told(rows, trained, tmp_path, logged):
    path = tmp_path / "two.npz"
    arguments = ["--num_episodes=2", "--random_seed=1", f"--num_parallel_environments={rows}"]
    assert run_here(record.main, f"--root_dir={trained}", f"--output={path}", *arguments) == 0
    with np.load(path) as archive:
        rewards = archive["reward"]
    # CartPole gives 1 for each step.
    told = f"2 episodes of ckpt-2, {rewards.sum():.0f} steps, mean return {rewards.sum() / 2:.2f}, with the chances"
    assert told in logged[-1]


def test_as_many_episodes_are_recorded_as_were_asked_for(trained, tmp_path, monkeypatch):
    path, rows, make = tmp_path / "six.npz", [], record.trained.make_environment

    def made(seed, batch_size):
        rows.append(batch_size)
        return make(seed, batch_size=batch_size)

    monkeypatch.setattr(record.trained, "make_environment", made)
    assert run_here(record.main, f"--root_dir={trained}", f"--output={path}", "--num_episodes=6") == 0
    with np.load(path) as archive:
        assert (archive["step_type"] == 0).sum() == 6
    assert rows == [3], "of the four that the run has, as many as all give the same number"


@pytest.mark.parametrize(
    ("effective", "episodes", "warned"),
    [(9.9, 100, True), (10.0, 100, False), (3.9, 8, True), (4.0, 8, False)],
)
def test_few_effective_episodes_are_warned_of(effective, episodes, warned, logged):
    numbers = {"mean": 1.0, "low": 0.5, "high": None}
    result = {"checkpoint": "ckpt-2", "episodes": episodes, "effective_episodes": effective}
    estimate._tell({**result, "estimates": {"behavior": numbers}})
    assert logged[0] == "behavior  1.00 [0.50, not finite]"
    assert any(line.startswith("The estimates rest on") for line in logged) == warned


def test_what_rests_on_little_is_told(trained, recorded, tmp_path, logged):
    result = _estimate(trained, recorded, tmp_path)
    if result["effective_episodes"] < 10:
        assert any(line.startswith("The estimates rest on") for line in logged)
    assert result["epsilon_greedy"] == 0.0


def test_datasets_that_do_not_do_are_told_in_a_sentence(trained, recorded, tmp_path, logged):
    def told(path):
        assert run_here(estimate.main, f"--root_dir={trained}", f"--dataset={path}") == 2
        return logged[-1]

    assert "none.npz cannot be read" in told(tmp_path / "none.npz")
    with np.load(recorded) as archive:
        columns = dict(archive)
    chances = columns.pop("log_probability")
    np.savez(tmp_path / "bare.npz", **columns)
    assert "has no column log_probability" in told(tmp_path / "bare.npz")
    np.savez(tmp_path / "chances.npz", **columns, log_probability=np.exp(chances))
    assert "and no chance of a discrete action is above 1: write its natural logarithm" in told(
        tmp_path / "chances.npz"
    )
    chances[3] = -np.inf
    np.savez(tmp_path / "never.npz", **columns, log_probability=chances)
    assert "log_probability=-inf at step 3: a chance is above 0." in told(tmp_path / "never.npz")


def test_a_file_that_finds_no_room_is_told_in_a_sentence(trained, tmp_path, logged, monkeypatch):
    def full(file, **columns):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    path = tmp_path / "episodes.npz"
    assert run_here(record.main, f"--root_dir={trained}", f"--output={path}", "--num_episodes=1") == 2
    assert logged[-1] == f"--output={path} cannot be written (No space left on device): give another path."


def test_continuous_actions_are_refused_and_recorded_without_chances(tmp_path, logged):
    root, path = tmp_path / "run", tmp_path / "d.npz"
    few = ["TrainerConfig.num_iterations=1", "TrainerConfig.initial_collect_steps=64", "TrainerConfig.unroll_length=8"]
    few += ["TrainerConfig.mini_batch_size=16", "TrainerConfig.num_updates_per_train_step=1"]
    assert (
        run_here(train.main, f"--root_dir={root}", "--gin_file=sac_pendulum", *(f"--gin_param={b}" for b in few)) == 0
    )
    assert run_here(record.main, f"--root_dir={root}", "--num_episodes=1", f"--output={path}") == 0
    assert logged[-1].endswith("without the chances of their actions.")
    assert run_here(estimate.main, f"--root_dir={root}", f"--dataset={path}") == 2
    # Recording it again would bring none.
    assert "by what is recorded alone (actions are continuous): play" in logged[-1]
    with np.load(path) as archive:
        columns = dict(archive)
    np.savez(path, **columns, log_probability=np.zeros(len(columns["reward"]), np.float32))
    assert run_here(estimate.main, f"--root_dir={root}", f"--dataset={path}") == 2
    assert "gives no chances of discrete actions" in logged[-1]


def test_discrete_actions_without_probabilities_and_values_are_not_called_continuous(
    trained, recorded, logged, monkeypatch
):
    monkeypatch.setattr("alf.algorithms.judging.judge", lambda *given: None)
    assert run_here(estimate.main, f"--root_dir={trained}", f"--dataset={recorded}") == 2
    assert "(it tells no probabilities of its actions and no values of them, as an ensemble" in logged[-1]
