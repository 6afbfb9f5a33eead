"""PettingZoo's environments, parallel ones and those of turns; needs the extra `multiagent`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gin

from alf._extras import how_to_install
from alf.environments import suite_agents
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.gin_utils import import_unlocked

# Packages of environments, and the extras that bring them.
_EXTRAS = {"pettingzoo": "multiagent", "mpe2": "mpe"}


@gin.configurable(module="alf.environments.suite_pettingzoo")
def load(environment_name: str | Callable[..., Any], **kwargs: Any) -> EnvironmentLoader:
    """Finds an environment of PettingZoo and tells how to make batches of it; makes none yet.

    Args:
      environment_name: the path of its module ("mpe2.simple_spread_v3", "pettingzoo.classic.tictactoe_v3"), of which
        `parallel_env` is taken, or else `env`; or a callable or the path of one ("package.module:name"). One of turns
        (AEC) is converted by PettingZoo: to a parallel one where it says that this is safe, else so that only the agent
        whose turn it is is observed and acts, while the others are idle.
      **kwargs: as `suite_agents.load` takes them; the rest goes to the environment.

    Returns:
      What `create_environment` calls with a batch size and a seed.

    Raises:
      ValueError: PettingZoo, or the package of the environment, is not installed, or has no such environment.
    """
    _module("pettingzoo")
    return suite_agents.load(functools.partial(_make, _maker(environment_name)), **kwargs)


def _module(name: str) -> Any:
    try:
        return import_unlocked(name)
    except ModuleNotFoundError as error:
        missing, top = error.name or name, name.partition(".")[0]
        if missing.startswith(f"{top}."):
            raise ValueError(
                f"{top} has no environment {name!r}: check the spelling and the version. ({error})"
            ) from error
        missing = missing.partition(".")[0]
        how = how_to_install(_EXTRAS[missing]) if missing in _EXTRAS else f"pip install {missing}."
        raise ValueError(f"{name!r} needs a package that is not installed ({error}): {how}") from error


def _maker(name: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(name, str):
        return name
    path, _, attribute = name.partition(":")
    module = _module(path)
    for found in (attribute,) if attribute else ("parallel_env", "env"):
        if callable(vars(module).get(found)):
            return vars(module)[found]
    raise ValueError(f"{path!r} has no {attribute or 'parallel_env or env'}: name what makes the environment.")


def _make(make: Callable[..., Any], **env_kwargs: Any) -> Any:
    from pettingzoo import AECEnv
    from pettingzoo.utils import conversions

    env = make(**env_kwargs)
    if not isinstance(env, AECEnv):
        return env
    if env.metadata.get("is_parallelizable", False):
        return conversions.aec_to_parallel(env)
    return _Turns(conversions.turn_based_aec_to_parallel(env))


class _Turns:
    """PettingZoo's conversion of an environment of turns, in which only who is next is observed: the others are idle."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.possible_agents = env.possible_agents
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    @property
    def agents(self) -> list[str]:
        """The names of those alive."""
        return self._env.agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Starts a game."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._of_next(observations), infos

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Takes a turn."""
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        ended = {name: value for name, value in observations.items() if terminations[name] or truncations[name]}
        return {**ended, **self._of_next(observations)}, rewards, terminations, truncations, infos

    def _of_next(self, observations: dict[str, Any]) -> dict[str, Any]:
        return {name: observations[name] for name in (self._env.aec_env.agent_selection,) if name in self._env.agents}

    def render(self) -> Any:
        """The picture that the environment gives."""
        return self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()
