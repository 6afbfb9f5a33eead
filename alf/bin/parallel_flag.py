"""The flag `--num_parallel_environments`, which several commands take. absl knows a flag by one definition."""

from __future__ import annotations

from absl import flags

PARALLEL = flags.DEFINE_integer(
    "num_parallel_environments",
    None,
    "Environments that are stepped together; by default as many as evaluations of the run have, and one for a video.",
)


def environments(num_episodes: int, filmed: bool = False) -> int:
    """How many environments play so many episodes side by side: by the flag, else as evaluations of the run do.

    Args:
      num_episodes: to play.
      filmed: a video is made, which shows the episodes of the first row alone.
    """
    from alf.environments.utils import create_environment
    from alf.trainers.counts import EnvironmentEpisodes
    from alf.trainers.run_environments import evaluation_rows
    from alf.utils.gin_utils import bound

    if PARALLEL.value is not None:
        return int(PARALLEL.value)
    if filmed:
        return 1
    rows = bound(create_environment, "num_parallel_environments")
    return evaluation_rows(EnvironmentEpisodes(num_episodes), rows if isinstance(rows, int) else num_episodes)
