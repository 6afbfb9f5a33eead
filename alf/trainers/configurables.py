"""Imported for the names that gin files may use without importing them: those of nearly every run."""

import alf.algorithms.agent
import alf.algorithms.ppo_algorithm
import alf.environments.suite_unittest
import alf.trainers.off_policy_trainer
import alf.trainers.on_policy_trainer
import alf.trainers.schedule
import alf.trainers.stopping
import alf.utils.dist_utils
import alf.utils.external_configurables
import alf.utils.losses
import alf.utils.math_ops  # noqa: F401
