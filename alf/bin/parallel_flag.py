"""The flag `--num_parallel_environments`, which several commands take. absl knows a flag by one definition."""

from __future__ import annotations

from absl import flags

PARALLEL = flags.DEFINE_integer("num_parallel_environments", 1, "Environments that are stepped together.")
