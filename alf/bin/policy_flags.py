"""Flags of the commands that play a trained policy. absl knows a flag by one definition, so they share it."""

from __future__ import annotations

import os

from absl import flags

from alf.bin import command_line
from alf.bin.video import SUFFIXES
from alf.utils import files

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "latest (the default), best, final, a number of steps, ckpt-N, or the path of a checkpoint."
)
CHECKPOINT_NAME = flags.DEFINE_string("checkpoint_name", None, "The same as --checkpoint.")
NUM_EPISODES = flags.DEFINE_integer("num_episodes", 10, "How many episodes to play.")
RECORD_FILE = flags.DEFINE_string("record_file", None, "Video file to write: .mp4, or .gif.")
RANDOM_SEED = flags.DEFINE_integer("random_seed", None, "Seed of environment and samples.")
MAX_WAIT_SECS = flags.DEFINE_float(
    "max_wait_secs", 0.0, "Longest wait for a new checkpoint, after which the command ends; 0: no limit."
)

# What has no effect where nothing is played.
OF_EPISODES = (NUM_EPISODES, RECORD_FILE, RANDOM_SEED, MAX_WAIT_SECS)


def check() -> None:
    """Checks the values of these flags.

    Raises:
      UsageError: one cannot be used.
    """
    command_line.has_suffix(RECORD_FILE, *SUFFIXES)
    command_line.at_least(NUM_EPISODES, 1)
    command_line.at_least(MAX_WAIT_SECS, 0)
    for flag in (CHECKPOINT, CHECKPOINT_NAME):
        if flag.value and os.sep in flag.value:  # a path, not a name
            flags.FLAGS[flag.name].value = files.absolute(flag.value)
    if CHECKPOINT.value and CHECKPOINT_NAME.value:
        raise command_line.UsageError(
            f"--checkpoint={CHECKPOINT.value} and --checkpoint_name={CHECKPOINT_NAME.value} mean the same: give one."
        )


def checkpoint() -> str:
    """Which checkpoint is asked for."""
    return CHECKPOINT.value or CHECKPOINT_NAME.value or "latest"
