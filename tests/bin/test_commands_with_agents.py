"""What the commands tell of a run in which several agents act."""

from __future__ import annotations

import json

import pytest

from alf.bin import estimate, evaluate, play, record, status, train
from tests.bin.running import run_here

SETTINGS = """
include 'mlp_networks.gin'
import alf.algorithms.behaviors
import alf.algorithms.ppo_algorithm
import alf.algorithms.ppo_loss
import alf.trainers.off_policy_trainer

observation_spec = @get_observation_spec()
action_spec = @get_action_spec()
create_environment.env_name = 'tests.environments.small_agents:SmallAgents'
create_environment.num_parallel_environments = 2

TrainerConfig.trainer = @sync_off_policy_trainer
TrainerConfig.algorithm_ctor = @Behaviors
Behaviors.behaviors = {'*': @Behavior()}
Behavior.algorithm_ctor = @PPOAlgorithm
Behavior.trained = False
PPOAlgorithm.optimizer = @Adam()
ActorCriticAlgorithm.loss_class = @PPOLoss
TrainerConfig.unroll_length = 20
TrainerConfig.num_iterations = 1
TrainerConfig.evaluate = True
TrainerConfig.eval_interval = 1
TrainerConfig.num_eval_episodes = 1
TrainerConfig.export_saved_model = False
TrainerConfig.reward_success_threshold = {'chaser': 2.0, 'runner': 5.0}
TrainerConfig.stop_conditions = [@MeanReturn()]
MeanReturn.target = {'chaser': 99.0, 'runner': 99.0}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Directory of a finished run of one iteration, with chasers and a runner."""
    root = tmp_path_factory.mktemp("agents")
    settings = root / "agents.gin"
    settings.write_text(SETTINGS)
    assert run_here(train.main, f"--root_dir={root / 'run'}", f"--gin_file={settings}") == 0
    return root / "run"


def test_play_tells_of_each_behavior_after_each_episode(run, logged):
    assert run_here(play.main, f"--root_dir={run}", "--sleep_time_per_step=0", "--num_episodes=2") == 0, logged
    told = [line for line in logged if line.startswith(("Episode", "  "))]
    assert told == [
        "Episode 1: return 11.000",
        "  chaser: return 2.33 ± 1.25 over 3 episodes of agents",
        "  runner: return 4.00 ± 0.00 over 1 episodes of agents",
        "Episode 2: return 11.000",
        "  chaser: return 2.33 ± 1.25 over 3 episodes of agents",
        "  runner: return 4.00 ± 0.00 over 1 episodes of agents",
    ]


def test_evaluate_has_the_numbers_of_each_behavior(run, tmp_path, logged):
    path = tmp_path / "result.json"
    arguments = ("--num_episodes=3", "--num_parallel_environments=2", "--nostochastic", f"--output={path}")
    assert run_here(evaluate.main, f"--root_dir={run}", *arguments) == 0, logged
    result = json.loads(path.read_text())
    # By behavior, as the run has it.
    assert result["success_threshold"] == {"chaser": 2.0, "runner": 5.0}
    numbers = result["results"]["deterministic"]
    assert (numbers["episodes"], numbers["mean"]) == (3, 11.0)
    assert set(numbers["behaviors"]) == {"chaser", "runner"}
    chaser, runner = numbers["behaviors"]["chaser"], numbers["behaviors"]["runner"]
    assert sorted(chaser["returns"]) == [1.0] * 3 + [2.0] * 3 + [4.0] * 3
    assert (chaser["episodes"], chaser["max"], chaser["length"]["max"]) == (9, 4.0, 4.0)
    assert chaser["success_rate"] == pytest.approx(2 / 3)
    assert (runner["returns"], runner["lengths"], runner["success_rate"]) == ([4.0] * 3, [2] * 3, 0.0)
    assert any(line.startswith("ckpt-1, deterministic, runner: return 4.00 ± 0.00 over 3") for line in logged)


def test_success_by_behavior_is_that_of_the_behavior_with_the_least_of_it(run, tmp_path, logged):
    path = tmp_path / "result.json"
    threshold = "TrainerConfig.reward_success_threshold={'chaser': 2.0, 'runner': 4.0}"
    arguments = ("--num_episodes=3", "--nostochastic", f"--gin_param={threshold}", f"--output={path}")
    assert run_here(evaluate.main, f"--root_dir={run}", *arguments) == 0, logged
    numbers = json.loads(path.read_text())["results"]["deterministic"]
    assert numbers["success_rate"] == pytest.approx(2 / 3)
    assert numbers["behaviors"]["runner"]["success_rate"] == 1.0
    (line,) = (line for line in logged if line.startswith("ckpt-1, deterministic: return"))
    assert ", success 67%" in line


def test_agents_of_a_shipped_task_are_filmed(tmp_path, logged):
    settings = SETTINGS.replace("'tests.environments.small_agents:SmallAgents'", "'rock_paper_scissors'")
    settings = "\n".join(line for line in settings.splitlines() if "threshold" not in line and "MeanReturn" not in line)
    file = tmp_path / "s.gin"
    file.write_text(
        f"{settings}\nimport alf.environments.suite_agents\ncreate_environment.env_load_fn = @suite_agents.load\n"
    )
    root, film = tmp_path / "run", tmp_path / "v.gif"
    assert run_here(train.main, f"--root_dir={root}", f"--gin_file={file}") == 0, logged
    assert (
        run_here(
            play.main, f"--root_dir={root}", "--num_episodes=1", "--sleep_time_per_step=0", f"--record_file={film}"
        )
        == 0
    ), logged
    assert film.stat().st_size > 100, logged


def test_status_has_a_line_for_each_behavior(run, capsys):
    assert run_here(status.main, f"--root_dir={run}") == 0
    text = capsys.readouterr().out
    assert "  runner: AverageReturn 4, AverageEpisodeLength 2, AverageReturn_std 0, NumberOfEpisodes 8" in text
    assert "  chaser: AverageReturn 2." in text


def test_episodes_of_several_agents_are_no_dataset(run, tmp_path, logged):
    path = tmp_path / "d.npz"
    assert run_here(record.main, f"--root_dir={run}", f"--output={path}") == 2
    assert logged[-1] == "A dataset holds the steps of a single agent, and this run has behaviors."
    assert not path.exists()
    assert run_here(estimate.main, f"--root_dir={run}", f"--dataset={path}") == 2
    assert logged[-1] == "Recorded episodes judge a single agent, and this run has behaviors."
