"""That no environment is stepped by two who do not know of each other: episodes would be of both, and of neither."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv

# Reentrant: a collection of garbage may close environments wherever it happens.
_LOCK = threading.RLock()
# By the id of an environment, which lives as long as who steps it.
_USERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def begin(env: gymnasium.Env | VectorEnv, user: object) -> None:
    """Says that `user`, which holds `env`, steps it from now on, until `end`.

    Args:
      env: one environment, or a vector of some, below its wrappers.
      user: is forgotten with its last reference.

    Raises:
      ValueError: another does already, or one environment is several rows.
    """
    used = _rows(env)
    if any(id(one) in _USERS for one in used):
        # What nobody holds any more may wait for its collection.
        gc.collect()
    with _LOCK:
        taken = [one for one in used if id(one) in _USERS]
        if taken:
            raise ValueError(
                f"{taken[0]} is stepped already by another environment of alf's, in training, evaluation or elsewhere, and "
                "their episodes would mix: let what makes environments make a new one at each call, or close the other first."
            )
        if len({id(one) for one in used}) < len(used):
            raise ValueError(
                f"Of {len(used)} environments several are the same object, such as {used[0]}, and would step each other's "
                "episodes: let what makes environments make a new one at each call."
            )
        _USERS.update({id(one): user for one in used})


def end(env: gymnasium.Env | VectorEnv, user: object) -> None:
    """Says that `user` steps `env` no more."""
    with _LOCK:
        for one in _rows(env):
            if _USERS.get(id(one)) is user:
                del _USERS[id(one)]


def _rows(env: gymnasium.Env | VectorEnv) -> list[Any]:
    vector = env.unwrapped
    return [row.unwrapped for row in vector.envs] if isinstance(vector, SyncVectorEnv) else [vector]
