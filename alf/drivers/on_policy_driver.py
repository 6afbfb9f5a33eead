"""The on-policy driver: collect a little, train on it once, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver

# How it is trained where a behavior says nothing itself.
_AS_COLLECTED = {"whole_replay_buffer_training": True, "clear_replay_buffer": True, "mini_batch_length": None}


@gin.configurable(module="alf")
class OnPolicyDriver(SyncOffPolicyDriver):
    """Collects `train_interval` steps and trains on them once, in turns.

    The loss re-runs the segment under the weights that acted and from the recurrent state before it, which is recorded
    in any case, so its gradient is the on-policy gradient.
    """

    def __init__(
        self,
        env: Any,
        algorithm: OffPolicyAlgorithm,
        observers: Sequence[Callable[..., Any]] | None = None,
        metrics: Sequence[Callable[..., Any]] | None = None,
        training: bool = True,
        train_interval: int = 20,
        *,
        random_seed: int | None = None,
        stepping: str = "auto",
    ) -> None:
        """Creates the driver; arguments not named here as in SyncOffPolicyDriver.

        Args:
          training: False only plays, by `rollout`, for the metrics and observers: the algorithm observes nothing, and its
            replayer and seed stay those that another driver may train it with. To play by `predict` use PolicyDriver.
          train_interval: T, steps between two updates.

        Raises:
          ValueError: that is fewer than the algorithm's targets look ahead, or a behavior cannot learn from such segments, or
            as `SyncOffPolicyDriver`.
        """
        # The row behind a segment is there to look at.
        ahead = algorithm.least_sample_length - 1
        if training and train_interval < ahead:
            raise ValueError(
                f"{algorithm.learner.name} looks {ahead} steps ahead, and learns from segments of train_interval="
                f"{train_interval} steps (TrainerConfig.unroll_length): set it to at least {ahead}."
            )
        self._learns = training
        if training:
            algorithm.use_rollout_state = True
        super().__init__(
            env, algorithm, train_interval, "one_time", observers, metrics, random_seed=random_seed, stepping=stepping
        )
        if training and isinstance(algorithm, Behaviors):
            algorithm.check_segments(_AS_COLLECTED)

    def run(  # type: ignore[override]
        self, max_num_steps: int | None = None, time_step: ActionTimeStep | None = None, policy_state: Nest = None
    ) -> tuple[ActionTimeStep, Nest, int]:
        """Collects and trains until at least `max_num_steps` single steps are made.

        Returns:
          the time step [B, ...], the policy state, and the steps made.
        """
        before = self._steps
        super().run(max_num_steps, time_step, policy_state)
        assert self._position is not None
        return (*self._position, self._steps - before)

    def _collect(self, segments: int) -> None:
        for _ in range(segments):
            self._observe([self._next_segment()])
            if self._learns:
                self._algorithm.train()
