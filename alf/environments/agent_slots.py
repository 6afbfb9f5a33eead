"""The slots of one behavior: arrays into which agents write their steps, as `agents.py` lays them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from tf_agents.trajectories.time_step import StepType

from alf.environments import agents
from alf.environments.spaces import fitting

Nest = Any

# What an agent observes where it is shown its group: its own observation, all of the behavior's, and who of them lives.
OWN, GROUP, ALIVE = "own", "group", "alive"


class AgentSlots:
    """K slots, and which agent is in which.

    A frame is what the environment shows at once. `begin_frame` makes every slot IDLE and frees those whose agent has
    ended; `first`, `mid` and `last` write what an agent sees; `observation` hands it out. Rewards are held by `earn`
    until their agent's next `mid` or `last`.
    """

    def __init__(
        self,
        behavior: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        count: int,
        names: Sequence[str] = (),
        may_idle: bool = True,
        with_group: bool = False,
    ) -> None:
        """Makes empty slots.

        Args:
          behavior: the name of the behavior.
          observation_space: what one agent observes.
          action_space: what one agent does.
          count: K.
          names: the agents that own the slots, in order, K of them; none: each new agent takes the first free slot.
          may_idle: whether a slot may ever be IDLE.
          with_group: agents observe {"own", "group" [K, ...], "alive" float32 [K]}: all agents of the behavior by their
            slots, with zeros where none lives.

        Raises:
          ValueError: a space that agents cannot have, or no slots.
        """
        if count < 1:
            raise ValueError(f"Behavior {behavior!r} has {count} slots for agents: give it at least one.")
        self.behavior = behavior
        self.count = count
        self.names = list(names)
        self.may_idle = may_idle
        self._with_group = with_group
        self._own_space = observation_space
        # An assignment to an array of whole numbers cuts off or wraps around what these cannot hold.
        self._fit = fitting(observation_space)
        self.space = agents.agents_space(self._shown_space(observation_space), count, may_idle)
        self.action_space = agents.stacked_space(action_space, count)
        self._step_type = np.zeros(count, np.int32)
        self._discount = np.ones(count, np.float32)
        self._reward = np.zeros(count, np.float32)
        self.clear()

    def _shown_space(self, own: spaces.Space) -> spaces.Space:
        if not self._with_group:
            return own
        alive = spaces.Box(0.0, 1.0, (self.count,), np.float32)
        return spaces.Dict({OWN: own, GROUP: agents.stacked_space(own, self.count), ALIVE: alive})

    def clear(self) -> None:
        """Forgets all agents, as at the begin of an episode."""
        self.open: dict[str, int] = {}
        self._held = np.zeros(self.count)
        self._values: Nest = create_empty_array(self._own_space, self.count, fn=np.zeros)
        self._occupied = np.zeros(self.count, bool)
        self._alive = np.zeros(self.count, np.float32)
        self.begin_frame()

    def begin_frame(self) -> None:
        """Nobody has seen anything yet; slots of agents that ended are free."""
        self._step_type[:] = agents.IDLE
        self._discount[:] = 1.0
        self._reward[:] = 0.0
        self._occupied[:] = False
        for slot in self.open.values():
            self._occupied[slot] = True

    # ---- what agents see ----

    def earn(self, name: str, reward: float) -> None:
        """Holds a reward for an agent's next step."""
        self._held[self.open[name]] += reward

    def has_room(self, newcomers: Sequence[str]) -> bool:
        """Whether all of these can begin in this frame.

        Raises:
          ValueError: they cannot in the next one either.
        """
        if self.names:
            for name in newcomers:
                if name not in self.names:
                    raise ValueError(
                        f"Agent {name!r} appeared, which is none of the {self.count} of behavior {self.behavior!r} "
                        f"({', '.join(self.names)}): name it in possible_agents, or give slots={{{self.behavior!r}: K}}."
                    )
            return not any(self._occupied[self.names.index(name)] for name in newcomers)
        if len(self.open) + len(newcomers) > self.count:
            raise ValueError(
                f"Behavior {self.behavior!r} has {self.count} slots for agents, and {len(self.open) + len(newcomers)} "
                f"agents are alive: raise slots={{{self.behavior!r}: {self.count}}}."
            )
        return len(newcomers) <= self.count - int(self._occupied.sum())

    def first(self, name: str, observation: Any) -> None:
        """An agent begins."""
        slot = self.names.index(name) if self.names else int(np.flatnonzero(~self._occupied)[0])
        self.open[name] = slot
        self._occupied[slot] = True
        self._alive[slot] = 1.0
        self._write(name, slot, observation)
        self._step_type[slot] = StepType.FIRST

    def mid(self, name: str, observation: Any) -> None:
        """An agent sees what its last action has led to, and decides."""
        slot = self.open[name]
        self._write(name, slot, observation)
        self._respond(slot, StepType.MID)

    def last(self, name: str, observation: Any, discount: float) -> None:
        """An agent ends.

        Args:
          name: of the agent, which has begun.
          observation: its last one; None where it is not observed any more: the one before stands for it.
          discount: 0 where it terminated, 1 where it was truncated.
        """
        slot = self.open.pop(name)
        if observation is not None:
            self._write(name, slot, observation)
        self._respond(slot, StepType.LAST)
        self._discount[slot] = discount
        self._alive[slot] = discount

    def _respond(self, slot: int, step_type: int) -> None:
        self._step_type[slot] = step_type
        self._reward[slot] = self._held[slot]
        self._held[slot] = 0.0

    def _write(self, name: str, slot: int, observation: Any) -> None:
        try:
            _write_row(self._values, slot, self._fit(observation))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"The observation of agent {name!r} of behavior {self.behavior!r} is not what its space says, which is "
                f"{self._own_space}: {error!r}."
            ) from error

    # ---- what the environment hands out ----

    def observation(self) -> dict[str, Any]:
        """The frame: fresh arrays, as in `space`.

        Raises:
          ValueError: a slot is IDLE although `may_idle` is False.
        """
        if not self.may_idle and (self._step_type == agents.IDLE).any():
            slot = int(np.flatnonzero(self._step_type == agents.IDLE)[0])
            raise ValueError(
                f"Agent {self.names[slot]!r} of behavior {self.behavior!r} was not observed, though no slot of it may be "
                'idle, which done_condition="any" says of fixed agents: set may_idle=True, or done_condition="all".'
            )
        idle = self._step_type == agents.IDLE
        return {
            agents.STEP_TYPE: self._step_type.copy(),
            agents.REWARD: self._reward.copy(),
            agents.DISCOUNT: self._discount.copy(),
            agents.OBSERVATION: self._grouped() if self._with_group else _picked(self._values, idle),
        }

    def _grouped(self) -> dict[str, Any]:
        idle = self._step_type == agents.IDLE
        # Who has ended before this frame left its values in its slot.
        self._alive[~self._occupied] = 0.0
        group = _picked(self._values, self._alive == 0.0)
        return {
            OWN: _picked(self._values, idle),
            GROUP: _repeated(group, self.count),
            ALIVE: np.repeat(self._alive[np.newaxis], self.count, axis=0),
        }

    @property
    def reward(self) -> float:
        """The sum of the frame's rewards."""
        return float(self._reward.sum())

    @property
    def ended(self) -> np.ndarray:
        """The discounts of those that end in the frame."""
        return self._discount[self._step_type == StepType.LAST]

    def acting(self) -> dict[str, int]:
        """The agents that decide by what the frame shows, and their slots."""
        return {name: slot for name, slot in self.open.items() if self._step_type[slot] <= StepType.MID}


def row(nest: Nest, index: int) -> Nest:
    """Row `index` of a nest of arrays [K, ...]."""
    return _mapped(lambda x: x[index], nest)


def _mapped(function: Callable[[np.ndarray], np.ndarray], nest: Nest) -> Nest:
    if isinstance(nest, dict):
        return {name: _mapped(function, part) for name, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(_mapped(function, part) for part in nest)
    return function(nest)


def _write_row(nest: Nest, index: int, value: Any) -> None:
    if isinstance(nest, np.ndarray):
        nest[index] = value
    else:
        for key, part in nest.items() if isinstance(nest, dict) else enumerate(nest):
            _write_row(part, index, value[key])


def _picked(nest: Nest, zeroed: np.ndarray) -> Nest:
    """A copy of arrays [K, ...], zero where `zeroed` bool [K]."""

    def pick(x: np.ndarray) -> np.ndarray:
        values = x.copy()
        values[zeroed] = 0
        return values

    return _mapped(pick, nest)


def _repeated(nest: Nest, count: int) -> Nest:
    """Arrays [...] as [count, ...]."""
    return _mapped(lambda x: np.repeat(x[np.newaxis], count, axis=0), nest)
