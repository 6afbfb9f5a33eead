"""Environments of many agents with PettingZoo's parallel interface, as environments with agents in their rows."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
from absl import logging
from gymnasium import spaces

from alf.environments.agent_slots import AgentSlots, row

DEFAULT_BEHAVIOR = "agent"

# Under this name an agent's info holds the last observation of a life after which it begins another in the same step.
FINAL_OBSERVATION = "final_obs"

DONE_CONDITIONS = ("any", "all")

# How often an environment is reset until somebody is alive.
_MAX_EMPTY_EPISODES = 10


class _Begins(NamedTuple):
    """What is left to be seen of a step: agents that go on and agents that begin, with their observations."""

    mids: Mapping[str, Any]
    firsts: Mapping[str, Any]


class AgentsEnv(gymnasium.Env):
    """Presents an environment of many agents as one whose rows are agents; see `agents`.

    The environment has PettingZoo's parallel interface, from that package or not: `reset(seed, options)` gives
    observations and infos, `step(actions)` observations, rewards, terminations, truncations and infos, all of them by the
    names of agents; `agents` are those alive, `possible_agents` all; `observation_space(agent)` and
    `action_space(agent)`. Beyond what PettingZoo's own environments do,

      * an alive agent without an observation is idle: it decides nothing, its rewards are summed until it is observed;
      * agents may begin at any step, by being observed, and end and begin anew under the same name;
      * an agent that ends and begins in one step is terminated or truncated, observed, and has the last observation of
        the life that ended in its info, as "final_obs". If its slot is the only free one, a step that shows the ends
        alone comes first, in which the environment is not stepped;
      * an agent that is alive no more without having ended is truncated;
      * an agent that ends when it is first observed never was there.

    The environment is stepped with the actions of those that decide, of nobody if all are idle, and never without an
    agent alive: that is the end of the episode. There, and at a time limit, each open agent sees its last response.
    """

    def __init__(
        self,
        env: Any,
        behaviors: Mapping[str, str] | None = None,
        slots: Mapping[str, int] | None = None,
        done_condition: str = "all",
        may_idle: bool | None = None,
        share_reward: bool = False,
        with_group: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        """Wraps `env`, which is closed with this.

        Args:
          env: see the class.
          behaviors: from names of agents, or patterns such as "chaser_*", to names of behaviors; the first that fits
            counts. None: all agents have the behavior "agent".
          slots: for behaviors whose agents come and go under ever new names, how many may be alive at a time. The agents
            of the others are fixed, those of `possible_agents`, each with a slot of its own.
          done_condition: "all": the episode ends when no agent is alive. "any": when one has ended; all others are
            truncated.
          may_idle: whether fixed agents may be idle; None: unless done_condition is "any".
          share_reward: each agent gets the sum of the rewards of all agents of its behavior.
          with_group: agents observe those of their behavior too, for critics that see all; see `AgentSlots`.
          max_episode_steps: steps of `env` after which all open agents are truncated.

        Raises:
          ValueError: an agent without a behavior, agents of one behavior with different spaces, or an argument out of
            its range.
        """
        if done_condition not in DONE_CONDITIONS:
            raise ValueError(f"done_condition must be one of {DONE_CONDITIONS}; got {done_condition!r}.")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"An episode has at least one step; got max_episode_steps={max_episode_steps}.")
        self._env = env
        self._ends_with_one = done_condition == "any"
        self._share_reward = share_reward
        self._max_steps = math.inf if max_episode_steps is None else max_episode_steps
        self._behaviors = {"*": DEFAULT_BEHAVIOR} if behaviors is None else dict(behaviors)
        self._behavior_of: dict[str, str] = {}
        idles = not self._ends_with_one if may_idle is None else may_idle
        self._slots = self._make_slots(dict(slots or {}), idles, with_group)
        self.observation_space = spaces.Dict({name: part.space for name, part in self._slots.items()})
        self.action_space = spaces.Dict({name: part.action_space for name, part in self._slots.items()})
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self._open: dict[str, AgentSlots] = {}
        self._gone: set[str] = set()
        self._rest: _Begins | None = None
        self._steps = 0

    def _make_slots(self, counts: dict[str, int], may_idle: bool, with_group: bool) -> dict[str, AgentSlots]:
        names: dict[str, list[str]] = {behavior: [] for behavior in counts}
        for name in getattr(self._env, "possible_agents", ()):
            names.setdefault(self._behavior(name), []).append(name)
        if not names:
            raise ValueError(
                "The environment has no possible_agents: say how many agents may be alive at a time, for example "
                f"slots={{{DEFAULT_BEHAVIOR!r}: 8}}."
            )
        made = {}
        for behavior, members in sorted(names.items()):
            own, action = self._spaces_of(behavior, members)
            if behavior in counts:
                made[behavior] = AgentSlots(behavior, own, action, counts[behavior], (), True, with_group)
            else:
                made[behavior] = AgentSlots(behavior, own, action, len(members), members, may_idle, with_group)
        return made

    def _behavior(self, name: str) -> str:
        if name not in self._behavior_of:
            fitting = [self._behaviors[name]] if name in self._behaviors else []
            fitting += [b for pattern, b in self._behaviors.items() if fnmatch.fnmatchcase(name, pattern)]
            if not fitting:
                raise ValueError(
                    f"Agent {name!r} has no behavior among {self._behaviors}: name it there, or add a pattern that fits."
                )
            if len(self._behavior_of) >= _REMEMBERED_NAMES:
                self._behavior_of.clear()
            self._behavior_of[name] = fitting[0]
        return self._behavior_of[name]

    def _spaces_of(self, behavior: str, members: Sequence[str]) -> tuple[spaces.Space, spaces.Space]:
        # Agents under ever new names may have none yet: then the environment is asked by the name of the behavior.
        first, *others = members or [behavior]
        found = self._env.observation_space(first), self._env.action_space(first)
        for name in others:
            other = self._env.observation_space(name), self._env.action_space(name)
            if other != found:
                raise ValueError(
                    f"Agents {first!r} and {name!r} have one behavior, {behavior!r}, and different spaces: {found} and "
                    f"{other}. Give them behaviors of their own: behaviors={{{first!r}: 'a', {name!r}: 'b'}}."
                )
        return found

    # ---- episodes ----

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode; the seed and the options go to the environment, which is reset again where nobody is alive."""
        super().reset(seed=seed)
        for again in range(_MAX_EMPTY_EPISODES):
            # By the same seed nobody would be alive again.
            observations, _ = self._env.reset(seed=None if again else seed, options=options)
            if self._env.agents:
                break
        else:
            raise ValueError(
                f"The environment has no agent alive after its reset (tried {_MAX_EMPTY_EPISODES} times): an episode needs at "
                "least one, so have its reset make some."
            )
        self._open.clear()
        self._gone.clear()
        self._rest = None
        self._steps = 0
        for part in self._slots.values():
            part.clear()
        alive = set(self._env.agents)
        self._show(_Begins({}, {name: value for name, value in observations.items() if name in alive}))
        return self._frame(), {}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Steps the environment with the actions of those that decide, or shows the rest of its last step."""
        rest, self._rest = self._rest, None
        acting = self._actions(action)
        for part in self._slots.values():
            part.begin_frame()
        terminated = truncated = False
        if rest is not None:
            self._show(rest)
        else:
            self._steps += 1
            terminated, truncated = self._take(*self._env.step(acting))
        observation = self._frame()
        return observation, sum(part.reward for part in self._slots.values()), terminated, truncated, {}

    def _actions(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: row(action[behavior], slot)
            for behavior, part in self._slots.items()
            for name, slot in part.acting().items()
        }

    def _take(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, Any],
        terminations: Mapping[str, bool],
        truncations: Mapping[str, bool],
        infos: Mapping[str, Any],
    ) -> tuple[bool, bool]:
        """Shows what a step gave; tells whether the episode terminated, or was truncated."""
        self._earn(rewards)
        alive = set(self._env.agents)
        done = {name for ends in (terminations, truncations) for name, is_done in ends.items() if is_done}
        again = {name for name in done & alive if FINAL_OBSERVATION in infos.get(name, {})}
        ended = [name for name in self._open if name in done or name not in alive]
        for name in ended:
            last = infos[name][FINAL_OBSERVATION] if name in again else observations.get(name)
            self._open.pop(name).last(name, last, 0.0 if terminations.get(name) else 1.0)
        self._gone = (self._gone | (done - again)) & alive
        firsts = {
            name: value
            for name, value in observations.items()
            if name not in self._open and name in alive and (name not in done or name in again)
        }
        self._gone -= firsts.keys()
        living = len(alive) > len(self._gone)
        if (ended and self._ends_with_one) or self._steps >= self._max_steps or not living:
            return self._end_all(observations, living and self._steps >= self._max_steps)
        self._show(_Begins({name: observations[name] for name in self._open if name in observations}, firsts))
        return False, False

    def _earn(self, rewards: Mapping[str, Any]) -> None:
        totals = dict.fromkeys(self._slots, 0.0)
        for name, given in rewards.items():
            part = self._open.get(name)
            if part is None:
                continue
            reward = _number(name, given)
            if self._share_reward:
                totals[part.behavior] += reward
            else:
                part.earn(name, reward)
        if self._share_reward:
            for name, part in self._open.items():
                part.earn(name, totals[part.behavior])

    def _end_all(self, observations: Mapping[str, Any], out_of_time: bool) -> tuple[bool, bool]:
        """Truncates all open agents; tells whether the episode terminated, or was truncated."""
        for name, part in self._open.items():
            part.last(name, observations.get(name), 1.0)
        self._open.clear()
        cut = out_of_time or any(part.ended.any() for part in self._slots.values())
        return not cut, cut

    def _show(self, rest: _Begins) -> None:
        """Shows who goes on and who begins; all of that in the next step where the slots are not free yet."""
        newcomers: dict[str, list[str]] = {}
        for name in rest.firsts:
            newcomers.setdefault(self._behavior(name), []).append(name)
        rooms = [self._known(behavior).has_room(names) for behavior, names in newcomers.items()]
        if not all(rooms):
            self._rest = rest
            return
        for name, observation in rest.mids.items():
            self._open[name].mid(name, observation)
        for name, observation in rest.firsts.items():
            self._open[name] = self._slots[self._behavior(name)]
            self._open[name].first(name, observation)

    def _known(self, behavior: str) -> AgentSlots:
        if behavior not in self._slots:
            raise ValueError(
                f"An agent of behavior {behavior!r} appeared, which has no slots: give it some, slots={{{behavior!r}: K}}."
            )
        return self._slots[behavior]

    def _frame(self) -> dict[str, Any]:
        return {behavior: part.observation() for behavior, part in self._slots.items()}

    # ---- the rest of the interface ----

    def render(self) -> Any:
        """The picture that the environment gives."""
        return self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


# Agents that come and go have ever new names.
_REMEMBERED_NAMES = 10_000


def _number(name: str, reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        raise ValueError(
            f"The reward of agent {name!r} is {reward!r}, not a number: correct the environment."
        ) from None
    if not math.isfinite(value):
        # Whether that is an error is said by create_environment.nonfinite; that guard knows no names of agents.
        logging.log_every_n_seconds(logging.ERROR, "The reward of agent %r is %s.", 10, name, value)
    return value
