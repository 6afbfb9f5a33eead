"""Replayers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alf.data_structures import Experience
from alf.replay.experience_replayer import (
    CyclicOneTimeExperienceReplayer,
    ExperienceReplayer,
    OnetimeExperienceReplayer,
)
from alf.replay.hindsight_replay import HindsightReplay
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay

_ONE_TIME: dict[str, Callable[[], ExperienceReplayer]] = {
    "one_time": OnetimeExperienceReplayer,
    "cycle_one_time": CyclicOneTimeExperienceReplayer,
}
_SAMPLING: dict[str, Any] = {"uniform": UniformReplay, "prioritized": PrioritizedReplay, "hindsight": HindsightReplay}


def check_name(name: str) -> None:
    """Raises ValueError, which names the replayers that exist, when there is none called `name`."""
    known = {**_ONE_TIME, **_SAMPLING}
    if name not in known:
        raise ValueError(f"exp_replayer={name!r} is not one of {sorted(known)}.")


def create_replayer(name: str, experience_spec: Callable[[], Experience], num_streams: int) -> ExperienceReplayer:
    """The replayer called `name`.

    Args:
      name: "one_time", "cycle_one_time", "uniform", "prioritized" or "hindsight".
      experience_spec: gives the specs of one recorded step, to those that store steps.
      num_streams: single environments in total.

    Raises:
      ValueError: there is none of this name.
    """
    check_name(name)
    if name in _ONE_TIME:
        return _ONE_TIME[name]()
    replayer: ExperienceReplayer = _SAMPLING[name](experience_spec(), num_streams)
    return replayer
