"""The flag `--epsilon_greedy`, which several commands take. absl knows a flag by one definition, so they share it."""

from __future__ import annotations

from absl import flags

EPSILON = flags.DEFINE_float(
    "epsilon_greedy",
    None,
    "Chance of a sampled instead of the most likely action; by default 0.1, to estimate 0.",
    lower_bound=0.0,
    upper_bound=1.0,
)


def epsilon_greedy(default: float = 0.1) -> float:
    """Its value, or `default` where none is given."""
    return default if EPSILON.value is None else EPSILON.value
