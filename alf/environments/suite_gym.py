"""Gymnasium environments by id or by callable: the default `env_load_fn` of `create_environment`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gin
import gymnasium

from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.envpool_environment import EnvPoolEnvironment, make_envpool
from alf.environments.vectorization import EnvironmentLoader

_NO_LIMIT = 2**31 - 1
_EXTRAS = {"ale_py": "atari", "box2d": "box2d", "Box2D": "box2d", "mujoco": "mujoco", "MuJoCo": "mujoco"}


# TF-Agents registers the loader of its old gym suite under the same short name, which would make
# `@suite_gym.load` ambiguous.
if (_OLD_LOADER := "tf_agents.environments.suite_gym.load") in gin.config._REGISTRY:
    gin.config._REGISTRY.pop(_OLD_LOADER)


@gin.configurable(module="alf.environments.suite_gym")
def load(
    environment_name: str | Callable[..., Any],
    gym_env_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """Finds an environment and tells how to make batches of it; makes none yet.

    Args:
      environment_name: a Gymnasium id ("CartPole-v1", "module:Name-v0"), the path of a callable
        ("package.module:function"), an EnvPool task id (for vectorization "envpool"), or a callable. A callable returns
        a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, an EnvPool or a `BatchedEnvironment`: see
        `EnvironmentLoader`.
      gym_env_wrappers: wrap each `gymnasium.Env`, in order.
      env_wrappers: wrap the `BatchedEnvironment`, in order.
      max_episode_steps: truncates episodes; None keeps what the environment is registered with, 0 lifts that.
      render_mode: "rgb_array" to make `render` work; None to save the cost.
      **env_kwargs: to the environment.

    Returns:
      What `create_environment` calls with a batch size and a seed.
    """
    if render_mode is not None:
        env_kwargs["render_mode"] = render_mode
    user_make = _user_callable(environment_name)
    if user_make is not None:
        if env_kwargs:
            user_make = functools.partial(user_make, **env_kwargs)
        wrappers = (*_time_limit(max_episode_steps), *gym_env_wrappers)
        return EnvironmentLoader(make=_wrapped(user_make, wrappers), env_wrappers=env_wrappers)
    assert isinstance(environment_name, str)
    if max_episode_steps is not None:
        env_kwargs["max_episode_steps"] = max_episode_steps or _NO_LIMIT
    make = functools.partial(_make, environment_name, disable_env_checker=True, **env_kwargs)
    return EnvironmentLoader(
        make=_wrapped(make, gym_env_wrappers),
        make_vector=_vector_maker(environment_name, gym_env_wrappers, env_kwargs),
        make_envpool=functools.partial(_make_envpool, environment_name, gym_env_wrappers, env_kwargs),
        env_wrappers=env_wrappers,
    )


def _user_callable(name: str | Callable[..., Any]) -> Callable[..., Any] | None:
    """`name` itself or what "package.module:name" names; None where it is an id, or a module that registers one."""
    if not isinstance(name, str):
        return name
    module_name, _, attribute = name.partition(":")
    if not attribute:
        return None
    made = getattr(importlib.import_module(module_name), attribute, None)
    return made if callable(made) else None


def _time_limit(max_episode_steps: int | None) -> tuple[Callable[[gymnasium.Env], gymnasium.Env], ...]:
    if not max_episode_steps:
        return ()
    return (functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=max_episode_steps),)


def _wrapped(
    make: Callable[..., Any], wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]]
) -> Callable[..., gymnasium.Env]:
    @functools.wraps(make, assigned=("__doc__",), updated=())
    def make_wrapped(*args: Any, **kwargs: Any) -> gymnasium.Env:
        env = make(*args, **kwargs)
        if wrappers and not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"max_episode_steps and gym_env_wrappers are for a gymnasium.Env; got {type(env).__name__}: apply them "
                "inside it."
            )
        for wrap in wrappers:
            env = wrap(env)
        return env

    return make_wrapped


def _make(environment_name: str, **kwargs: Any) -> gymnasium.Env:
    try:
        return gymnasium.make(environment_name, **kwargs)
    except gymnasium.error.Error as error:
        raise ValueError(_explain(environment_name, error)) from error


def _vector_maker(
    name: str, gym_env_wrappers: Sequence[Any], env_kwargs: dict[str, Any]
) -> Callable[[int], gymnasium.vector.VectorEnv] | None:
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers or gym_env_wrappers:
        return None
    return lambda size: gymnasium.make_vec(name, num_envs=size, vectorization_mode="vector_entry_point", **env_kwargs)


def _make_envpool(
    name: str, gym_env_wrappers: Sequence[Any], env_kwargs: dict[str, Any], size: int, seeds: list[int]
) -> EnvPoolEnvironment:
    if gym_env_wrappers:
        raise ValueError('gym_env_wrappers cannot wrap what vectorization="envpool" makes: leave them out.')
    return make_envpool(name, size, seeds, **env_kwargs)


def _explain(name: str, error: Exception) -> str:
    """One sentence on why Gymnasium has no such environment, and what to do."""
    if isinstance(error, (gymnasium.error.DeprecatedEnv, gymnasium.error.VersionNotFound)):
        newest = _newest_version(name)
        if newest:
            return f"Gymnasium has no {name!r} any more: use {newest!r}."
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        extra = next((extra for word, extra in _EXTRAS.items() if word in str(error)), None)
        how = f' pip install "alf[{extra}]".' if extra else ""
        return f"{name!r} needs a package that is not installed:{how} ({error})"
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return (
            f"Gymnasium knows no environment {name!r}: check the spelling, write 'module:{name}' to import the module "
            f'that registers it, or install its package, such as pip install "alf[atari]". ({error})'
        )
    return f"Gymnasium cannot make {name!r}: {error}"


def _newest_version(name: str) -> str | None:
    namespace, base, _ = gymnasium.envs.registration.parse_env_id(name.rpartition(":")[2])
    same = [spec for spec in gymnasium.registry.values() if (spec.namespace, spec.name) == (namespace, base)]
    return max(same, key=lambda spec: spec.version or 0).id if same else None
