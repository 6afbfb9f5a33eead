"""Gymnasium environments by id or by callable: the default `env_load_fn` of `create_environment`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin
import gymnasium

from alf.environments import gym_ids, wrapper_lists
from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.envpool_environment import EnvPoolEnvironment, make_envpool
from alf.environments.gymnasium_environment import VectorEnvironment
from alf.environments.spaces import frames_per_step
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.gin_utils import named_callable


def drop_tf_agents_loader(suite: str) -> None:
    """Takes TF-Agents' loader of an old suite from gin, which would make `@suite.load` ambiguous.

    And what wraps its environments, which is never called: who binds its arguments is to hear of it.
    """
    for name in ("load", "wrap_env"):
        selector = f"tf_agents.environments.{suite}.{name}"
        if selector in gin.config._REGISTRY:
            gin.config._REGISTRY.pop(selector)


drop_tf_agents_loader("suite_gym")


@gin.configurable(module="alf.environments.suite_gym")
def load(
    environment_name: str | Callable[..., Any],
    gym_env_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_wrappers: Sequence[Callable[[BatchedEnvironment], BatchedEnvironment]] = (),
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    num_threads: int | None = None,
    **env_kwargs: Any,
) -> EnvironmentLoader:
    """Finds an environment and tells how to make batches of it; makes none yet.

    Args:
      environment_name: a Gymnasium id ("CartPole-v1", "module:Name-v0"), the path of a callable
        ("package.module:function"), an EnvPool task id (for vectorization "envpool"), or a callable. A callable returns
        a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, an EnvPool or a `BatchedEnvironment`: see
        `EnvironmentLoader`.
      gym_env_wrappers: wrap each `gymnasium.Env`, in order; see `alf.environments.wrappers`.
      env_wrappers: wrap the `BatchedEnvironment`, in order; Gymnasium wrappers go behind those of `gym_env_wrappers`.
      max_episode_steps: truncates episodes after so many decisions of the agent; None keeps what the environment is
        registered with, 0 lifts that.
      render_mode: "rgb_array" to make `render` work; None to save the cost.
      num_threads: of an EnvPool, None for as many as it takes by itself; a callable gets it too, other environments by
        id do not.
      **env_kwargs: to the environment.

    Returns:
      What `create_environment` calls with a batch size and a seed.

    Raises:
      ValueError: `max_episode_steps` is below 0, one of the wrappers is none, or a callable does not take one of `env_kwargs`.
    """
    check_max_episode_steps(max_episode_steps)
    gym_env_wrappers, env_wrappers = wrapper_lists.by_kind(gym_env_wrappers, env_wrappers)
    threads = {} if num_threads is None else {"num_threads": num_threads}
    if render_mode is not None:
        env_kwargs["render_mode"] = render_mode
    user_make = _user_callable(environment_name)
    if user_make is not None:
        if env_kwargs or threads:
            _check_taken(user_make, {**env_kwargs, **threads})
            user_make = functools.partial(user_make, **env_kwargs, **threads)
        if max_episode_steps is not None:
            user_make = wrapped_maker(user_make, (functools.partial(_limited, max_episode_steps),))
        return EnvironmentLoader(make=wrapped_maker(user_make, gym_env_wrappers), env_wrappers=env_wrappers)
    assert isinstance(environment_name, str)
    if max_episode_steps is not None:
        env_kwargs["max_episode_steps"] = max_episode_steps or gym_ids.NO_LIMIT
    make = functools.partial(gym_ids.make, environment_name, disable_env_checker=True, **env_kwargs)
    return EnvironmentLoader(
        make=wrapped_maker(make, gym_env_wrappers),
        make_vector=_vector_maker(environment_name, gym_env_wrappers, env_kwargs),
        make_envpool=functools.partial(_make_envpool, environment_name, gym_env_wrappers, {**env_kwargs, **threads}),
        env_wrappers=env_wrappers,
    )


def _check_taken(make: Callable[..., Any], given: dict[str, Any]) -> None:
    """ValueError where the callable does not take one of the arguments, by its signature."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # Some builtins have none.
        return
    with gym_ids.known_arguments(repr(make), given):
        signature.bind_partial(**given)


def check_max_episode_steps(max_episode_steps: int | None) -> None:
    """ValueError for a limit below 0."""
    if max_episode_steps is not None and max_episode_steps < 0:
        raise ValueError(f"max_episode_steps={max_episode_steps} must be at least 0, which lifts the limit.")


def _limited(max_episode_steps: int, env: gymnasium.Env) -> gymnasium.Env:
    """`env` with this time limit in the place of its own, or with none where it is 0.

    Raises:
      ValueError: another wrapper is around its own limit, which is a shorter one.
    """
    if isinstance(env, gymnasium.wrappers.TimeLimit):
        env = env.env
    for below in _limits_below(env):
        if not 0 < max_episode_steps <= below._max_episode_steps:
            raise ValueError(_why_not_lifted(f"max_episode_steps={max_episode_steps}", below, env))
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps) if max_episode_steps else env


def _limits_below(env: gymnasium.Env) -> Iterator[gymnasium.wrappers.TimeLimit]:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            yield env
        env = env.env


def _why_not_lifted(limit: str, below: gymnasium.wrappers.TimeLimit, env: gymnasium.Env) -> str:
    return (
        f"{limit} cannot lift the limit of {below._max_episode_steps} steps below the wrapper {type(env).__name__}: have "
        "the callable make its environment without a TimeLimit."
    )


def _user_callable(name: str | Callable[..., Any]) -> Callable[..., Any] | None:
    """`name` itself or what "package.module:name" names; None where it is an id, or a module that registers one."""
    return named_callable(name) if isinstance(name, str) else name


def wrapped_maker(
    make: Callable[..., Any], wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]]
) -> Callable[..., gymnasium.Env]:
    """`make` with every environment wrapped, in order.

    Raises:
      ValueError: one of `wrappers` is none; or, when what is returned is called, there is no `gymnasium.Env` to wrap.
    """
    wrapper_lists.check(wrapper_lists.SINGLE, wrappers)

    @functools.wraps(make, assigned=("__doc__",), updated=())
    def make_wrapped(*args: Any, **kwargs: Any) -> gymnasium.Env:
        env = make(*args, **kwargs)
        if wrappers and not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"max_episode_steps and gym_env_wrappers are for a gymnasium.Env; got {type(env).__name__}: apply them "
                "inside it."
            )
        return _wrap(env, wrappers)

    return make_wrapped


def _wrap(env: gymnasium.Env, wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]]) -> gymnasium.Env:
    """`env` in wrappers; those that skip frames come below the time limit, which counts the agent's decisions.

    Raises:
      ValueError: a limit that stays below them is a shorter one.
    """
    wrapped, skips = env, 0
    for number, wrapper in enumerate(wrappers, 1):
        before = frames_per_step(wrapped)
        wrapped = wrapper_lists.wrap(wrapper_lists.SINGLE, wrapped, [wrapper])
        skips = number if frames_per_step(wrapped) != before else skips
    if not skips:
        return wrapped
    env, limit = _without_limit(env)
    if limit is None:
        return wrapped
    skipping = wrapper_lists.wrap(wrapper_lists.SINGLE, env, wrappers[:skips])
    for below in _limits_below(env):
        if limit * frames_per_step(skipping) > below._max_episode_steps * frames_per_step(below):
            raise ValueError(_why_not_lifted(f"A limit of {limit} decisions", below, env))
    limited: gymnasium.Env = gymnasium.wrappers.TimeLimit(skipping, limit)
    return wrapper_lists.wrap(wrapper_lists.SINGLE, limited, wrappers[skips:])


def _without_limit(env: gymnasium.Env) -> tuple[gymnasium.Env, int | None]:
    """`env` without its own time limit, or that of its id, which other wrappers of the id may be around; and the limit."""
    if isinstance(env, gymnasium.wrappers.TimeLimit):
        inside, limit = _without_limit(env.env)
        return inside, env._max_episode_steps if limit is None else min(limit, env._max_episode_steps)
    above = env
    while env.spec is not None and isinstance(above, gymnasium.Wrapper):
        below = above.env
        if isinstance(below, gymnasium.wrappers.TimeLimit) and frames_per_step(below) == frames_per_step(env):
            above.env = below.env
            return env, below._max_episode_steps
        above = below
    return env, None


def _vector_maker(
    name: str, gym_env_wrappers: Sequence[Any], env_kwargs: dict[str, Any]
) -> Callable[[int, list[int]], BatchedEnvironment] | None:
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers or gym_env_wrappers:
        return None
    if spec.namespace == "ALE":  # Another environment than the single one: it preprocesses. `suite_atari` has it.
        return None

    def make_vector(size: int, seeds: list[int]) -> BatchedEnvironment:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        with gym_ids.known_arguments(name, env_kwargs):
            env = gymnasium.make_vec(name, num_envs=size, vectorization_mode=mode, **env_kwargs)
        return VectorEnvironment(env, seeds)

    return make_vector


def _make_envpool(
    name: str, gym_env_wrappers: Sequence[Any], env_kwargs: dict[str, Any], size: int, seeds: list[int]
) -> EnvPoolEnvironment:
    if gym_env_wrappers:
        raise ValueError('gym_env_wrappers cannot wrap what vectorization="envpool" makes: leave them out.')
    return make_envpool(name, size, seeds, **env_kwargs)
