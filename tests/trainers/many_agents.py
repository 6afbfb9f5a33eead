"""Runs of two behaviors with tiny networks: chasers and a runner, and two who show rock, paper or scissors."""

from __future__ import annotations

import gin

from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.environments import suite_agents
from tests.algorithms.off_policy import make
from tests.trainers.small_run import make_algorithm


def make_dqn(observation_spec, action_spec, debug_summaries=False):
    """DQN with a layer of eight units."""
    return make("dqn", observation_spec, action_spec, layers=(8,))


def ppo(**settings):
    """A behavior that PPO learns."""
    return Behavior(make_algorithm, **settings)


def dqn(algorithm_ctor=make_dqn, **settings):
    """A behavior that DQN learns from samples."""
    samples = {"whole_replay_buffer_training": False, "mini_batch_size": 4, "mini_batch_length": 2}
    return Behavior(algorithm_ctor, **{**samples, **settings})


def behaviors(**by_name):
    """Makes `Behaviors` of these."""

    def ctor(observation_spec, action_spec, debug_summaries=False):
        return Behaviors(observation_spec, action_spec, by_name, debug_summaries)

    return ctor


def bind_pursuit(**settings):
    """Three chasers, behavior "chaser", and a "runner", in episodes of at most six steps."""
    _bind("pursuit", {"steps": 6, **settings})


def bind_hands(**settings):
    """Behaviors "left" and "right" show rock, paper or scissors, three times an episode."""
    _bind("rock_paper_scissors", {"steps": 3, "behaviors": {"player_0": "left", "player_1": "right"}, **settings})


def _bind(name, settings):
    gin.bind_parameter("create_environment.env_name", name)
    gin.bind_parameter("create_environment.env_load_fn", suite_agents.load)
    for key, value in settings.items():
        gin.bind_parameter(f"alf.environments.suite_agents.load.{key}", value)
