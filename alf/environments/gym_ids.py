"""Gymnasium environments by id: made, or explained why not."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import gymnasium

from alf._extras import how_to_install


class _Package(NamedTuple):
    """A package whose import registers the ids that match a pattern, for certain or perhaps, and what installs it."""

    ids: str
    module: str
    install: str
    certain: bool = True


_PACKAGES = (
    _Package(r"ALE/|\w+(NoFrameskip|Deterministic)-v\d+$|\w+-ram-v\d+$", "ale_py", how_to_install("atari")),
    _Package(r"(MiniGrid|BabyAI)-", "minigrid", how_to_install("minigrid")),
    _Package(r"\w+BulletEnv-", "pybullet_envs_gymnasium", "pip install pybullet_envs_gymnasium."),
    # Such as Breakout-v4; most ids of this form are others'.
    _Package(r"[A-Z]\w+-v[04]$", "ale_py", how_to_install("atari"), certain=False),
)
# Of an episode, for what knows no other way to say that there is none.
NO_LIMIT = 2**31 - 1

# ALE ends its games by this argument, in frames, and ids of its games have one.
_FRAMES = "max_num_frames_per_episode"

# What the loaders of ALF's earlier releases took.
_EARLIER = {
    "discount": " Rewards are discounted by the algorithm: bind its gamma, such as ActorCriticLoss.gamma.",
    "gym_kwargs": " Bind what was in it by its own name, suite_gym.load.NAME.",
    "spec_dtype_map": " Specs have the dtypes of the spaces; an observation_transformer makes others of them.",
}
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")

_EXTRAS = {"ale_py": "atari", "box2d": "box2d", "mujoco": "mujoco"}


@contextlib.contextmanager
def known_arguments(what: str, given: Collection[str]) -> Iterator[None]:
    """ValueError where the environment called `what`, made in the block, does not take one of the arguments `given`."""
    try:
        yield
    except TypeError as error:
        unknown = _UNEXPECTED.search(str(error))
        if unknown is None or unknown[1] not in given:
            raise
        name = unknown[1]
        raise ValueError(
            f"{what} takes no argument {name!r}: take suite_gym.load.{name} out.{_EARLIER.get(name, '')}"
        ) from error


def make(environment_name: str, **kwargs: Any) -> gymnasium.Env:
    """`gymnasium.make`, after the import of the package that registers the id where alf knows it.

    Args:
      environment_name: an id, such as "CartPole-v1", "ALE/Pong-v5" or "MiniGrid-Empty-5x5-v0".
      **kwargs: as `gymnasium.make` takes them; `max_episode_steps` takes the place of the id's limit in frames, too.

    Raises:
      ValueError: there is no such environment (any more), its package is not installed, or it does not take one of `kwargs`;
        the message names what to do.
    """
    register(environment_name)
    try:
        with known_arguments(environment_name, kwargs):
            env = gymnasium.make(environment_name, **kwargs)
        if kwargs.get("max_episode_steps") and _FRAMES not in kwargs and env.spec and _FRAMES in env.spec.kwargs:
            env.close()
            env = gymnasium.make(environment_name, **{**kwargs, _FRAMES: NO_LIMIT})
        return env
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(_explain(environment_name, error)) from error


def register(environment_name: str) -> None:
    """Imports the package that registers an id with Gymnasium, where alf knows it and it is installed."""
    package = _package(environment_name)
    if environment_name not in gymnasium.registry and package and importlib.util.find_spec(package.module):
        importlib.import_module(package.module)


def _package(name: str) -> _Package | None:
    return next((package for package in _PACKAGES if re.match(package.ids, name)), None)


def _explain(name: str, error: Exception) -> str:
    """One sentence on why Gymnasium has no such environment, and what to do."""
    newer = _newer(name)
    if newer and isinstance(error, gymnasium.error.VersionNotFound):
        return f"Gymnasium has no {name!r}: the newest is {newer}."
    # The old MuJoCo environments are registered still, and raise a plain ImportError.
    if newer and not isinstance(error, gymnasium.error.DependencyNotInstalled):
        return f"Gymnasium has no {name!r} any more: use {newer}."
    if isinstance(error, (gymnasium.error.DependencyNotInstalled, ImportError)):
        extra = next((extra for word, extra in _EXTRAS.items() if word in str(error).lower()), None)
        how = f": {how_to_install(extra)}" if extra else "."
        return f"{name!r} needs a package that is not installed ({error}){how}"
    package = _package(name)
    if package is not None and package.certain and not importlib.util.find_spec(package.module):
        return f"{name!r} needs a package that is not installed: {package.install}"
    module, colon, _ = name.partition(":")
    if colon and isinstance(error, gymnasium.error.Error):
        return f"{module} has no function of this name, and registers no such environment: {name!r}. ({error})"
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        path, dot, attribute = name.rpartition(".")
        if dot and _is_module(path):
            return f"Gymnasium knows no environment {name!r}: write '{path}:{attribute}' for {attribute} of the module {path}."
        return (
            f"Gymnasium knows no environment {name!r}: check the spelling, or write 'module:{name}' to import the module "
            f"that registers it. ({error})"
        )
    return f"Gymnasium cannot make {name!r}: {error}"


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    # Of a package that is none, or a name that cannot be one.
    except (ImportError, ValueError):
        return False


def _newer(name: str) -> str | None:
    """The ids that took the place of an id: of the same name the newest, and that of today's Atari games."""
    try:
        namespace, base, version = gymnasium.envs.registration.parse_env_id(name.rpartition(":")[2])
    except gymnasium.error.Error:
        return None
    game = f"ALE/{re.sub('(NoFrameskip|Deterministic|-ram)+$', '', base)}-v5"
    same = [spec for spec in gymnasium.registry.values() if (spec.namespace, spec.name) == (namespace, base)]
    newest = max(same, key=lambda spec: spec.version or 0).id if same else None
    ids = [found for found in dict.fromkeys((newest, game)) if found in gymnasium.registry and found != name]
    return " or ".join(map(repr, ids)) if version is not None and ids else None
