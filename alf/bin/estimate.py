"""Estimates what a trained policy would earn, from recorded episodes alone: off-policy evaluation.

    python -m alf.bin.record --root_dir=runs/old --num_episodes=500 --epsilon_greedy=1 --output=episodes.npz
    python -m alf.bin.estimate --root_dir=runs/new --dataset=episodes.npz --output=estimates.json

No environment is stepped: each episode counts by how much more, or less, likely its actions are for the policy of
--root_dir than for the one that has played them. It needs discrete actions, and their chances in the dataset. Intervals
are of 95 %; effective_episodes says on how many equally weighted episodes the estimates rest. alf.utils.
off_policy_estimators has the formulas. Exit code 2: the command line, the configuration, the checkpoint or the dataset is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags, logging

from alf.bin import command_line, epsilon_flag, output_flag, policy_flags, trained
from alf.utils import files

_DATASET = flags.DEFINE_string("dataset", None, "Recorded episodes, by alf.bin.record or another program.")
_GAMMA = flags.DEFINE_float(
    "gamma", 1.0, "Discount of a step; 1 for the returns that alf.bin.evaluate tells.", 0.0, 1.0
)
flags.adopt_module_key_flags(command_line)
flags.adopt_module_key_flags(epsilon_flag)
flags.adopt_module_key_flags(output_flag)
flags.declare_key_flag("checkpoint")

FORMAT = 1

# A logarithm of 1, as other programs may have rounded it.
_MOST_ROUNDED = 1e-3


def estimate(root_dir: str, which: str, dataset: str, epsilon: float = 0.0, gamma: float = 1.0) -> dict[str, Any]:
    """Judges a checkpoint of a run whose gin configuration is parsed.

    Args:
      root_dir: of the run.
      which: as `trained.restore` takes it.
      dataset: path of recorded episodes.
      epsilon: chance with which the policy samples instead of taking the most likely action.
      gamma: discount of a step.

    Returns:
      the JSON result: `estimates` by their names, each with `mean`, `low` and `high`, and what they are of.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the configuration.
      UsageError: environment or algorithm cannot be built, the dataset cannot be used, or the policy has no chances.
    """
    from alf.algorithms.behaviors import Behaviors
    from alf.algorithms.judging import judge
    from alf.data_structures import StepType
    from alf.replay.dataset import DatasetError, read_dataset
    from alf.trainers.run_facts import versions
    from alf.utils import off_policy_estimators as estimators

    algorithm = trained.make_algorithm_alone(root_dir)
    if isinstance(algorithm, Behaviors):
        raise command_line.UsageError("Recorded episodes judge a single agent, and this run has behaviors.")
    restored = trained.restore(root_dir, algorithm, which)
    try:
        steps = read_dataset(dataset, algorithm.observation_spec, algorithm.action_spec)
    except DatasetError as e:
        raise command_line.UsageError(str(e)) from e
    judged = judge(algorithm, steps, epsilon)
    if judged is None:
        raise command_line.UsageError(
            f"{algorithm.name} gives no chances of discrete actions by what is recorded alone ({_why_none(algorithm)}): play "
            "it with alf.bin.evaluate."
        )
    if isinstance(steps.log_probability, tuple):
        raise command_line.UsageError(
            f"The dataset {dataset} has no column log_probability, the chances with which its actions were chosen: record "
            "it with alf.bin.record, or write the column."
        )
    above = steps.log_probability > _MOST_ROUNDED
    if above.any():
        raise command_line.UsageError(
            f"The dataset {dataset} has log_probability={steps.log_probability[above][0]} at step "
            f"{int(np.argmax(above))}, and no chance of a discrete action is above 1: write its natural logarithm, which is at "
            "most 0."
        )
    log_ratio = judged.log_probability - steps.log_probability
    episodes = estimators.contributions(steps.step_type, steps.reward, log_ratio, gamma, judged.value, judged.q_value)
    found = estimators.estimates(episodes)
    return {
        "format": FORMAT,
        "root_dir": root_dir,
        "checkpoint": restored.name,
        "step": restored.step,
        "dataset": dataset,
        "episodes": len(episodes.returns),
        "steps": int(np.sum(steps.step_type != StepType.LAST)),
        "epsilon_greedy": epsilon,
        "gamma": gamma,
        "effective_episodes": estimators.effective_episodes(episodes.relative_weight),
        "estimates": {name: _finite(one._asdict()) for name, one in found.items()},
        "versions": versions(),
    }


def _why_none(algorithm: Any) -> str:
    """Why a policy has no chances of recorded actions."""
    import tensorflow as tf

    if algorithm.follows_goals:
        return "it acts by goals"
    if not all(spec.dtype.is_integer for spec in tf.nest.flatten(algorithm.action_spec)):
        return "actions are continuous"
    if not algorithm.outputs_tell_chances:
        return "it tells no chances of what it samples, and without sampling only those of a Q-network's choice"
    return "it tells no probabilities of its actions and no values of them, as an ensemble"


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: x if math.isfinite(x) else None for name, x in numbers.items()}


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        policy_flags.check()
        command_line.refuse(policy_flags.OF_EPISODES, "nothing is played")
        command_line.has_suffix(output_flag.OUTPUT, ".json")
        command_line.finite(_GAMMA, epsilon_flag.EPSILON)
        dataset = _DATASET.value
        if not dataset:
            raise command_line.UsageError("--dataset is missing: give recorded episodes, e.g. --dataset=episodes.npz.")
        dataset = files.absolute(dataset)
        command_line.check_directory(root_dir)
        command_line.set_up()
        command_line.parse_gin(root_dir)
        _estimate_by_flags(root_dir, dataset)

    return command_line.run(body)


def _estimate_by_flags(root_dir: str, dataset: str) -> None:
    epsilon = epsilon_flag.epsilon_greedy(default=0.0)
    result = estimate(root_dir, policy_flags.checkpoint(), dataset, epsilon, _GAMMA.value)
    _tell(result)
    if output_flag.OUTPUT.value:
        output_flag.write(output_flag.OUTPUT.value, result)
        logging.info("Result: %s", output_flag.OUTPUT.value)


def _tell(result: dict[str, Any]) -> None:
    width = max(map(len, result["estimates"]))
    for name, one in result["estimates"].items():
        mean, low, high = ("not finite" if one[key] is None else f"{one[key]:.2f}" for key in ("mean", "low", "high"))
        logging.info("%-*s  %s [%s, %s]", width, name, mean, low, high)
    effective, episodes = result["effective_episodes"], result["episodes"]
    logging.info("%s, of %d episodes, which weigh as %.1f equal ones.", result["checkpoint"], episodes, effective)
    if effective < min(10.0, episodes / 2):
        logging.warning(
            "The estimates rest on %.1f episodes: record more, from a policy that is closer to this one, or with more of "
            "its actions sampled.",
            effective,
        )


if __name__ == "__main__":
    command_line.start(main)
