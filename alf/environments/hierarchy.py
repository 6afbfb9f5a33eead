"""A single agent as two: an upper one that gives goals, and a lower one that acts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from alf.environments.agent_slots import AgentSlots, row
from alf.environments.gymnasium_environment import flag

Nest = Any

UPPER, LOWER = "upper", "lower"


class Goals:
    """What goals are, and what they mean to the lower one. Observations are those of the environment.

    `space` is to be said; without the rest no goal is ever reached or rewarded, and the lower one observes
    {"observation", "goal"}.
    """

    def space(self, env: gymnasium.Env) -> spaces.Space:
        """The space of the goals, which are the upper one's actions."""
        raise NotImplementedError(f"{type(self).__name__} does not say what goals are: write its space().")

    def reached(self, observation: Nest, goal: Nest) -> bool:
        """Whether an observation reaches a goal; asked after each step of the environment."""
        del observation, goal
        return False

    def reward(self, observation: Nest, goal: Nest, next_observation: Nest) -> float:
        """The lower one's reward for a step, beside that of the environment."""
        del observation, goal, next_observation
        return 0.0

    def view(self, observation: Nest, goal: Nest) -> Nest:
        """What the lower one observes: a crop, a mask of actions, the way to the goal."""
        return {"observation": observation, "goal": goal}

    def view_space(self, env: gymnasium.Env) -> spaces.Space:
        """The space of `view`."""
        return spaces.Dict({"observation": env.observation_space, "goal": self.space(env)})


@gin.configurable(module="alf.environments.wrappers")
class Hierarchy(gymnasium.Wrapper):
    """Two behaviors of one slot each in an environment of a single agent; see `agents` for how they lie in its rows.

    "upper" decides after a reset, and whenever its goal was pursued for `steps_limit` steps or was reached. Its action is
    the goal; its reward is the sum of the environment's since its last decision. "lower" acts in each step of the
    environment and observes what `goals` shows it. The environment is not stepped while the upper one decides: the lower
    one is idle then, the upper one in all other steps. So an episode of n steps takes n plus the number of goals. Both
    end with the environment's episode, as that ends.

    The reward of each step is the environment's own, whatever the lower one learns from, so that returns compare with
    those of a single agent.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        goals: Goals,
        steps_limit: int,
        environment_weight: float = 1.0,
        goal_is_episode: bool = False,
    ) -> None:
        """Wraps `env`.

        Args:
          env: an environment of a single agent.
          goals: what they are.
          steps_limit: steps of `env` that a goal is pursued for, at most.
          environment_weight: how much of the environment's reward the lower one gets, beside that of `goals`.
          goal_is_episode: each goal is an episode of the lower one, that ends with discount 0 where the goal is reached
            and is truncated after `steps_limit` steps. Otherwise its episodes are those of `env`, and goals change within.

        Raises:
          ValueError: `steps_limit` is below 1, or a space is one that agents cannot have.
        """
        super().__init__(env)
        if steps_limit < 1:
            raise ValueError(f"A goal is pursued for at least one step; got steps_limit={steps_limit}.")
        self._goals = goals
        self._upper = AgentSlots(UPPER, env.observation_space, goals.space(env), 1, (UPPER,))
        self._lower = AgentSlots(LOWER, goals.view_space(env), env.action_space, 1, (LOWER,))
        self.observation_space = spaces.Dict({LOWER: self._lower.space, UPPER: self._upper.space})
        self.action_space = spaces.Dict({LOWER: self._lower.action_space, UPPER: self._upper.action_space})
        self._steps_limit = steps_limit
        self._weight = environment_weight
        self._goal_is_episode = goal_is_episode
        self._observation: Nest = None
        self._goal: Nest = None
        self._upper_decides = True
        self._steps = 0
        self._info: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode, with the upper one's decision."""
        observation, self._info = self.env.reset(seed=seed, options=options)
        self._observation = copy.deepcopy(observation)
        self._upper.clear()
        self._lower.clear()
        self._upper.first(UPPER, self._observation)
        self._upper_decides = True
        return self._frame(), self._info

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Takes a goal from the upper one, or a step with the lower one's action."""
        self._upper.begin_frame()
        self._lower.begin_frame()
        if self._upper_decides:
            # What the driver gives may be written to before the goal has served.
            self._pursue(copy.deepcopy(row(action[UPPER], 0)))
            return self._frame(), 0.0, False, False, self._info
        observation, reward, terminated, truncated, self._info = self.env.step(row(action[LOWER], 0))
        # Environments may tell numbers as lists of one.
        earned = float(np.asarray(reward).reshape(()))
        terminated, truncated = flag(terminated), flag(truncated)
        self._upper.earn(UPPER, earned)
        before, self._observation = self._observation, copy.deepcopy(observation)
        by_goal = self._goals.reward(before, self._goal, self._observation)
        self._lower.earn(LOWER, self._weight * earned + float(by_goal))
        self._steps += 1
        self._show(terminated, truncated)
        return self._frame(), earned, terminated, truncated, self._info

    def _pursue(self, goal: Nest) -> None:
        self._goal = goal
        self._steps = 0
        self._upper_decides = False
        show = self._lower.mid if self._lower.open else self._lower.first
        show(LOWER, self._goals.view(self._observation, goal))

    def _show(self, terminated: bool, truncated: bool) -> None:
        """Shows what a step of the environment has led to, to those whom it concerns."""
        over = terminated or truncated
        reached = bool(self._goals.reached(self._observation, self._goal))
        self._upper_decides = reached or self._steps >= self._steps_limit
        if over or (self._upper_decides and self._goal_is_episode):
            ends = terminated or (reached and self._goal_is_episode)
            self._lower.last(LOWER, self._goals.view(self._observation, self._goal), 0.0 if ends else 1.0)
        elif not self._upper_decides:
            self._lower.mid(LOWER, self._goals.view(self._observation, self._goal))
        if over:
            self._upper.last(UPPER, self._observation, 0.0 if terminated else 1.0)
        elif self._upper_decides:
            self._upper.mid(UPPER, self._observation)

    def _frame(self) -> dict[str, Any]:
        return {LOWER: self._lower.observation(), UPPER: self._upper.observation()}
