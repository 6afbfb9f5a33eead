"""Joint episodes and ratings, against a plain loop and known answers."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from alf.data_structures import ActionTimeStep, Bootstrap, Experience, StepType
from alf.environments import create_environment
from alf.environments.agent_tasks import RockPaperScissors
from alf.environments.agents import IDLE
from alf.environments.agents_env import AgentsEnv
from alf.environments.random_limits import RandomTimeLimit
from alf.trainers.matches import Match, Matches, expected_score

FIRST, MID, LAST = (int(s) for s in (StepType.FIRST, StepType.MID, StepType.LAST))


def test_expected_scores_of_elo():
    """Figures of Elo's table: 200 points ahead is 0.76, 400 is 10 to 1; both players' scores add up to 1."""
    assert expected_score(1500.0, 1500.0) == 0.5
    assert expected_score(1600.0, 1400.0) == pytest.approx(0.7597, abs=1e-4)
    assert expected_score(1800.0, 1400.0) == pytest.approx(10 / 11)
    assert expected_score(1234.0, 1321.0) + expected_score(1321.0, 1234.0) == pytest.approx(1.0)


def _script(rng, rows):
    """One environment's life: (step type, slots' step types and rewards of two behaviors, observation, version)."""
    life, kind = [], FIRST
    for number in range(rows):
        slots = []
        for count in (2, 1):
            # What slots say when they begin or idle means nothing, and must not be counted.
            choices = [FIRST, IDLE] if kind == FIRST else [MID, LAST, IDLE]
            slots.append((rng.choice(choices, count), rng.integers(-1, 2, count).astype(float)))
        seen = float(number)
        if kind == LAST and rng.random() < 0.3:
            # A crash: nobody ends or gets anything, and what is seen is seen again.
            seen = life[-1][2]
            slots = [(np.where(kinds == LAST, IDLE, kinds), np.zeros(len(kinds))) for kinds, _ in slots]
        life.append((kind, slots, seen, number // 2))
        kind = FIRST if kind == LAST else int(rng.choice([MID, MID, LAST]))
    return life


def _oracle(life):
    """The matches of a life, by a loop over its steps."""
    found, lead, version, before = [], 0.0, 0, None
    for kind, slots, seen, at in life:
        if kind == FIRST:
            lead, version = 0.0, at
        gains = [sum(r for s, r in zip(*slot, strict=True) if s in (MID, LAST)) / len(slot[0]) for slot in slots]
        lead += gains[0] - gains[1]
        if kind == LAST and seen != before:
            found.append(Match(0.5 if abs(lead) < 1e-9 else float(lead > 0), version))
        before = seen
    return found


def _experience(lives, begin, length):
    """Steps [1, T, B] of lives, and the step after them."""

    def fields(at):
        steps = [life[at] for life in lives]
        part = {
            name: {
                "step_type": np.array([s[1][i][0] for s in steps], np.int32),
                "reward": np.array([s[1][i][1] for s in steps], np.float32),
                "discount": np.ones((len(steps), 2 - i), np.float32),
                "observation": np.full((len(steps), 2 - i, 1), [[[s[2]]] * (2 - i) for s in steps], np.float32),
            }
            for i, name in enumerate(("a", "b"))
        }
        kinds = np.array([s[0] for s in steps], np.int32)
        zeros = np.zeros(len(steps), np.float32)
        ids = np.arange(len(steps), dtype=np.int32)
        return ActionTimeStep(kinds, zeros, zeros, part, (), ids), np.array([s[3] for s in steps], np.int64)

    made = [fields(t) for t in range(begin, begin + length)]
    steps = tf.nest.map_structure(lambda *x: np.stack(x)[np.newaxis], *[m[0] for m in made])
    versions = np.stack([m[1] for m in made])[np.newaxis]
    after = tf.nest.map_structure(lambda x: x[np.newaxis], fields(begin + length)[0])
    return Experience(
        *steps, action=(), rollout_info=(), state=(), policy_version=versions, bootstrap=Bootstrap(after, ())
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 7))
def test_matches_are_those_of_a_plain_loop(seed, batch, length):
    rng = np.random.default_rng(seed)
    lives = [_script(rng, 40) for _ in range(batch)]
    matches, found = Matches("a", "b"), []
    whole = (39 // length) * length
    for begin in range(0, whole, length):
        found += matches.take(_experience(lives, begin, length))
    assert sorted(found) == sorted(m for life in lives for m in _oracle(life[:whole]))


def test_an_episode_with_a_gap_counts_for_nothing():
    slots = [(np.array([MID, MID]), np.array([1.0, 1.0])), (np.array([MID]), np.array([0.0]))]
    kinds = [FIRST, MID, MID, LAST, FIRST, MID, MID, LAST, FIRST, FIRST]
    life = [(kind, slots, float(t), 0) for t, kind in enumerate(kinds)]
    matches = Matches("a", "b")
    assert matches.take(_experience([life], 0, 2)) == []
    assert matches.take(_experience([life], 3, 3)) == [], "what went before the end is not known"
    assert matches.take(_experience([life], 6, 2)) == [Match(1.0, 0)], "this one is known whole"


class _Told(gymnasium.Wrapper):
    """Crashes now and then, and notes the score of each episode that comes to its end."""

    def __init__(self, env, crash, rng, scores):
        super().__init__(env)
        self.crash, self.rng, self.scores = crash, rng, scores
        self.lead = 0.0

    def reset(self, **kwargs):
        self.lead = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        if self.rng.random() < self.crash:
            raise RuntimeError("The game has crashed.")
        result = self.env.step(action)
        left, right = (float(result[0][name]["reward"][0]) for name in ("left", "right"))
        self.lead += left - right
        if result[2] or result[3]:
            self.scores.append(0.5 if self.lead == 0.0 else float(self.lead > 0.0))
        return result


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("crash", [0.0, 0.1])
def test_what_a_crash_has_cut_or_made_up_counts_for_nothing(crash, told):
    """Three games at once, of two, three and five hands: a crash finds some at their end, others in the middle.

    Their time limit ends the agents' episodes, or is one that no agent is told of; it counts in both cases.
    """
    rng, scores, limits = np.random.default_rng(0), [], itertools.cycle([2, 3, 5])

    def make():
        limit, names = next(limits), {"player_0": "left", "player_1": "right"}
        game = AgentsEnv(RockPaperScissors(9), names, max_episode_steps=limit if told else None)
        # What is stepped before a crash is lost with it, so only the game that is stepped first crashes.
        chance = crash if limit == 2 else 0.0
        return _Told(game if told else RandomTimeLimit(game, limit, limit), chance, rng, scores)

    env = create_environment(make, num_parallel_environments=3, seed=1, max_restarts=999, max_restarts_per_window=999)
    # The left one never shows the same twice in a row, so that nothing looks repeated which is not.
    played = [env.reset()]
    for t in range(300):
        hands = {"left": np.full((3, 1), t % 3), "right": rng.integers(0, 3, (3, 1))}
        played.append(env.step(hands))
    assert (env.restarts > 10) == (crash > 0.0)
    env.close()
    matches, found, length = Matches("left", "right"), [], 4
    ids, version = np.arange(3, dtype=np.int32), np.zeros((1, length, 3), np.int64)
    steps = [ActionTimeStep(s.step_type, s.reward, s.discount, s.observation, (), ids) for s in played]
    for begin in range(0, 300, length):
        segment = tf.nest.map_structure(lambda *x: tf.stack(x)[tf.newaxis], *steps[begin : begin + length])
        after = Bootstrap(tf.nest.map_structure(lambda x: tf.constant(x)[tf.newaxis], steps[begin + length]), ())
        found += matches.take(Experience(*segment, (), (), (), version, after))
    ended_last = int((played[-1].step_type == LAST).sum())
    counted = len(scores) - ended_last
    assert counted > 50
    assert [match.score for match in found] == scores[:counted]
