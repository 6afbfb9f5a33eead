"""Environments that workers make by name."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from alf.environments import BatchedEnvironment, create_environment
from alf.environments.batch_wrappers import BatchWrapper
from alf.environments.testing import CountingEnvironment
from tests.drivers.counting import LENGTHS, TERMINATE

MODULE = "tests.distributed.environment_makers"

# The streams of a life are numbered from here on times its number.
LIFE_STREAMS = 1000
HANG_SECS = 60.0


def counting(number: int, life: int, num_envs: int, batch_size: int) -> list[BatchedEnvironment]:
    """Streams are those of the worker's place among all workers, and of its life."""
    first = life * LIFE_STREAMS + number * num_envs * batch_size
    return [CountingEnvironment(batch_size, first + i * batch_size, LENGTHS, TERMINATE) for i in range(num_envs)]


def cart_pole(number: int, life: int, num_envs: int, batch_size: int) -> list[BatchedEnvironment]:
    seeds = np.random.SeedSequence(7, spawn_key=(number, life)).spawn(num_envs)
    return [create_environment("CartPole-v1", num_parallel_environments=batch_size, seed=seed) for seed in seeds]


class NestedEnvironment(BatchedEnvironment):
    """Observations and actions of many parts, which tell of each other; episodes of four steps."""

    def __init__(self, batch_size: int, offset: int) -> None:
        super().__init__()
        self._size, self._offset, self._time = batch_size, offset, 0

    @property
    def batch_size(self) -> int:
        return self._size

    @property
    def frames_per_step(self) -> int:
        return 4

    def observation_spec(self) -> Any:
        return {
            "z": array_spec.ArraySpec((2,), np.float32, "z"),
            "a": (array_spec.BoundedArraySpec((), np.int64, -1, 99, "a0"), array_spec.ArraySpec((3, 1), np.uint8)),
        }

    def action_spec(self) -> Any:
        return {
            "turn": array_spec.BoundedArraySpec((2,), np.float32, [-1, -2], [1, 2]),
            "jump": array_spec.BoundedArraySpec((), np.int64, 0, 3),
        }

    def _reset(self) -> ts.TimeStep:
        self._time = 0
        return self._seen(np.zeros((self._size, 2), np.float32), np.full(self._size, -1))

    def _step(self, action: Any) -> ts.TimeStep:
        self._time = (self._time + 1) % 5
        return self._seen(action["turn"], action["jump"])

    def _seen(self, turn: np.ndarray, jump: np.ndarray) -> ts.TimeStep:
        rows = np.arange(self._size) + self._offset
        pixels = np.broadcast_to((rows + self._time)[:, None, None], (self._size, 3, 1)).astype(np.uint8)
        step_type = {0: ts.StepType.FIRST, 4: ts.StepType.LAST}.get(self._time, ts.StepType.MID)
        return ts.TimeStep(
            np.full(self._size, step_type, np.int32),
            (rows + turn[:, 0]).astype(np.float32),
            np.ones(self._size, np.float32),
            {"z": np.array(turn, np.float32), "a": (np.asarray(jump, np.int64), pixels)},
        )


def nested(number: int, life: int, num_envs: int, batch_size: int) -> list[BatchedEnvironment]:
    return [NestedEnvironment(batch_size, 10 * (number * num_envs + i)) for i in range(num_envs)]


class Script:
    """What the environments of one test do, and what became of them; workers are threads of this process.

    Attributes:
      told: (worker, life, environment, what was called) in order.
      fail_making: (worker, life) whose environments cannot be made.
      hang_making: of these it takes long.
      fail_at, hang_at: (worker, life, environment, number of the step).
      num_envs: how many each worker makes; None for as many as it should.
      sizes: batch sizes of lives that have another one.
      restarts: how often an environment says it was rebuilt.
      nonfinite: how often it says it was cut for values that are not finite.
      let_go: ends all that hangs.
    """

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int, str]] = []
        self.fail_making: set[tuple[int, int]] = set()
        self.hang_making: set[tuple[int, int]] = set()
        self.fail_at: set[tuple[int, int, int, int]] = set()
        self.hang_at: set[tuple[int, int, int, int]] = set()
        self.num_envs: int | None = None
        self.sizes: dict[tuple[int, int], int] = {}
        self.restarts = 0
        self.nonfinite = 0
        self.hanging = threading.Event()
        self.let_go = threading.Event()

    def hang(self) -> None:
        self.hanging.set()
        self.let_go.wait(HANG_SECS)


SCRIPTS: list[Script] = []


class Boom(Exception):
    """What scripted environments raise."""


class ScriptedEnvironment(BatchWrapper):
    def __init__(self, env: BatchedEnvironment, script: Script, place: tuple[int, int, int]) -> None:
        super().__init__(env)
        self._script, self._place, self._steps = script, place, 0

    def _tell(self, what: str) -> None:
        self._script.told.append((*self._place, what))

    @property
    def restarts(self) -> int:
        return self._script.restarts

    @property
    def cuts(self) -> int:
        return self._script.restarts + self._script.nonfinite

    def before_building(self) -> None:
        self._tell("before_building")

    def after_building(self) -> None:
        self._tell("after_building")

    def enter_phase(self, phase: str) -> None:
        self._tell(phase)

    def _reset(self) -> ts.TimeStep:
        self._tell("reset")
        return super()._reset()

    def _step(self, action: Any) -> ts.TimeStep:
        at = (*self._place, self._steps)
        self._steps += 1
        if at in self._script.fail_at:
            raise Boom(f"at {at}")
        if at in self._script.hang_at:
            self._script.hang()
        return super()._step(action)

    def close(self) -> None:
        self._tell("close")


def scripted(number: int, life: int, num_envs: int, batch_size: int) -> list[BatchedEnvironment]:
    """The counting environments, as the newest script has it."""
    script = SCRIPTS[-1]
    if (number, life) in script.hang_making:
        script.hang()
    if (number, life) in script.fail_making:
        raise Boom(f"worker {number} has no environments at 0x7f{life:02x}")
    size = script.sizes.get((number, life), batch_size)
    made = counting(number, life, script.num_envs or num_envs, size)
    return [ScriptedEnvironment(env, script, (number, life, i)) for i, env in enumerate(made)]
