"""A simulator's decision steps and terminal steps, as an environment with PettingZoo's parallel interface."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from alf.environments.agents_env import FINAL_OBSERVATION

Nest = Any

# What agents whose actions are masked observe.
OBSERVATION, MASK = "observation", "mask"

ACTION_MASKS = ("refuse", "show", "ignore")

# A simulator in which nobody decides for so many steps is reset.
_PATIENCE = 1000


class _End(NamedTuple):
    observation: Nest
    reward: float
    interrupted: bool


class DecisionSteps:
    """A simulator with the interface of ML-Agents' `BaseEnv`, for `AgentsEnv`.

    The simulator has `reset()`, `step()`, `close()`, `behavior_specs`, `set_actions(behavior, actions)` and
    `get_steps(behavior)`, which gives the agents that ask for a decision and those that have ended, by their numbers. An
    agent that does neither is alive and idle; one that does both ends, and begins anew; one that ends without having
    asked before never was there. Rewards of groups are added to those of their agents.

    One observation of an agent is that array; several are a dict by their names, or a tuple where these are not
    distinct. An action is a float32 [c] in [-1, 1]; the number of a choice, or several of them; or a dict of both,
    "continuous" and "discrete".

    The simulator's own episode never ends: while nobody is alive it is stepped on until somebody begins.

    Attributes:
      patterns: from patterns of the agents' names to the names of behaviors.
      first_counts: by behavior, how many agents decide after the first reset, at least 1.
      possible_agents: nobody is known before.
    """

    possible_agents: Sequence[str] = ()

    def __init__(self, env: Any, behaviors: Mapping[str, str], action_masks: str = "refuse") -> None:
        """Resets `env`, which is closed with this.

        Args:
          env: the simulator.
          behaviors: from its names of behaviors, or patterns of them, to others; the first that fits counts.
          action_masks: what becomes of masks that forbid actions. "show": agents with discrete choices only observe
            {"observation", "mask"}, the mask int8 [number of actions], or [choices, largest number of actions] where
            there are several, 1 where allowed; see `action_masks.split_mask`. There, masks of other agents are refused;
            "refuse": all are, at the first that forbids something; "ignore": nobody sees any, and forbidden actions are
            left to the simulator.

        Raises:
          ValueError: an unknown `action_masks`, no behaviors, or some of one name with different spaces.
        """
        if action_masks not in ACTION_MASKS:
            raise ValueError(f"action_masks must be one of {ACTION_MASKS}; got {action_masks!r}.")
        self._env = env
        self._given = dict(behaviors)
        self._masks = action_masks
        self._alive: set[str] = set()
        # By the simulator's behaviors, the names of those that wait for an action, in its order.
        self._asking: dict[str, list[str]] = {}
        env.reset()
        if not env.behavior_specs:
            raise ValueError("The simulator has no behavior after its reset: let an agent be there from the start.")
        self._spaces: dict[str, tuple[spaces.Space, spaces.Space]] = {}
        self._names: dict[str, str] = {}
        for own, spec in env.behavior_specs.items():
            self._add(own, spec)
        self.patterns = {f"{glob.escape(name)}#*": name for name in sorted(self._spaces, key=len, reverse=True)}
        asking = [self._names[own] for own in self._names for _ in range(len(env.get_steps(own)[0].agent_id))]
        self.first_counts = {name: max(1, asking.count(name)) for name in self._spaces}

    def _add(self, own: str, spec: Any) -> None:
        fitting = [name for pattern, name in self._given.items() if pattern == own or fnmatch.fnmatchcase(own, pattern)]
        name = fitting[0] if fitting else own.partition("?")[0]
        found = self._observation_space(spec), _action_space(spec.action_spec)
        if self._spaces.setdefault(name, found) != found:
            raise ValueError(
                f"{own!r} and another of the simulator's behaviors are both {name!r} and have different spaces: "
                f"{found} and {self._spaces[name]}. Give them names of their own: behaviors={{{own!r}: 'other'}}."
            )
        self._names[own] = name

    def _observation_space(self, spec: Any) -> spaces.Space:
        boxes = [spaces.Box(-np.inf, np.inf, tuple(o.shape), np.float32) for o in spec.observation_specs]
        space = _joined(boxes, spec)
        if not isinstance(space, spaces.Space):
            space = spaces.Dict(space) if isinstance(space, dict) else spaces.Tuple(space)
        if not self._shows_mask(spec):
            return space
        return spaces.Dict({OBSERVATION: space, MASK: spaces.MultiBinary(_all_allowed(spec.action_spec).shape)})

    def _shows_mask(self, spec: Any) -> bool:
        action = spec.action_spec
        return self._masks == "show" and len(action.discrete_branches) > 0 and not action.continuous_size

    # ---- the parallel interface ----

    @property
    def agents(self) -> list[str]:
        """The names of those alive: "behavior#the simulator's behavior#number"."""
        return sorted(self._alive)

    def observation_space(self, agent: str) -> spaces.Space:
        """Of a behavior, by its name."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space:
        """Of a behavior, by its name."""
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Nest], Any]:
        """Resets the simulator, which takes no seed here, and steps it until somebody decides."""
        del seed, options
        self._env.reset()
        self._alive.clear()
        observations, _, _ = self._hear()
        return observations, {name: {} for name in observations}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Steps the simulator with the actions of all that asked for them."""
        self._answer(actions)
        self._env.step()
        observations, rewards, ends = self._hear()
        infos: dict[str, dict[str, Any]] = {}
        for name, end in ends.items():
            rewards[name] = end.reward
            if name in observations:
                infos[name] = {FINAL_OBSERVATION: end.observation}
            else:
                observations[name] = end.observation
        terminated = {name: not end.interrupted for name, end in ends.items()}
        truncated = {name: end.interrupted for name, end in ends.items()}
        return observations, rewards, terminated, truncated, infos

    def _answer(self, actions: Mapping[str, Any]) -> None:
        for own, asking in self._asking.items():
            given = self._env.behavior_specs[own].action_spec.empty_action(len(asking))
            continuous, discrete = (np.array(part) for part in (given.continuous, given.discrete))
            for row, name in enumerate(asking):
                action = actions[name]
                parts = action if isinstance(action, Mapping) else {"continuous": action, "discrete": action}
                if continuous.shape[1]:
                    continuous[row] = parts["continuous"]
                if discrete.shape[1]:
                    discrete[row] = parts["discrete"]
            given.add_continuous(continuous)
            given.add_discrete(discrete)
            self._env.set_actions(own, given)

    def _hear(self) -> tuple[dict[str, Nest], dict[str, float], dict[str, _End]]:
        """What the simulator tells: observations and rewards of those that decide, and ends; steps on where nobody lives."""
        observations, rewards, ends = self._hear_once()
        for _ in range(_PATIENCE):
            if self._alive:
                break
            self._env.step()
            # Nobody was alive, so nobody that was ever seen ends.
            observations, rewards, _ = self._hear_once()
        return observations, rewards, ends

    def _hear_once(self) -> tuple[dict[str, Nest], dict[str, float], dict[str, _End]]:
        observations: dict[str, Nest] = {}
        rewards: dict[str, float] = {}
        ends: dict[str, _End] = {}
        for own, spec in self._env.behavior_specs.items():
            if own not in self._names:
                self._add_late(own, spec)
            deciding, ending = self._env.get_steps(own)
            for row, name in enumerate(self._called(own, ending)):
                seen = self._seen(spec, ending.obs, row, None)
                ends[name] = _End(seen, _reward(ending, row), bool(ending.interrupted[row]))
            self._asking[own] = self._called(own, deciding)
            for row, name in enumerate(self._asking[own]):
                observations[name] = self._seen(spec, deciding.obs, row, deciding.action_mask)
                rewards[name] = _reward(deciding, row)
        self._alive = (self._alive - ends.keys()) | observations.keys()
        return observations, rewards, ends

    def _add_late(self, own: str, spec: Any) -> None:
        known = sorted(self._spaces)
        self._add(own, spec)
        if self._names[own] not in known:
            raise ValueError(
                f"The simulator's behavior {own!r} appeared after its first reset, when there were {known}: let one of its "
                f"agents be there from the start, or give it the name of another: behaviors={{{own!r}: {known[0]!r}}}."
            )

    def _called(self, own: str, steps: Any) -> list[str]:
        return [f"{self._names[own]}#{own}#{int(number)}" for number in steps.agent_id]

    def _seen(self, spec: Any, observations: Sequence[np.ndarray], row: int, masks: Sequence[Any] | None) -> Nest:
        seen = _joined([values[row] for values in observations], spec)
        forbidden = [] if masks is None else [np.asarray(mask[row], bool) for mask in masks]
        if self._shows_mask(spec):
            allowed = _all_allowed(spec.action_spec)
            for choice, mask in zip(np.atleast_2d(allowed), forbidden, strict=False):
                choice[: len(mask)] &= ~mask
            return {OBSERVATION: seen, MASK: allowed.astype(np.int8)}
        if self._masks != "ignore" and any(mask.any() for mask in forbidden):
            raise ValueError(
                f"The simulator masks actions of kind {_action_space(spec.action_spec)}, which "
                + (
                    "cannot be shown, as they are not discrete choices only: "
                    if self._masks == "show"
                    else "agents do not see: set action_masks='show' if they are discrete choices only, or "
                )
                + "set action_masks='ignore'."
            )
        return seen

    def render(self) -> None:
        """There is no picture."""

    def close(self) -> None:
        """Closes the simulator."""
        self._env.close()


def _reward(steps: Any, row: int) -> float:
    return float(steps.reward[row]) + float(steps.group_reward[row])


def _joined(values: list[Any], spec: Any) -> Any:
    """One value for each observation of a behavior: itself, a dict by their names, or a tuple."""
    if len(values) == 1:
        return values[0]
    names = [o.name for o in spec.observation_specs]
    if len({*names}) < len(names) or not all(names):
        return tuple(values)
    return dict(zip(names, values, strict=True))


def _all_allowed(spec: Any) -> np.ndarray:
    """All allowed, bool [number of actions], or [choices, largest number of actions] False where a choice has none."""
    sizes = np.array([int(size) for size in spec.discrete_branches])
    allowed = np.arange(sizes.max()) < sizes[:, np.newaxis]
    return allowed[0] if len(sizes) == 1 else allowed


def _action_space(spec: Any) -> spaces.Space:
    branches = [int(size) for size in spec.discrete_branches]
    discrete = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(branches)
    continuous = spaces.Box(-1.0, 1.0, (int(spec.continuous_size),), np.float32)
    if not branches:
        return continuous
    if not spec.continuous_size:
        return discrete
    return spaces.Dict({"continuous": continuous, "discrete": discrete})
