"""Records episodes of a trained policy, as a dataset to learn from or to judge other policies by.

    python -m alf.bin.record --root_dir=runs/cart_pole --num_episodes=200 --epsilon_greedy=1 --output=episodes.npz

Plays whole episodes, as the run's own environment gives them, and writes them as one file (see alf.replay.dataset). Of
discrete actions the chance with which each was chosen is written too, which alf.bin.estimate needs. It writes nothing
into --root_dir unless --output says so. Exit code 2: the command line, the configuration or the checkpoint is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from absl import flags, logging

from alf.bin import command_line, epsilon_flag, output_flag, parallel_flag, policy_flags, trained

flags.adopt_module_key_flags(command_line)
flags.adopt_module_key_flags(epsilon_flag)
flags.adopt_module_key_flags(output_flag)
flags.adopt_module_key_flags(parallel_flag)
for _name in ("checkpoint", "num_episodes", "random_seed"):
    flags.declare_key_flag(_name)


def record(
    root_dir: str,
    which: str,
    path: str,
    num_episodes: int,
    epsilon: float,
    batch_size: int = 1,
    seed: int | None = None,
) -> None:
    """Records episodes of a checkpoint of a run whose gin configuration is parsed.

    Args:
      root_dir: of the run.
      which: as `trained.restore` takes it.
      path: of the file to write.
      num_episodes: at least so many; each environment of the batch gives the same number.
      epsilon: chance of a sampled instead of the most likely action.
      batch_size: environments that are stepped together.
      seed: of environments and samples; None draws one.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the configuration.
      UsageError: there is no checkpoint at all, environment or algorithm cannot be built, episodes do not end,
        or the file cannot be written.
    """
    from alf.algorithms.behaviors import Behaviors
    from alf.data_structures import StepType
    from alf.drivers.recording import record_episodes
    from alf.replay.dataset import write_dataset

    env = trained.make_environment(seed, batch_size=min(batch_size, num_episodes))
    try:
        algorithm = trained.make_algorithm(root_dir, env)
        if isinstance(algorithm, Behaviors):
            raise command_line.UsageError("A dataset holds the steps of a single agent, and this run has behaviors.")
        restored = trained.restore(root_dir, algorithm, which)
        with command_line.told_as_usage():
            steps = record_episodes(algorithm, env, num_episodes, epsilon, seed)
    finally:
        env.close()
    with command_line.told_as_usage(), output_flag.told(path):
        write_dataset(path, steps)
    first, chances = steps.step_type == 0, not isinstance(steps.log_probability, tuple)
    logging.info(
        "%s: %d episodes of %s, %d steps, mean return %.2f, %s the chances of their actions.",
        path,
        first.sum(),
        restored.name,
        np.sum(steps.step_type != StepType.LAST),
        np.sum(steps.reward, dtype=np.float64) / first.sum(),
        "with" if chances else "without",
    )


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        policy_flags.check()
        unused = (policy_flags.RECORD_FILE, policy_flags.MAX_WAIT_SECS)
        command_line.refuse(unused, "episodes of one checkpoint are written to --output")
        command_line.at_least(parallel_flag.PARALLEL, 1)
        command_line.finite(epsilon_flag.EPSILON)
        if not output_flag.OUTPUT.value:
            raise command_line.UsageError("--output is missing: give the file to write, e.g. --output=episodes.npz.")
        command_line.has_suffix(output_flag.OUTPUT, ".npz")
        path = output_flag.OUTPUT.value
        command_line.check_directory(root_dir)
        command_line.set_up()
        command_line.parse_gin(root_dir)
        which, seed = policy_flags.checkpoint(), policy_flags.RANDOM_SEED.value
        episodes, epsilon = policy_flags.NUM_EPISODES.value, epsilon_flag.epsilon_greedy()
        rows = parallel_flag.environments(episodes)
        if parallel_flag.PARALLEL.value is None:
            # Each gives as many, and all of them together what was asked for.
            rows = max(n for n in range(1, rows + 1) if episodes % n == 0)
        record(root_dir, which, path, episodes, epsilon, rows, seed)

    return command_line.run(body)


if __name__ == "__main__":
    command_line.start(main)
