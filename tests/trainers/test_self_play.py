"""Self-play: whose turn it is, with which weights, what the ratings say, and that a resumed run goes on with all of it."""

from __future__ import annotations

import csv
import dataclasses

import gin
import numpy as np
import pytest

from alf.trainers.checkpointing import CheckpointError
from alf.trainers.matches import Matches
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.self_play import PRESENT, SelfPlay
from tests.trainers.many_agents import behaviors, bind_hands, dqn, ppo

pytestmark = pytest.mark.slow

HANDS = behaviors(left=ppo(), right=ppo(trained=False))
QUICK = SelfPlay("left", "right", every="1 training_steps", snapshot_every="2 training_steps", window=2)


def _weights(algorithm):
    return [v.numpy() for v in algorithm.acting_variables()]


def _equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class _Watched:
    """What a run went through: its opponents by version of the weights, and its matches, told apart from `Versions`."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.left, self.right = (trainer.algorithm.by_name[name] for name in ("left", "right"))
        self.versions = [_weights(self.left)]
        self.opponents = {0: PRESENT}
        self.matches = Matches("left", "right")
        self.elo, self.ratings = 1200.0, {0: 1200.0}
        self.rated = self.iterations = self.turns = 0
        # How many versions back from the newest a turn went to.
        self.drawn = set()
        trainer.algorithm.add_experience_observer(self.observe)
        trainer.algorithm.add_after_train_hook(self.trained)

    @property
    def play(self):
        return self.trainer._self_play

    def observe(self, exp):
        if self.iterations == 0:
            return
        now = self.opponents[self.iterations]
        for match in self.matches.take(exp):
            by = {self.opponents[v] for v in range(match.version, self.iterations + 1)} if match.version else set()
            if by == {now} and now != PRESENT:
                expected = 1 / (1 + 10 ** ((self.ratings[now] - self.elo) / 400))
                self.elo += 16 * (match.score - expected)
                self.ratings[now] -= 16 * (match.score - expected)
                self.rated += 1

    def trained(self):
        self.iterations += 1
        if self.iterations % 3 == 0:
            self.ratings[len(self.versions)] = self.elo
            self.versions.append(_weights(self.left))
        now = self.opponents[self.iterations] = self.play.opponent
        before = self.opponents[self.iterations - 1]
        gone = before != PRESENT and before < len(self.versions) - 2
        takes_turn = self.iterations % 4 == 0 or gone
        self.turns += takes_turn
        assert int(self.play._turns) == self.turns
        if takes_turn and now != PRESENT:
            self.drawn.add(len(self.versions) - 1 - now)
        assert now == PRESENT or len(self.versions) - 2 <= now < len(self.versions)
        expected = _weights(self.left) if now == PRESENT else self.versions[now]
        assert _equal(_weights(self.right), expected), (self.iterations, now)
        assert self.play.elo == pytest.approx(self.elo)
        for number, rating in self.play.ratings.items():
            assert rating == pytest.approx(self.ratings[number]), number


def test_turns_weights_and_ratings(small_config, tmp_path):
    """Episodes of five steps, in segments of four: many see two opponents, and some only one."""
    bind_hands(steps=5)
    turns = {"every": "4 training_steps", "snapshot_every": "3 training_steps"}
    slow = SelfPlay("left", "right", **turns, window=2, latest_ratio=0.2)
    config = small_config(
        SyncOffPolicyTrainer, algorithm_ctor=HANDS, self_play=slow, num_iterations=24, summary_interval=1
    )
    with config.create_trainer() as trainer:
        trainer.initialize()
        watched = _Watched(trainer)
        trainer.train()
        assert watched.iterations == 24
        assert not _equal(watched.versions[0], watched.versions[-1])
        taken = set(watched.opponents.values())
        assert PRESENT in taken
        assert len(taken) >= 4
        assert watched.drawn == {0, 1}
        assert list(watched.play.ratings) == [7, 8]
        assert watched.rated > 0
        assert watched.elo != 1200.0
    with open(tmp_path / "run" / "train" / "stats.csv", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["SelfPlay/Elo"]) == pytest.approx(watched.elo)
    assert (int(float(last["SelfPlay/Versions"])), int(float(last["SelfPlay/Matches"]))) == (9, watched.rated)


def test_actors_never_get_a_version_with_half_a_turn(small_config):
    """What a driver publishes after an iteration holds the opponent that was set in it."""
    bind_hands()
    gin.bind_parameter("AsyncOffPolicyDriver.mode", "lockstep")
    config = small_config(AsyncOffPolicyTrainer, algorithm_ctor=HANDS, self_play=QUICK, num_iterations=3)
    with config.create_trainer() as trainer:
        trainer.initialize()
        seen = []

        def look():
            # The last hook of all, since the driver adds its own when it starts.
            store = trainer.driver._store
            snapshot = store.latest()
            assert snapshot.version == len(seen) + 1
            assert _equal([v.numpy() for v in store.variables], [w.numpy() for w in snapshot.weights])
            seen.append(snapshot.version)

        trainer.driver.start()
        trainer.algorithm.add_after_train_hook(look)
        for _ in range(3):
            trainer.driver.run_async()
            trainer._learn()
        assert seen == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lockstep"])
def test_two_halves_make_the_whole(mode, small_config, tmp_path):
    bind_hands()
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    settings = {"algorithm_ctor": HANDS, "self_play": QUICK, "exact_resume": True, "checkpoint_interval": 3}

    def run(iterations, root):
        trainer = small_config(
            AsyncOffPolicyTrainer, num_iterations=iterations, root_dir=str(tmp_path / root), **settings
        ).create_trainer()
        trainer.train()
        return trainer

    whole, _, halves = run(6, "whole"), run(3, "halves"), run(6, "halves")
    for a, b in ((whole.algorithm, halves.algorithm), (whole._self_play, halves._self_play)):
        assert len(a.variables) > 10
        for x, y in zip(a.variables, b.variables, strict=True):
            np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=x.name)
    assert int(halves._self_play._turns) == 6


@pytest.mark.slow
def test_another_window_is_named_where_a_run_goes_on(small_config):
    bind_hands()
    settings = {"algorithm_ctor": HANDS, "num_iterations": 1}
    small_config(SyncOffPolicyTrainer, self_play=QUICK, **settings).create_trainer().train()
    other = small_config(SyncOffPolicyTrainer, self_play=dataclasses.replace(QUICK, window=3), **settings)
    with pytest.raises(
        CheckpointError, match=r"whose networks, optimisers, explorations or SelfPlay\.window are others: use"
    ):
        other.create_trainer().initialize()


@pytest.mark.parametrize(("source", "is_given"), [("right=left@OLD", True), ("left=OLD", False), ("OLD", False)])
def test_an_opponent_that_is_given_weights_by_name_begins_with_them(small_config, tmp_path, source, is_given):
    """They are the first version, which the opponent can play again; otherwise that is the learner's."""
    bind_hands()
    old = small_config(SyncOffPolicyTrainer, algorithm_ctor=HANDS, num_iterations=1, root_dir=str(tmp_path / "old"))
    with old.create_trainer() as trainer:
        trainer.train()
        champion = _weights(trainer.algorithm.by_name["left"])
    settings = {"random_seed": 9, "initialize_from": source.replace("OLD", str(tmp_path / "old"))}
    config = small_config(SyncOffPolicyTrainer, algorithm_ctor=HANDS, self_play=QUICK, **settings)
    with config.create_trainer() as trainer:
        trainer.initialize()
        left, right = (trainer.algorithm.by_name[name] for name in ("left", "right"))
        given = champion if is_given else _weights(left)
        assert _equal(_weights(left), champion) is not is_given
        assert _equal(_weights(right), given)
        play = trainer._self_play
        assert (play.opponent, play.ratings) == (0, {0: 1200.0})
        play._play(PRESENT)
        assert _equal(_weights(right), _weights(left))
        play._play(0)
        assert _equal(_weights(right), given)


@pytest.mark.learning
def test_who_learns_rises_above_its_older_versions(small_config):
    """Eight hands an episode: older versions show one hand more often than others, and are beaten by what beats it."""
    bind_hands(steps=8)
    gin.bind_parameter("create_environment.num_parallel_environments", 32)
    turns = {"every": "5 training_steps", "snapshot_every": "20 training_steps", "window": 5, "latest_ratio": 0.2}
    learning = {"num_updates_per_train_step": 4, "mini_batch_size": 96, "unroll_length": 9, "num_iterations": 160}
    settings = {"self_play": SelfPlay("left", "right", **turns), **learning}
    with small_config(SyncOffPolicyTrainer, algorithm_ctor=HANDS, **settings).create_trainer() as trainer:
        trainer.train()
        assert trainer._self_play.elo > 1350.0


def test_by_environment_steps(small_config):
    """An iteration makes 16 steps: multiples of 40 are passed after iterations 3 (48) and 5 (80)."""
    bind_hands()
    every = SelfPlay("left", "right", every="40 env_steps", snapshot_every="40 env_steps", latest_ratio=1.0)
    config = small_config(SyncOffPolicyTrainer, algorithm_ctor=HANDS, self_play=every, num_iterations=5)
    with config.create_trainer() as trainer:
        trainer.initialize()
        turns = []
        play = trainer._self_play
        trainer.algorithm.add_after_train_hook(lambda: turns.append((int(play._turns), int(play._made), play.opponent)))
        trainer.train()
    assert turns == [(0, 1, 0), (0, 1, 0), (1, 2, PRESENT), (1, 2, PRESENT), (2, 3, PRESENT)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": "5 episodes"}, "it takes training_steps or env_steps"),
        ({"snapshot_every": "0 env_steps"}, "must be at least 1"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"latest_ratio": 1.5}, "must be in"),
        ({"window": None}, "SelfPlay.window=None must be a whole number"),
        ({"k_factor": -16.0}, "k_factor=-16.0 must be 0 or more and finite"),
        ({"k_factor": float("nan")}, "k_factor=nan must be 0 or more and finite"),
        ({"initial_elo": float("inf")}, "initial_elo=inf must be finite"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        SelfPlay("left", "right", **settings)


def test_behaviors_that_cannot_play(small_config):
    bind_hands()
    cases = [
        (SelfPlay("left", "rite"), HANDS, "'rite' is no behavior: there are 'left', 'right'"),
        (SelfPlay("right", "left"), HANDS, "right/Behavior.trained must be True"),
        (SelfPlay("left", "right"), behaviors(left=ppo(), right=ppo()), "right/Behavior.trained must be False"),
        (SelfPlay("left", "right"), behaviors(left=ppo(), right=dqn(trained=False)), "another algorithm than 'left'"),
    ]
    for settings, ctor, message in cases:
        trainer = small_config(SyncOffPolicyTrainer, algorithm_ctor=ctor, self_play=settings).create_trainer()
        with trainer, pytest.raises(ValueError, match=message):
            trainer.initialize()
    with pytest.raises(ValueError, match=r"write @SelfPlay\(\)"):
        small_config(SyncOffPolicyTrainer, self_play=SelfPlay)
