"""The flag `--behavior_from`, by which behaviors act by other weights than those of the run."""

from __future__ import annotations

from absl import flags

BEHAVIOR_FROM = flags.DEFINE_multi_string(
    "behavior_from",
    [],
    "Let a behavior act by the weights of another run or checkpoint, NAME=RUN; NAME=OTHER@RUN takes those of the "
    "behavior OTHER there; repeatable.",
)
