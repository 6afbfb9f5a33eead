"""That no environment is stepped by two who do not know of each other: episodes would be of both, and of neither."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv

_LOCK = threading.Lock()
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
    vector = env.unwrapped
    used = [row.unwrapped for row in vector.envs] if isinstance(vector, SyncVectorEnv) else [vector]
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


def end(user: object) -> None:
    """Says that `user` steps nothing any more."""
    with _LOCK:
        for key in [key for key, one in _USERS.items() if one is user]:
            del _USERS[key]
