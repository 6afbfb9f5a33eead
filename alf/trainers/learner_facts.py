"""What is told of learners beside their losses: the memories, the entropy of the actions, and what was left out."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience, Nest, StepType
from alf.utils import dist_utils, nest_utils

_DISTRIBUTION = "action_distribution"


class LearnerFacts:
    """The numbers of an algorithm, or of each of its behaviors, by tag; nothing is computed before it is asked for."""

    def __init__(self, algorithm: OffPolicyAlgorithm) -> None:
        """Follows what is observed from now on.

        Args:
          algorithm: that learns; it may have behaviors.
        """
        self._algorithm = algorithm
        learners: dict[str | None, OffPolicyAlgorithm] = {}
        if isinstance(algorithm, Behaviors):
            learners.update(algorithm.trained.items())
        else:
            learners[None] = algorithm
        self._entropies = {
            behavior: ActionEntropy(learner)
            for behavior, learner in learners.items()
            if _records_distributions(learner)
        }

    def scalars(self) -> dict[str, float]:
        """`Replay/transitions`, `Replay/episodes` and `Metrics/ActionEntropy`, of each behavior where there are some.

        Then the name of the behavior stands in between, and there is `Metrics/<behavior>/DroppedSteps`. An entropy is left
        out where actions are not drawn from a distribution that is recorded, or nothing was observed yet.
        """
        found: dict[str, float] = {}
        for behavior, memory in self._algorithm.memories().items():
            found[_tag("Replay", behavior, "transitions")] = memory.total_steps
            found[_tag("Replay", behavior, "episodes")] = memory.num_episodes
        for behavior, entropy in self._entropies.items():
            value = entropy.mean()
            if value is not None:
                found[_tag("Metrics", behavior, "ActionEntropy")] = value
        if isinstance(self._algorithm, Behaviors):
            for name, steps in self._algorithm.dropped_steps.items():
                found[_tag("Metrics", name, "DroppedSteps")] = steps
        return found


def _records_distributions(algorithm: OffPolicyAlgorithm) -> bool:
    specs = tf.nest.flatten(algorithm.action_distribution_spec)
    return bool(specs) and all(isinstance(spec, nest_utils.DistributionSpec) for spec in specs)


def _tag(group: str, behavior: str | None, name: str) -> str:
    return f"{group}/{name}" if behavior is None else f"{group}/{behavior}/{name}"


class ActionEntropy:
    """The entropy of the distributions that actions were drawn from, in the experience observed last."""

    def __init__(self, algorithm: OffPolicyAlgorithm) -> None:
        """Follows an algorithm that records the distributions of its actions."""
        self._spec = algorithm.action_distribution_spec
        self._last: tuple[tf.Tensor, Nest] | None = None
        algorithm.add_experience_observer(self._observe)

    def _observe(self, exp: Experience) -> None:
        self._last = exp.step_type, nest_utils.find_field(exp.rollout_info, _DISTRIBUTION)[0]

    def mean(self) -> float | None:
        """Nats, the sum over the components of an action and the mean over all steps but LAST; None where there are none.

        Squashed normal distributions have no closed form: theirs is estimated, by a sample of each.
        """
        if self._last is None:
            return None
        step_type, parameters = self._last
        decided = np.asarray(step_type) != StepType.LAST
        if not decided.any():
            return None
        distributions = nest_utils.params_to_distributions(parameters, self._spec)
        # The seed is its own: what a run draws does not depend on what is told of it.
        entropy, _ = dist_utils.compute_entropy(distributions, step_type.shape.rank, tf.constant([0, 0]))
        return float(np.mean(entropy.numpy()[decided]))
