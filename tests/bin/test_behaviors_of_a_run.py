"""Train, export and play on a tiny run of two behaviors, by its gin file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from alf.bin import evaluate, export, play, train
from tests.bin.running import run_here, snapshot

HANDS = """
include 'ppo.gin'
include 'mlp_networks.gin'
import alf.algorithms.behaviors
import alf.environments.suite_agents
import alf.trainers.off_policy_trainer

create_environment.env_name = 'rock_paper_scissors'
create_environment.env_load_fn = @suite_agents.load
create_environment.num_parallel_environments = 4
suite_agents.load.behaviors = {'player_0': 'left', 'player_1': 'right'}
suite_agents.load.steps = 3

TrainerConfig.trainer = @sync_off_policy_trainer
TrainerConfig.algorithm_ctor = @Behaviors
Behaviors.behaviors = {'left': @Behavior(), 'right': @right/Behavior()}
Behavior.algorithm_ctor = @Agent
right/Behavior.trained = False
Agent.optimizer = @Adam()
PPOLoss.gamma = 0.99
TrainerConfig.self_play = @SelfPlay()
SelfPlay.learner = 'left'
SelfPlay.opponent = 'right'
SelfPlay.every = '1 training_steps'
SelfPlay.latest_ratio = 0.0

TrainerConfig.random_seed = 3
TrainerConfig.unroll_length = 8
TrainerConfig.mini_batch_length = 1
TrainerConfig.num_iterations = 2
TrainerConfig.checkpoint_interval = 1
TrainerConfig.export_saved_model = False
"""


@pytest.fixture(scope="module")
def hands(tmp_path_factory):
    """Directory of a finished run of two iterations; to be read only."""
    root = tmp_path_factory.mktemp("hands")
    (root / "hands.gin").write_text(HANDS)
    assert run_here(train.main, f"--root_dir={root}") == 0
    return root


def _weights(root, step, behavior):
    """What the checkpoint of a step holds of a behavior's actor network, sums of sizes, sorted."""
    reader = tf.train.load_checkpoint(str(root / "train" / "algorithm" / f"ckpt-{step}"))
    names = [n for n in reader.get_variable_to_shape_map() if f"_algorithms/{behavior}/" in n]
    kept = [n for n in names if "_network/" in n and "OPTIMIZER" not in n]
    return sorted(float(np.abs(reader.get_tensor(n)).sum()) for n in kept)


def _sums(model):
    return sorted(float(np.abs(w.numpy()).sum()) for w in model.weights)


def test_export_writes_every_behavior(hands, tmp_path, logged):
    before = snapshot(hands)
    assert run_here(export.main, f"--root_dir={hands}", f"--export_dir={tmp_path}", "--checkpoint=1") == 0, logged
    assert sorted(p.name for p in tmp_path.iterdir()) == ["left", "right"]
    for name in ("left", "right"):
        metadata = json.loads((tmp_path / name / "metadata.json").read_text())
        assert (metadata["behavior"], metadata["checkpoint"], metadata["step"]) == (name, "ckpt-1", 1)
        model = tf.saved_model.load(str(tmp_path / name / "saved_model"))
        np.testing.assert_allclose(_sums(model), _weights(hands, 1, name), rtol=1e-5)
        assert any(f"(from {tmp_path / name})" in line and "tf.saved_model.load" in line for line in logged)
        seen = tf.zeros([7, 6])
        assert model.signatures["action"](observation=seen)["action"].shape == [7]
    assert not np.allclose(_weights(hands, 1, "left"), _weights(hands, 1, "right"), rtol=1e-6)
    assert snapshot(hands) == before


def test_export_of_one_behavior(hands, tmp_path, logged):
    assert run_here(export.main, f"--root_dir={hands}", f"--export_dir={tmp_path}", "--behavior=right") == 0, logged
    assert [p.name for p in tmp_path.iterdir()] == ["right"]
    assert run_here(export.main, f"--root_dir={hands}", f"--export_dir={tmp_path}", "--behavior=middle") == 2
    assert "--behavior=middle: the run has 'left', 'right'." in logged


def test_a_single_agent_has_no_behavior_to_choose(trained, tmp_path, logged):
    assert run_here(export.main, f"--root_dir={trained}", f"--export_dir={tmp_path}", "--behavior=agent") == 2
    assert run_here(play.main, f"--root_dir={trained}", "--num_episodes=1", "--behavior_from=agent=x") == 2
    assert "--behavior=agent: this run has a single agent; leave the flag out." in logged
    assert "--behavior_from=agent=x: this run has a single agent; leave the flag out." in logged


def _play(root, *arguments):
    return run_here(play.main, f"--root_dir={root}", "--sleep_time_per_step=0", "--epsilon_greedy=0", *arguments)


def test_force_leaves_a_run_that_a_behavior_begins_with(hands, logged):
    for source in (f"left={hands}", f"right=left@{hands}:2"):
        assert run_here(train.main, f"--root_dir={hands}", "--force", f"--initialize_from={source}") == 2
        assert f"--force would rename {hands}, which --initialize_from={source} begins with" in logged[-1]
    assert (hands / "hands.gin").is_file()


def test_all_behaviors_play_together(hands, logged):
    assert _play(hands, "--num_episodes=2", "--random_seed=1") == 0, logged
    returns = [float(line.rpartition(" ")[2]) for line in logged if line.startswith("Episode")]
    assert returns == [0.0, 0.0], "what one wins the other loses"


@pytest.mark.parametrize("choice", ["--checkpoint=2", "--follow"])
def test_a_behavior_plays_by_the_weights_of_another_checkpoint(choice, hands, logged):
    """By one set of weights both always show the same hand, since they see the same, and nobody ever wins."""
    same = f"--behavior_from=right=left@{hands}:2"
    assert _play(hands, "--num_episodes=1", choice, same) == 0, logged
    told = [line for line in logged if line.startswith("Weights from")]
    assert len(told) == 1
    assert told[0].startswith(f"Weights from {hands}")
    assert "for the behavior 'right'" in told[0]
    for name in ("left", "right"):
        assert f"  {name}: return 0.00 ± 0.00 over 1 episodes of agents" in logged
    assert _play(hands, "--behavior_from=middle=x") == 2
    assert _play(hands, "--behavior_from=right=nowhere") == 2
    text = "\n".join(logged)
    assert "must begin with a behavior, as in left=RUN: there are 'left', 'right'." in text
    assert "--behavior_from=right=nowhere: there is no run and no checkpoint of that name." in text


def _evaluate(root, *arguments):
    return run_here(evaluate.main, f"--root_dir={root}", "--random_seed=1", "--num_episodes=2", *arguments)


def test_a_behavior_is_evaluated_against_the_weights_of_another_checkpoint(hands, tmp_path, logged):
    """By one set of weights both show the same hand where that is the most likely one."""
    path, same = tmp_path / "result.json", f"right=left@{hands}:2"
    assert _evaluate(hands, "--deterministic", f"--output={path}", f"--behavior_from={same}") == 0, logged
    assert any(line.startswith("Weights from") and "for the behavior 'right'" in line for line in logged)
    result = json.loads(path.read_text())
    assert result["behavior_from"] == [same]
    assert (result["checkpoint"], set(result["results"])) == ("ckpt-2", {"deterministic"})
    for name in ("left", "right"):
        assert result["results"]["deterministic"]["behaviors"][name]["returns"] == [0.0, 0.0]
    assert _evaluate(hands, "--behavior_from=middle=x") == 2
    assert "must begin with a behavior, as in left=RUN: there are 'left', 'right'." in logged[-1]


def test_the_worker_lets_a_behavior_act_by_other_weights_at_every_checkpoint(hands, tmp_path, logged):
    path, fixed = tmp_path / "e.jsonl", f"--behavior_from=right=left@{hands}:1"
    assert _evaluate(hands, "--watch", "--deterministic", f"--output={path}", fixed) == 0, logged
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert sum(line.startswith("Weights from") for line in logged) == 2
    # At the first one both are the same.
    assert lines[0]["results"]["deterministic"]["behaviors"]["left"]["returns"] == [0.0, 0.0]
