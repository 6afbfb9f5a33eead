"""What a behavior is in a configuration, and how its algorithm is made."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import check_constructor
from alf.data_structures import Nest
from alf.utils import common
from alf.utils.value_kinds import is_scalar

# In a mapping of behaviors this name stands for all that are not named.
OTHERS = "*"

TRUNCATE, DROP = "truncate", "drop"

_OF_TRAINING = (
    "num_updates",
    "mini_batch_size",
    "mini_batch_length",
    "whole_replay_buffer_training",
    "clear_replay_buffer",
)

_SIZES = ("unroll_length", "num_updates", "mini_batch_size", "mini_batch_length")


@gin.configurable(module="alf")
@dataclasses.dataclass(frozen=True)
class Behavior:
    """What acts and learns for some slots.

    Attributes:
      algorithm_ctor: makes the algorithm, called with observation_spec, action_spec (of one agent) and debug_summaries.
      trained: whether it learns; one that does not acts by the weights it begins with, or is given.
      exp_replayer: see `AsyncOffPolicyDriver`; None, as with all that follow, for what the driver or trainer says.
      unroll_length: steps in a segment, where slots may be idle.
      num_updates: see `OffPolicyAlgorithm.train`, as with those that follow.
      mini_batch_size: see there.
      mini_batch_length: see there.
      whole_replay_buffer_training: see there.
      clear_replay_buffer: see there.
      cut_episodes: what becomes of an agent that is truncated since the episode of its whole environment ends, by a crash,
        a reset, a limit or the end of another agent: "truncate" learns from its episode as from any that was truncated;
        "drop" forgets what is in no segment of `unroll_length` steps yet.
    """

    algorithm_ctor: Callable[..., OffPolicyAlgorithm] | None = None
    trained: bool = True
    exp_replayer: str | None = None
    unroll_length: int | None = None
    num_updates: int | None = None
    mini_batch_size: int | None = None
    mini_batch_length: int | None = None
    whole_replay_buffer_training: bool | None = None
    clear_replay_buffer: bool | None = None
    cut_episodes: str = TRUNCATE

    def __post_init__(self) -> None:
        """Checks the values; ValueError names the one that is wrong."""
        if self.cut_episodes not in (TRUNCATE, DROP):
            raise ValueError(f"Behavior.cut_episodes={self.cut_episodes!r} must be {TRUNCATE!r} or {DROP!r}.")
        for name in _SIZES:
            value = getattr(self, name)
            if value is None:
                continue
            if not is_scalar(value, int) or value < 1:
                raise ValueError(
                    f"Behavior.{name}={value!r} must be a whole number of at least 1, or None to go by the trainer."
                )
            object.__setattr__(self, name, int(value))

    def train_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `train`: what this behavior says itself, else what is given."""
        own = {name: getattr(self, name) for name in _OF_TRAINING if getattr(self, name) is not None}
        # Where others train on samples, clear_replay_buffer is not said of everything.
        samples = not given.get("whole_replay_buffer_training", True)
        usual = {"clear_replay_buffer": True} if samples and self.whole_replay_buffer_training else {}
        return {**given, **usual, **own}


class _OneAgent:
    """What gin's spec functions see while the algorithm of a behavior is made: an environment of one agent."""

    def __init__(self, observation_spec: Nest, action_spec: Nest) -> None:
        self._specs = observation_spec, action_spec

    def observation_spec(self) -> Nest:
        """Of one agent."""
        return self._specs[0]

    def action_spec(self) -> Nest:
        """Of one agent."""
        return self._specs[1]


def make(
    name: str, behavior: Behavior, observation_spec: Nest, action_spec: Nest, debug_summaries: bool
) -> OffPolicyAlgorithm:
    """The algorithm of a behavior, for the specs of one agent.

    Raises:
      ValueError: nothing is set that could make it, or what is made does not act.
    """
    if not callable(behavior.algorithm_ctor):
        raise ValueError(
            f"The behavior {name!r} has algorithm_ctor={behavior.algorithm_ctor!r}: bind it to an algorithm, such as "
            f"{name}/Behavior.algorithm_ctor = @{name}/Agent."
        )
    check_constructor(f"{name}/Behavior.algorithm_ctor", behavior.algorithm_ctor)
    try:
        whole = common.get_env()
    except ValueError:
        whole = None
    common.set_global_env(_OneAgent(observation_spec, action_spec))
    try:
        algorithm = behavior.algorithm_ctor(
            observation_spec=observation_spec, action_spec=action_spec, debug_summaries=debug_summaries
        )
    finally:
        common.set_global_env(whole)
    if not algorithm.acts:
        raise ValueError(
            f"The behavior {name!r} is given to a {type(algorithm).__name__}, which learns from what it is given and does not "
            "act: train it alone, and have a behavior begin with its weights."
        )
    return algorithm


def choose(behaviors: Mapping[str, Behavior], names: Sequence[str]) -> dict[str, Behavior]:
    """The behavior of each name, `OTHERS` standing for those that are not among `behaviors`.

    Raises:
      ValueError: one is missing, or one is given that the environment does not have.
    """
    for given in behaviors:
        if given not in names and given != OTHERS:
            near = difflib.get_close_matches(given, names, 1)
            hint = f"did you mean {near[0]!r}" if near else f"it has {', '.join(map(repr, names))}"
            raise ValueError(
                f"Behaviors.behaviors names {given!r}, and no agent of the environment has this behavior: {hint}."
            )
    missing = [name for name in names if name not in behaviors]
    if missing and OTHERS not in behaviors:
        raise ValueError(
            f"Behaviors.behaviors says nothing of {', '.join(map(repr, missing))}: bind it, as in "
            f"Behaviors.behaviors = {{{missing[0]!r}: @{missing[0]}/Behavior()}}, or '*' for all that are not named."
        )
    return {name: behaviors.get(name, behaviors.get(OTHERS, Behavior())) for name in names}
