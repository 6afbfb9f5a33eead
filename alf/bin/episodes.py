"""Whole episodes of a policy, as many as asked for, and what they came to."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

if TYPE_CHECKING:
    from alf.trainers.evaluation import EpisodeRecorder


# Of the log, while episodes are played.
_SECS_BETWEEN_LINES = 10.0


# Of an episode, which is then taken for one that never ends.
MAX_STEPS = 100_000


class EpisodesError(RuntimeError):
    """The episodes do not end."""


def never_ends(steps: int, besides: str = "") -> str:
    """What is wrong with an episode that has not ended after so many steps; `besides` is put behind the number."""
    return (
        f"An episode has not ended after {steps} steps{besides}: give the environment a time limit, such as "
        "suite_gym.load.max_episode_steps."
    )


def always_cut(ended: int, wanted: int) -> str:
    """What is wrong with an environment whose episodes are cut again and again; `ended` of those that are wanted were not."""
    from alf.drivers.base import MOST_CUTS

    return (
        f"Episodes were cut {MOST_CUTS} times in a row, by restarts or values that are not finite, and {ended} of {wanted} "
        "have ended: correct the environment."
    )


def run_episodes(
    env: Any,
    algorithm: Any,
    num_episodes: int,
    epsilon_greedy: float,
    random_seed: int | None = None,
    observers: Sequence[Callable[..., None]] = (),
    success_threshold: float | Mapping[str, float] | None = None,
    max_steps_per_episode: int = MAX_STEPS,
) -> EpisodeRecorder:
    """Plays exactly `num_episodes` episodes from a reset.

    Args:
      env: batched environment of B rows, which stays the caller's.
      algorithm: acts by its present weights; trains nothing.
      num_episodes: n; each row gives its share of them, since taking those that end first would favour short ones.
      epsilon_greedy: chance of a sampled instead of the most likely action: 0 is deterministic, 1 stochastic.
      random_seed: of the samples.
      observers: called as `f(trajectory [B, ...])` at every step.
      success_threshold: an episode with at least this return is a success; by behavior, an agent's episode; None: where
        the environment says so.
      max_steps_per_episode: a longer one is an error.

    Returns:
      their `returns`, `lengths` and `succeeded`, and, with several agents, those of `agents` by behavior.

    Raises:
      EpisodesError: an episode does not end, or each is cut.
      ValueError: `num_episodes` is below 1.
    """
    from alf.drivers.policy_driver import PolicyDriver
    from alf.trainers.counts import EnvironmentEpisodes
    from alf.trainers.evaluation import EpisodeRecorder

    if num_episodes < 1:
        raise ValueError(f"num_episodes={num_episodes} must be at least 1.")
    recorder = EpisodeRecorder(
        EnvironmentEpisodes(num_episodes),
        env.batch_size,
        success_threshold,
        lambda: env.successes,
        observation_spec=env.observation_spec(),
        restarts=lambda: env.cuts,
    )
    driver = PolicyDriver(
        env, algorithm, observers=[recorder, *observers], epsilon_greedy=epsilon_greedy, random_seed=random_seed
    )
    told = time.monotonic()

    def over() -> bool:
        nonlocal told
        if time.monotonic() - told >= _SECS_BETWEEN_LINES:
            told = time.monotonic()
            ended, longest = len(recorder.returns), recorder.longest_open()
            logging.info(
                "%d of %d episodes have ended; the longest that goes on has %d steps.", ended, num_episodes, longest
            )
        return recorder.done or recorder.always_cut or recorder.longest_open() >= max_steps_per_episode

    time_step, _ = driver.predict_until(over)
    recorder.finish(time_step)
    if recorder.always_cut:
        raise EpisodesError(always_cut(len(recorder.returns), num_episodes))
    if not recorder.done:
        besides = f" ({len(recorder.returns)} of {num_episodes} have)"
        raise EpisodesError(never_ends(max_steps_per_episode, besides))
    return recorder


def summary(
    returns: Sequence[float], lengths: Sequence[int], succeeded: Sequence[bool] | None = None
) -> dict[str, Any]:
    """What at least one episode came to, as JSON values; numbers that are not finite are None.

    Args:
      returns: of each episode.
      lengths: actions in each.
      succeeded: whether each was a success; None: nothing is known about that.
    """
    return {
        "episodes": len(returns),
        **_numbers(returns),
        "success_rate": None if succeeded is None else sum(succeeded) / len(succeeded),
        "length": _numbers(lengths),
        "returns": [_finite(r) for r in returns],
        "lengths": list(lengths),
    }


def behavior_summaries(recorder: EpisodeRecorder) -> dict[str, dict[str, Any]]:
    """By behavior what `summary` tells of the episodes of single agents; of one without an episode `episodes`, 0."""
    agents = recorder.agents
    if agents is None:
        return {}
    return {
        name: summary(returns, agents.lengths[name], agents.succeeded(name)) if returns else {"episodes": 0}
        for name, returns in agents.returns.items()
    }


def _numbers(values: Sequence[float]) -> dict[str, float | None]:
    return {
        "mean": _finite(float(np.mean(values))),
        "std": _finite(float(np.std(values))),
        "min": _finite(float(min(values))),
        "max": _finite(float(max(values))),
        "median": _finite(float(statistics.median(values))),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
