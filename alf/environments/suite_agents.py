"""Environments of many agents: the tasks that come with alf, and any object with PettingZoo's parallel interface."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gin
import gymnasium

from alf.environments import suite_gym
from alf.environments.agent_tasks import Pursuit, RockPaperScissors, Spread
from alf.environments.agents_env import AgentsEnv
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.counting_agents import CountingAgents
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.gin_utils import named_callable


class _Task(NamedTuple):
    """A task that comes with alf: what makes it, and how its agents are seen unless said otherwise."""

    make: Callable[..., Any]
    behaviors: Mapping[str, str] | None = None
    slots: Mapping[str, int] | None = None
    done_condition: str = "any"


_TASKS = {
    "spread": _Task(Spread),
    "pursuit": _Task(Pursuit, Pursuit.behaviors),
    "rock_paper_scissors": _Task(RockPaperScissors),
    "counting": _Task(CountingAgents, slots={"agent": 3}, done_condition="all"),
}


@gin.configurable(module="alf.environments.suite_agents")
def load(
    environment_name: str | Callable[..., Any],
    behaviors: Mapping[str, str] | None = None,
    slots: Mapping[str, int] | None = None,
    done_condition: str | None = None,
    may_idle: bool | None = None,
    share_reward: bool = False,
    with_group: bool = False,
    max_episode_steps: int | None = None,
    gym_env_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    render_mode: str | None = None,
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """Finds an environment of many agents and tells how to make batches of it; makes none yet.

    Args:
      environment_name: "spread", "pursuit", "rock_paper_scissors" or "counting" (see `agent_tasks`, `counting_agents`);
        or a callable, or the path of one ("package.module:name"), that makes an object with PettingZoo's parallel
        interface.
      behaviors: see `AgentsEnv`; None: what the task says, for others one behavior, "agent".
      slots: see `AgentsEnv`; None: what the task says.
      done_condition: "any" or "all", see `AgentsEnv`; None: what the task says, for others "all".
      may_idle: see `AgentsEnv`.
      share_reward: see `AgentsEnv`.
      with_group: see `AgentsEnv`.
      max_episode_steps: see `AgentsEnv`; None or 0: no limit beyond the environment's own.
      gym_env_wrappers: wrap each `AgentsEnv`, in order; those for a single agent, such as `FrameStack`, refuse it.
      env_wrappers: wrap the `BatchedEnvironment`, in order.
      render_mode: "rgb_array" to make `render` work; None to save the cost.
      **env_kwargs: to the environment.

    Returns:
      What `create_environment` calls with a batch size and a seed.

    Raises:
      ValueError: there is no such environment.
    """
    task = _find(environment_name)
    if render_mode is not None:
        env_kwargs["render_mode"] = render_mode
    make = functools.partial(
        _make,
        functools.partial(task.make, **env_kwargs),
        behaviors=task.behaviors if behaviors is None else behaviors,
        slots=task.slots if slots is None else slots,
        done_condition=done_condition or task.done_condition,
        may_idle=may_idle,
        share_reward=share_reward,
        with_group=with_group,
        max_episode_steps=max_episode_steps or None,
    )
    return EnvironmentLoader(make=suite_gym.wrapped_maker(make, gym_env_wrappers), env_wrappers=env_wrappers)


def _make(make: Callable[[], Any], **kwargs: Any) -> AgentsEnv:
    return AgentsEnv(make(), **kwargs)


def _find(name: str | Callable[..., Any]) -> _Task:
    if not isinstance(name, str):
        return _Task(name, done_condition="all")
    if name in _TASKS:
        return _TASKS[name]
    made = named_callable(name)
    if made is None:
        raise ValueError(
            f"There is no task {name!r}: take one of {sorted(_TASKS)}, or 'package.module:name' of what makes an "
            "environment with PettingZoo's parallel interface."
        )
    return _Task(made, done_condition="all")
