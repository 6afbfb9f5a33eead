"""Small tasks of several agents, in numpy alone, with PettingZoo's parallel interface: spread, pursuit, a game of hands."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from gymnasium import spaces

Observations = dict[str, np.ndarray]
Step = tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]

# Where an action of the plane pushes: nowhere, left, right, down, up.
_PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], float)
_DAMPING, _DT = 0.25, 0.1
_PICTURE_SIZE, _DOT = 96, 2


class ParallelTask(abc.ABC):
    """Agents that all begin together, act in every step, and end together.

    Attributes:
      possible_agents: all names.
      agents: the names of those alive: all, or none after the end.
      metadata: what Gymnasium has there.
      render_mode: "rgb_array" or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, names: list[str], steps: int, render_mode: str | None) -> None:
        """Keeps the names.

        Args:
          names: of the agents.
          steps: an episode is truncated after so many.
          render_mode: see the class.

        Raises:
          ValueError: `steps` is below 1.
        """
        if steps < 1:
            raise ValueError(f"{type(self).__name__} needs steps >= 1; got {steps}.")
        self.possible_agents = names
        self.agents: list[str] = []
        self.render_mode = render_mode
        self._max_steps = steps
        self._steps = 0
        self._rng = np.random.default_rng()

    @abc.abstractmethod
    def observation_space(self, agent: str) -> spaces.Space:
        """What `agent` observes."""

    @abc.abstractmethod
    def action_space(self, agent: str) -> spaces.Space:
        """What `agent` does."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Puts everything where it begins, by `self._rng`."""

    @abc.abstractmethod
    def _observe(self) -> Observations:
        """What each agent observes now."""

    @abc.abstractmethod
    def _act(self, actions: dict[str, Any]) -> tuple[dict[str, float], bool]:
        """Takes the actions; the reward of each agent, and whether the episode terminated."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, dict[str, Any]]]:
        """Starts an episode; a seed seeds this one and all later ones."""
        del options
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._steps = 0
        self._begin()
        return self._observe(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Takes a step with an action of every agent."""
        self._steps += 1
        names = self.agents
        rewards, terminated = self._act(actions)
        truncated = not terminated and self._steps >= self._max_steps
        if terminated or truncated:
            self.agents = []
        ends = dict.fromkeys(names, terminated), dict.fromkeys(names, truncated)
        return self._observe(), rewards, *ends, {name: {} for name in names}

    def render(self) -> np.ndarray | None:
        """A picture, uint8 [height, width, 3]; None without a `render_mode`."""
        return None if self.render_mode is None else self._draw()

    @abc.abstractmethod
    def _draw(self) -> np.ndarray:
        """A picture, uint8 [height, width, 3]."""

    def close(self) -> None:
        """Ends the episode; nobody is alive."""
        self.agents = []


class Spread(ParallelTask):
    """N agents cover N landmarks of a plane: the reward of each is minus the sum over landmarks of the nearest's distance.

    The simple spread of Lowe et al., "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments" (2017),
    without collisions. An agent observes its velocity and place, the landmarks and the other agents relative to itself:
    float32 [4 + 2 N + 2 (N - 1)]. Its action is one of nothing, left, right, down, up.
    """

    def __init__(self, num_agents: int = 3, steps: int = 25, render_mode: str | None = None) -> None:
        """Makes the task.

        Args:
          num_agents: N.
          steps: of an episode, which is then truncated.
          render_mode: "rgb_array" or None.

        Raises:
          ValueError: a number below 1.
        """
        if num_agents < 1:
            raise ValueError(f"Spread needs num_agents >= 1; got {num_agents}.")
        names = ["agent"] if num_agents == 1 else [f"agent_{i}" for i in range(num_agents)]
        super().__init__(names, steps, render_mode)
        self._space = spaces.Box(-np.inf, np.inf, (4 * num_agents + 2,), np.float32)
        self._action_space: spaces.Discrete = spaces.Discrete(len(_PUSHES))

    def observation_space(self, agent: str) -> spaces.Box:
        del agent
        return self._space

    def action_space(self, agent: str) -> spaces.Discrete:
        del agent
        return self._action_space

    def _begin(self) -> None:
        count = len(self.possible_agents)
        self._places = self._rng.uniform(-1, 1, (count, 2))
        self._velocities = np.zeros((count, 2))
        self._landmarks = self._rng.uniform(-0.9, 0.9, (count, 2))

    def _observe(self) -> Observations:
        seen = {}
        for i, name in enumerate(self.possible_agents):
            others = np.delete(self._places, i, axis=0) - self._places[i]
            marks = self._landmarks - self._places[i]
            parts = (self._velocities[i], self._places[i], marks.ravel(), others.ravel())
            seen[name] = np.concatenate(parts).astype(np.float32)
        return seen

    def _act(self, actions: dict[str, Any]) -> tuple[dict[str, float], bool]:
        pushes = _PUSHES[[int(actions[name]) for name in self.possible_agents]]
        self._velocities = (1 - _DAMPING) * self._velocities + 5.0 * _DT * pushes
        self._places = self._places + _DT * self._velocities
        distances = np.linalg.norm(self._landmarks[:, None] - self._places[None], axis=-1)
        return dict.fromkeys(self.possible_agents, -float(distances.min(axis=1).sum())), False

    def _draw(self) -> np.ndarray:
        return dots([(self._landmarks, (160, 160, 160)), (self._places, (40, 90, 200))], 1.2)


class Pursuit(ParallelTask):
    """Chasers and a runner, in a square with walls from -1 to 1; the runner is faster, and alone.

    The episode terminates when a chaser comes nearer than 0.1: each chaser gets 10 and the runner -10. Before that a
    chaser gets minus a tenth of its distance, and the runner plus a tenth of that to the nearest. All observe their
    velocity and place; a chaser "chaser_0", ... the runner and the other chasers relative to itself, float32
    [4 + 2 + 2 (C - 1)]; the "runner" the chasers and how fast they are, float32 [4 + 2 C + 2 C], so that it has a space,
    and a behavior, of its own. An action is one of nothing, left, right, down, up.
    """

    behaviors = {"chaser_*": "chaser", "runner": "runner"}

    def __init__(self, num_chasers: int = 3, steps: int = 100, render_mode: str | None = None) -> None:
        """Makes the task.

        Args:
          num_chasers: C.
          steps: after so many the runner has escaped: the episode is truncated.
          render_mode: "rgb_array" or None.

        Raises:
          ValueError: a number below 1.
        """
        if num_chasers < 1:
            raise ValueError(f"Pursuit needs num_chasers >= 1; got {num_chasers}.")
        super().__init__([*(f"chaser_{i}" for i in range(num_chasers)), "runner"], steps, render_mode)
        runner = spaces.Box(-np.inf, np.inf, (4 + 4 * num_chasers,), np.float32)
        chaser = spaces.Box(-np.inf, np.inf, (4 + 2 * num_chasers,), np.float32)
        self._spaces = {name: runner if name == "runner" else chaser for name in self.possible_agents}
        self._pushes = np.array([*[3.0] * num_chasers, 4.0])[:, None]

    def observation_space(self, agent: str) -> spaces.Space:
        return self._spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        del agent
        return spaces.Discrete(len(_PUSHES))

    def _begin(self) -> None:
        count = len(self.possible_agents)
        self._places = self._rng.uniform(-1, 1, (count, 2))
        # Nobody is caught before having moved.
        self._places[-1] = self._rng.uniform(-0.4, 0.4, 2)
        near = np.linalg.norm(self._places[:-1] - self._places[-1], axis=1) < 0.4
        self._places[:-1][near] = np.sign(self._places[:-1][near]) * 0.95
        self._velocities = np.zeros((count, 2))

    def _observe(self) -> Observations:
        seen = {}
        runner_first = np.roll(self._places, 1, axis=0)
        for i, name in enumerate(self.possible_agents):
            others = np.delete(runner_first, (i + 1) % len(runner_first), axis=0) - self._places[i]
            parts = [self._velocities[i], self._places[i], others.ravel()]
            if name == "runner":
                parts.append(self._velocities[:-1].ravel())
            seen[name] = np.concatenate(parts).astype(np.float32)
        return seen

    def _act(self, actions: dict[str, Any]) -> tuple[dict[str, float], bool]:
        pushes = _PUSHES[[int(actions[name]) for name in self.possible_agents]]
        self._velocities = (1 - _DAMPING) * self._velocities + self._pushes * _DT * pushes
        free = self._places + _DT * self._velocities
        self._places = np.clip(free, -1.0, 1.0)
        self._velocities[free != self._places] = 0.0
        distances = np.linalg.norm(self._places[:-1] - self._places[-1], axis=1)
        caught = bool(distances.min() < 0.1)
        won = 10.0 if caught else 0.0
        *chasers, runner = self.possible_agents
        rewards = {name: won - 0.1 * float(distance) for name, distance in zip(chasers, distances, strict=True)}
        rewards[runner] = 0.1 * float(distances.min()) - won
        return rewards, caught

    def _draw(self) -> np.ndarray:
        return dots([(self._places[:-1], (40, 90, 200)), (self._places[-1:], (200, 60, 40))], 1.05)


class RockPaperScissors(ParallelTask):
    """Two agents, "player_0" and "player_1", show rock, paper or scissors, again and again; who beats the other gets 1.

    The other gets -1. They observe what both showed last, as float32 [6]: one of three for oneself, one of three for the
    other, zeros at first. The only equilibrium is to show each with probability 1/3.
    """

    def __init__(self, steps: int = 10, render_mode: str | None = None) -> None:
        """Makes the game; arguments as in `ParallelTask`."""
        super().__init__(["player_0", "player_1"], steps, render_mode)
        self._space = spaces.Box(0.0, 1.0, (6,), np.float32)

    def observation_space(self, agent: str) -> spaces.Box:
        del agent
        return self._space

    def action_space(self, agent: str) -> spaces.Discrete:
        del agent
        return spaces.Discrete(3)

    def _begin(self) -> None:
        self._shown = np.zeros((2, 3), np.float32)

    def _observe(self) -> Observations:
        return {name: np.roll(self._shown, -i, axis=0).ravel() for i, name in enumerate(self.possible_agents)}

    def _act(self, actions: dict[str, Any]) -> tuple[dict[str, float], bool]:
        hands = [int(actions[name]) for name in self.possible_agents]
        self._shown = np.eye(3, dtype=np.float32)[hands]
        won = float((0, 1, -1)[(hands[0] - hands[1]) % 3])
        return {"player_0": won, "player_1": -won}, False

    def _draw(self) -> np.ndarray:
        return np.kron((255 * self._shown).astype(np.uint8), np.ones((16, 16), np.uint8))[..., None].repeat(3, axis=2)


def dots(groups: list[tuple[np.ndarray, tuple[int, int, int]]], reach: float) -> np.ndarray:
    """A picture of points of a plane, uint8 [96, 96, 3].

    Args:
      groups: points float [n, 2], and the colour they have.
      reach: the picture shows the square from -reach to reach.
    """
    picture = np.full((_PICTURE_SIZE, _PICTURE_SIZE, 3), 255, np.uint8)
    for points, colour in groups:
        pixels = ((points + reach) / (2 * reach) * _PICTURE_SIZE).astype(int)
        for x, y in np.clip(pixels, _DOT, _PICTURE_SIZE - _DOT - 1):
            picture[_PICTURE_SIZE - 1 - y - _DOT : _PICTURE_SIZE - y + _DOT, x - _DOT : x + _DOT + 1] = colour
    return picture
