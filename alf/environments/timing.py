"""How long steps of environments take, in each way to vectorise them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from alf.environments.batched_environment import BatchedEnvironment
from alf.environments.gymnasium_environment import close_quietly
from alf.environments.random_actions import mask_for, sample_actions
from alf.environments.vectorization import EnvironmentLoader
from alf.utils.exits import no_exit

_WARM_UP_STEPS = 3
_ACTIONS = 16


class Measurement(NamedTuple):
    """Seconds that a step of a batch of `batch_size` took, vectorised as `kind`, on average; `problem`: it could not."""

    kind: str
    batch_size: int
    secs: float = 0.0
    problem: str | None = None

    @property
    def rate(self) -> float:
        """Steps of single environments in a second."""
        return self.batch_size / self.secs if self.secs else 0.0


@no_exit("The environment")
def step_secs(env: BatchedEnvironment, seconds: float) -> float:
    """Mean time of a step of `env` with random actions, resets of ended rows included.

    Where observations say which actions are allowed, each action is drawn when its turn comes, in that time too.

    Args:
      env: stays the caller's.
      seconds: how long to measure; at least one step is taken.

    Raises:
      RuntimeError: the environment asked the program to end.
    """
    rng, spec, size = np.random.default_rng(0), env.action_spec(), env.batch_size
    drawn = [sample_actions(spec, size, rng) for _ in range(_ACTIONS)]
    observation = env.reset().observation
    masked = mask_for(spec, size, observation) is not None
    steps, began = -_WARM_UP_STEPS, 0.0
    while steps < 1 or time.perf_counter() - began < seconds:
        if steps == 0:
            began = time.perf_counter()
        action = sample_actions(spec, size, rng, observation) if masked else drawn[steps % _ACTIONS]
        observation = env.step(action).observation
        steps += 1
    return (time.perf_counter() - began) / steps


def measure(loader: EnvironmentLoader, kind: str, batch_size: int, seconds: float = 0.3) -> Measurement:
    """Measures one way to vectorise; a kind that the environment does not have is a problem, not an error."""
    try:
        env = loader(batch_size, 0, kind)
    # Vectorising may fail by what is not installed, by what cannot be pickled, or inside a user's code.
    except Exception as e:
        return Measurement(kind, batch_size, problem=str(e).splitlines()[0] if str(e) else type(e).__name__)
    try:
        return Measurement(kind, batch_size, step_secs(env, seconds))
    except Exception as e:
        return Measurement(kind, batch_size, problem=f"{type(e).__name__}: {e}")
    finally:
        close_quietly(env)


def thread_gain(build: Callable[[], BatchedEnvironment], seconds: float = 0.3) -> float:
    """How much faster two threads step two environments than one thread steps one: 1 where Python's lock is held."""
    envs = [build() for _ in range(2)]
    try:
        alone = step_secs(envs[0], seconds)
        together = [0.0, 0.0]

        def work(i: int) -> None:
            together[i] = step_secs(envs[i], seconds)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for env in envs:
            close_quietly(env)
    return sum(alone / secs for secs in together if secs)
