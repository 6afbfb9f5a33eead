"""Simulators that speak the Python interface of Unity's ML-Agents: decision steps, terminal steps, numbered agents."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import gymnasium
import numpy as np

from alf.environments import suite_gym
from alf.environments.agents_env import AgentsEnv
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.decision_steps import DecisionSteps
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.gin_utils import named_callable

EDITOR = "editor"


@gin.configurable(module="alf.environments.suite_mlagents")
def load(
    environment_name: str | Callable[..., Any],
    behaviors: Mapping[str, str] | None = None,
    slots: Mapping[str, int] | None = None,
    action_masks: str = "refuse",
    share_reward: bool = False,
    with_group: bool = False,
    max_episode_steps: int | None = None,
    gym_env_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """Finds a simulator and tells how to make batches of it; starts none yet.

    Args:
      environment_name: the file of a simulator, "editor" for Unity's editor, both of which need the package
        `mlagents_envs`; or a callable, or the path of one ("package.module:name"), that makes an object with the
        interface of `mlagents_envs.base_env.BaseEnv`, from that package or not.
      behaviors: from names that the simulator has ("Striker?team=0"), or patterns of them, to those of behaviors; None,
        and where none fits: the name without the team, so that teams share a behavior.
      slots: how many agents of a behavior may be alive at a time; where nothing is said, as many as decide after the first
        reset. Twice as many save the steps that only show ends, where agents end and others begin at once.
      action_masks: see `DecisionSteps`.
      share_reward: see `AgentsEnv`.
      with_group: see `AgentsEnv`.
      max_episode_steps: see `AgentsEnv`. A simulator's own episode ends when no agent has asked for a decision for long;
        it is reset then, and at no other time.
      gym_env_wrappers: wrap each `AgentsEnv`, in order; those for a single agent, such as `FrameStack`, refuse it.
      env_wrappers: wrap the `BatchedEnvironment`, in order.
      **env_kwargs: to the simulator's class. Each simulator gets a free port, and a seed of its own unless `seed` is given:
        it takes none at a reset.

    Returns:
      What `create_environment` calls with a batch size and a seed.

    Raises:
      ValueError: `mlagents_envs` is needed and not installed, or there is no such callable.
    """
    make = functools.partial(
        _make,
        functools.partial(_maker(environment_name), **env_kwargs),
        behaviors or {},
        slots or {},
        action_masks,
        share_reward=share_reward,
        with_group=with_group,
        max_episode_steps=max_episode_steps or None,
    )
    return EnvironmentLoader(make=suite_gym.wrapped_maker(make, gym_env_wrappers), env_wrappers=env_wrappers)


def _make(
    make: Callable[[], Any], names: Mapping[str, str], slots: Mapping[str, int], action_masks: str, **kwargs: Any
) -> AgentsEnv:
    env = make()
    try:
        steps = DecisionSteps(env, names, action_masks)
        return AgentsEnv(steps, steps.patterns, {**steps.first_counts, **slots}, **kwargs)
    except BaseException:
        env.close()
        raise


def _maker(name: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(name, str):
        return name
    path, _, attribute = name.partition(":")
    if attribute:
        made = named_callable(name)
        if made is None:
            raise ValueError(f"{path!r} has no {attribute!r} to call: name what makes the simulator.")
        return made
    try:
        from mlagents_envs.environment import UnityEnvironment
    # Its messages, made for an old protobuf, raise TypeError beside a new one.
    except (ImportError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"The simulator {name!r} needs the package mlagents_envs, which cannot be imported ({why}): install it, with "
            "the protobuf that it asks for, or give a callable that makes an object with its interface BaseEnv."
        ) from error
    return functools.partial(_launch, UnityEnvironment, None if name == EDITOR else name)


def _launch(unity: Callable[..., Any], file_name: str | None, **kwargs: Any) -> Any:
    kwargs.setdefault("seed", int(np.random.SeedSequence().generate_state(1)[0] >> 1))
    if file_name is not None and not kwargs.keys() & {"base_port", "worker_id"}:
        kwargs["base_port"] = _free_port()
    return unity(file_name=file_name, **kwargs)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
