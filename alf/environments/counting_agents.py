"""An environment for tests of what lies above: agents that come and go, and whose observations say who and when they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

# What an agent gets in a step in which it did not act, and before it was first observed.
IDLE_REWARD, UNSEEN_REWARD = 1.0 / 1024, 4096.0


@dataclasses.dataclass
class _Life:
    serial: int
    seen: int = 0
    acts: bool = False


class CountingAgents:
    """Agents of PettingZoo's parallel interface that begin, idle, end and begin anew by a seeded script.

    An agent observes float32 [3]: the number of its life, how often it was observed in it before, and the step of the
    environment. Its action is Discrete; the reward for it is `expected_reward`. In a step in which it does not act it
    gets IDLE_REWARD, and UNSEEN_REWARD, which nobody must ever see, before it was first observed. What happens depends
    on the seed alone, not on the actions. The numbers of lives, and with them the names, never come twice.

    Attributes:
      agents: the names of those alive, such as "agent_7".
      possible_agents: nobody is known before.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    render_mode = None
    possible_agents: tuple[str, ...] = ()

    def __init__(
        self,
        kinds: Sequence[str] = ("agent",),
        max_agents: int = 3,
        steps: int = 20,
        birth: float = 0.3,
        death: float = 0.2,
        idle: float = 0.2,
        again: float = 0.3,
        crash: float = 0.0,
        num_actions: int = 5,
    ) -> None:
        """Writes the script.

        Args:
          kinds: what the names of agents begin with.
          max_agents: how many of a kind are alive at a time.
          steps: after so many all that are alive are truncated.
          birth: the probability that a free place is taken in a step.
          death: that an agent ends in a step; it is then terminated, truncated or just gone, each as often.
          idle: that an agent is not observed in a step, its last one included.
          again: that one that is terminated or truncated begins anew in the same step, under its name.
          crash: that a step raises RuntimeError.
          num_actions: actions are in [0, num_actions).

        Raises:
          ValueError: a number or a probability is out of its range.
        """
        chances = {"birth": birth, "death": death, "idle": idle, "again": again, "crash": crash}
        if max_agents < 1 or steps < 1 or num_actions < 1 or any(not 0 <= chance <= 1 for chance in chances.values()):
            raise ValueError(
                "CountingAgents needs max_agents, steps and num_actions >= 1 and probabilities in [0, 1]; got "
                f"{max_agents}, {steps}, {num_actions} and {chances}."
            )
        self._kinds = tuple(kinds)
        self._max_agents = max_agents
        self._max_steps = steps
        self._chances = chances
        self._num_actions = num_actions
        self._rng = np.random.default_rng()
        self._lives: dict[str, _Life] = {}
        self._serial = 0
        self._now = 0

    @property
    def agents(self) -> list[str]:
        """See the class."""
        return list(self._lives)

    def observation_space(self, agent: str) -> spaces.Box:
        """float32 [3]; see the class."""
        del agent
        return spaces.Box(0.0, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        """Discrete, `num_actions`."""
        del agent
        return spaces.Discrete(self._num_actions)

    @staticmethod
    def expected_reward(seen: int, action: int) -> float:
        """For `action`, taken when the agent was observed for the `seen`-th time, from 0: 1 + seen + action / 64."""
        return 1.0 + seen + action / 64.0

    def _happens(self, what: str) -> bool:
        return bool(self._rng.random() < self._chances[what])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Starts an episode with at least one agent of each kind; a seed seeds this one and all later ones."""
        del options
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._now = 0
        self._lives = {}
        for kind in self._kinds:
            self._bear(kind)
        return self._observed(), {name: {} for name in self._lives}

    def _bear(self, kind: str) -> None:
        self._serial += 1
        self._lives[f"{kind}_{self._serial}"] = _Life(self._serial)

    def _observe(self, life: _Life) -> np.ndarray:
        observation = np.array([life.serial, life.seen, self._now], np.float32)
        life.seen += 1
        return observation

    def _observed(self) -> dict[str, np.ndarray]:
        """The observations of those alive that are not idle, who act next."""
        seen = {}
        for name, life in self._lives.items():
            life.acts = not self._happens("idle")
            if life.acts:
                seen[name] = self._observe(life)
        return seen

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Takes a step with the actions of those that were observed last, and of nobody else.

        Raises:
          ValueError: others act, or an action is out of its range.
          RuntimeError: the script says so, or no agent is alive.
        """
        acting = {name for name, life in self._lives.items() if life.acts}
        if set(actions) != acting or any(not 0 <= int(action) < self._num_actions for action in actions.values()):
            raise ValueError(f"CountingAgents takes actions of {sorted(acting)}; got {actions}.")
        if not self._lives or self._happens("crash"):
            raise RuntimeError(f"CountingAgents has {len(self._lives)} agents alive, and was stepped or crashed.")
        self._now += 1
        rewards = {name: self._reward(life, actions.get(name)) for name, life in self._lives.items()}
        ends: dict[str, Any] = {}
        flags: tuple[dict[str, bool], dict[str, bool]] = ({}, {})
        infos: dict[str, dict[str, Any]] = {name: {} for name in self._lives}
        for name in list(self._lives):
            self._live_on(name, ends, flags, infos)
        if self._now < self._max_steps:
            for kind in self._kinds:
                alive = sum(name.startswith(f"{kind}_") for name in self._lives)
                for _ in range(self._max_agents - alive):
                    if self._happens("birth"):
                        self._bear(kind)
        observations = self._observed()
        return {**ends, **observations}, rewards, *flags, infos

    def _reward(self, life: _Life, action: Any) -> float:
        if not life.seen:
            return UNSEEN_REWARD
        return IDLE_REWARD if action is None else self.expected_reward(life.seen - 1, int(action))

    def _live_on(
        self, name: str, ends: dict[str, Any], flags: tuple[dict[str, bool], dict[str, bool]], infos: dict[str, Any]
    ) -> None:
        """Ends an agent, or does not."""
        over = self._now >= self._max_steps
        if not over and not self._happens("death"):
            return
        life = self._lives.pop(name)
        how = 1 if over else int(self._rng.integers(3))
        if how < 2:
            flags[how][name] = True
        unseen = self._happens("idle")
        if how < 2 and not over and self._happens("again"):
            infos[name]["final_obs"] = None if unseen else self._observe(life)
            self._serial += 1
            self._lives[name] = _Life(self._serial)
        elif not unseen:
            ends[name] = self._observe(life)

    def render(self) -> None:
        """There is no picture."""

    def close(self) -> None:
        """There is nothing to close."""
