"""Seeds for environments: drawn from `numpy.random.SeedSequence`, never by adding numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Seed = int | np.random.SeedSequence | Sequence[int] | None

# Environments hand seeds on to numpy's legacy generator, to C and to int32: 31 bits suit them all.
_SEED_RANGE = 2**31 - 1


def seed_sequence(seed: Seed) -> np.random.SeedSequence:
    """The `SeedSequence` that `seed` stands for; None draws fresh entropy from the operating system.

    Raises:
      ValueError: there is none.
    """
    if isinstance(seed, np.random.SeedSequence):
        return seed
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise ValueError(f"A seed is a whole number of at least 0, or several; got {seed!r}: correct it.") from None


def distinct_seeds(seed: Seed, count: int) -> list[int]:
    """`count` different integers in [0, 2**31 - 1), the same ones for the same seed.

    Args:
      seed: an integer, several, a SeedSequence, or None for fresh entropy.
      count: how many.
    """
    rng = np.random.Generator(np.random.PCG64(seed_sequence(seed)))
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        for value in rng.integers(_SEED_RANGE, size=count - len(chosen)):
            chosen[int(value)] = None
    return list(chosen)


def spawn_environment_seeds(seed: Seed, num_envs: int, batch_size: int) -> list[list[int]]:
    """Seeds for `num_envs` batched environments of `batch_size` rows each, no two rows alike.

    Args:
      seed: an integer, several, a SeedSequence, or None for fresh entropy.
      num_envs: how many batched environments (N).
      batch_size: rows of each (B).

    Returns:
      N lists of B integers; each list is what `create_environment` takes as `seed`.
    """
    seeds = distinct_seeds(seed, num_envs * batch_size)
    return [seeds[i * batch_size : (i + 1) * batch_size] for i in range(num_envs)]
