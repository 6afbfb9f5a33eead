"""Examples of several agents: together, against each other, each by an algorithm of its own."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.predictions import get_predictions
from alf.environments.agent_tasks import Pursuit
from alf.trainers.config import TrainerConfig
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils
from tests.learning import runs

SEEDS = range(3)
# What rock, paper or scissors (rows) wins against rock, paper or scissors.
WINS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)

# From observations [n, ...] of a behavior's agents to their actions [n].
Act = Callable[[np.ndarray], np.ndarray]

pytestmark = pytest.mark.learning


def _train(
    root_dir: pathlib.Path,
    name: str,
    seed: int,
    params: Sequence[str] = (),
    before: Callable[[dict[str, OffPolicyAlgorithm]], None] = lambda behaviors: None,
) -> dict[str, OffPolicyAlgorithm]:
    """The algorithms of the behaviors after the whole run of an example; `before` gets them before its first step."""
    settings = [f"TrainerConfig.random_seed={seed}", "TrainerConfig.export_saved_model=False", *params]
    gin_utils.parse_gin([str(runs.EXAMPLES / f"{name}.gin")], settings)
    trainer = TrainerConfig(root_dir=str(root_dir)).create_trainer()
    trainer.initialize()
    behaviors = trainer.algorithm.by_name
    before(behaviors)
    trainer.train()
    return behaviors


@pytest.mark.parametrize("seed", SEEDS)
def test_agents_that_share_a_policy_spread(tmp_path: pathlib.Path, seed: int) -> None:
    # Random agents get -151, three who each go to the nearest landmark -78 (100 episodes each).
    outcome = runs.train(tmp_path, ["multi_agent_spread"], seed, -95.0)
    assert outcome.best >= -95.0, outcome


# ---- rock, paper, scissors ----


def exploitability(behaviors: Iterable[OffPolicyAlgorithm]) -> list[float]:
    """What the best answer to each policy wins in a round: 0 in the equilibrium, 1 against who always shows the same."""
    nothing = np.zeros((1, 6), np.float32)
    policies = [get_predictions(algorithm, nothing, "action_probabilities").numpy()[0] for algorithm in behaviors]
    return [float(max(WINS @ policy)) for policy in policies]


def _bias(behaviors: dict[str, OffPolicyAlgorithm]) -> None:
    """Has one player show rock and the other paper most of the time."""
    for hand, (_, algorithm) in enumerate(sorted(behaviors.items())):
        (bias,) = (v for v in algorithm.trainable_variables if v.shape == (3,))
        bias.assign(2.0 * np.eye(3)[hand])
    assert min(exploitability(behaviors.values())) > 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_hands_come_to_be_shown_equally_often(tmp_path: pathlib.Path, seed: int) -> None:
    behaviors = _train(tmp_path, "multi_agent_rock_paper_scissors", seed, before=_bias)
    print(left := exploitability(behaviors.values()))
    assert max(left) < 0.1


# ---- pursuit ----


def _random(seed: int) -> Act:
    rng = np.random.default_rng(seed)
    return lambda seen: rng.integers(5, size=len(seen))


def _chaser(algorithm: OffPolicyAlgorithm, seed: int) -> Act:
    rng = np.random.default_rng(seed)

    def act(seen: np.ndarray) -> np.ndarray:
        probabilities = get_predictions(algorithm, seen, "action_probabilities").numpy()
        return np.minimum((probabilities.cumsum(1) < rng.random((len(seen), 1))).sum(1), 4)

    return act


def _runner(algorithm: OffPolicyAlgorithm) -> Act:
    return lambda seen: get_predictions(algorithm, seen, "q_values").numpy().argmax(1)


def steps_until_caught(chaser: Act, runner: Act, episodes: int = 200) -> float:
    """The mean length of episodes, in the task itself, without what trains in it."""
    tasks = [Pursuit() for _ in range(episodes)]
    seen = [task.reset(seed=1000 + i)[0] for i, task in enumerate(tasks)]
    steps = 0
    while going := [i for i, task in enumerate(tasks) if task.agents]:
        steps += len(going)
        actions: list[dict[str, Any]] = [{} for _ in tasks]
        for act, prefix in ((chaser, "chaser"), (runner, "runner")):
            whose = [(i, name) for i in going for name in tasks[i].agents if name.startswith(prefix)]
            chosen = act(np.stack([seen[i][name] for i, name in whose]))
            for (i, name), action in zip(whose, chosen, strict=True):
                actions[i][name] = action
        for i in going:
            seen[i] = tasks[i].step(actions[i])[0]
    return steps / episodes


@pytest.mark.parametrize("seed", SEEDS)
def test_chasers_learn_to_chase_and_the_runner_to_run(tmp_path: pathlib.Path, seed: int) -> None:
    behaviors = _train(tmp_path, "multi_agent_pursuit", seed)
    chaser, runner = _chaser(behaviors["chaser"], seed), _runner(behaviors["runner"])
    nobody_learned = steps_until_caught(_random(1), _random(2))
    only_chasers, only_runner = steps_until_caught(chaser, _random(2)), steps_until_caught(_random(1), runner)
    # How long trained chasers take for a trained runner goes up and down as they learn in turns.
    print(lengths := f"{nobody_learned=} {only_chasers=} {only_runner=} {steps_until_caught(chaser, runner)=}")
    assert only_chasers < 0.5 * nobody_learned, lengths
    assert only_runner > nobody_learned + 5.0, lengths


# ---- tic-tac-toe ----


def games(algorithm: OffPolicyAlgorithm, first: bool, number: int = 100) -> np.ndarray:
    """How games of the policy against a random player end, as PettingZoo has them: 1 won, 0 a draw, -1 lost."""
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    rng = np.random.default_rng(0)
    own = "player_1" if first else "player_2"
    results = []
    for _ in range(number):
        game = tictactoe.env()
        game.reset()
        while game.agents and not any(game.terminations.values()):
            seen = game.observe(game.agent_selection)
            chances = seen["action_mask"] / seen["action_mask"].sum()
            if game.agent_selection == own:
                rows = {name: value[None] for name, value in seen.items()}
                chances = get_predictions(algorithm, rows, "action_probabilities").numpy()[0].astype(float)
            game.step(int(rng.choice(9, p=chances / chances.sum())))
        results.append(game.rewards[own])
    return np.array(results)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_player_who_only_ever_met_itself_beats_a_random_one(tmp_path: pathlib.Path, seed: int) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="alf[multiagent] is not installed")
    algorithm = _train(tmp_path, "multi_agent_tic_tac_toe", seed)["agent"]
    # Of two random players the first wins 0.58 of all games and loses 0.29.
    begun, followed = games(algorithm, True), games(algorithm, False)
    print(shares := [float(np.mean(won)) for won in (begun > 0, begun < 0, followed > 0, followed < 0)])
    assert (shares[0] + shares[2]) / 2 > 0.55, shares
    assert (shares[1] + shares[3]) / 2 < 0.25, shares
