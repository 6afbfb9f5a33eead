"""What the algorithms with critics and target networks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.data_structures import Nest, TrainingInfo
from alf.utils.common import is_stateless
from alf.utils.target_updater import TargetUpdater, get_target_updater


def build_network(network: Any, what: str) -> Any:
    """`network`, or what it makes if it is a function, with its variables created.

    Raises:
      ValueError: it is recurrent.
    """
    built = network if isinstance(network, tf.Module) else network()
    built.create_variables()
    if not is_stateless(built.state_spec):
        raise ValueError(f"{what}={built.name} is recurrent; this algorithm takes feed-forward networks only.")
    return built


def copies(networks: Sequence[Any], prefix: str) -> list[Any]:
    """Networks of the same kind with variables of their own."""
    made = [network.copy(name=f"{prefix}{i}") for i, network in enumerate(networks)]
    for network in made:
        network.create_variables()
    return made


class CriticAlgorithm(OffPolicyAlgorithm):
    """An algorithm that learns values of actions from recorded transitions, with target networks.

    What acting remembers, such as noise, is no part of learning: recorded rows are learned from independently of each
    other. `train_step` keeps what the loss needs of each row; the loss runs the critics only where they are needed.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        trained: Sequence[tuple[Any, Sequence[Any]]],
        followed: Sequence[Any],
        critic_loss: Any,
        target_update_tau: float,
        target_update_period: int,
        target_update_unit: str,
        debug_summaries: bool,
        **kwargs: Any,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: spec of one action.
          trained: (optimiser or None, the modules and variables that it trains).
          followed: the networks that get a target network.
          critic_loss: the critics' loss; `OneStepTDLoss` by default.
          target_update_tau: see `get_target_updater`.
          target_update_period: see `get_target_updater`.
          target_update_unit: "updates" or "env_steps".

        Raises:
          ValueError: the action spec is a nest.
        """
        if len(tf.nest.flatten(action_spec)) != 1 or isinstance(action_spec, (list, tuple, dict)):
            raise ValueError(f"{type(self).__name__} takes a single action, got {action_spec}.")
        own = [(optimizer, list(modules)) for optimizer, modules in trained if optimizer is not None]
        super().__init__(
            observation_spec,
            action_spec,
            optimizer=[optimizer for optimizer, _ in own] or None,
            trainable_module_sets=[modules for _, modules in own] or None,
            debug_summaries=debug_summaries,
            **kwargs,
        )
        self._critic_loss = OneStepTDLoss(debug_summaries=debug_summaries) if critic_loss is None else critic_loss
        self._env_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="env_steps")
        self._target_networks = copies(followed, "target")
        self._update_targets: TargetUpdater = get_target_updater(
            followed,
            self._target_networks,
            target_update_tau,
            target_update_period,
            unit=target_update_unit,
            env_steps=self._env_steps if target_update_unit == "env_steps" else None,
        )

    def _trainable_attributes_to_ignore(self) -> list[str]:
        return ["_target_networks"]

    @property
    def learning_state_spec(self) -> Nest:
        """Nothing: rows are learned from independently of each other."""
        return ()

    def count_env_steps(self, steps: int) -> None:
        """See `RLAlgorithm.count_env_steps`."""
        self._env_steps.assign_add(steps)

    def after_train(self, training_info: TrainingInfo) -> None:
        """Moves the target networks."""
        self._update_targets()


def flat(rows: Nest) -> Nest:
    """[T, B, ...] as [T * B, ...]."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), rows)


def without_last(rows: Nest) -> Nest:
    """All rows but the last, [T - 1, B, ...], of rows [T, B, ...]: those whose action is learned from."""
    return tf.nest.map_structure(lambda x: x[:-1], rows)


def without_first(rows: Nest) -> Nest:
    """All rows but the first, [T - 1, B, ...], of rows [T, B, ...]: those that are looked at by a row before them."""
    return tf.nest.map_structure(lambda x: x[1:], rows)


def with_last(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Values of all rows but the last, [(T - 1) * B, ...], as [T, B, ...], with zeros in the last row; `like` [T, B]."""
    x = tf.reshape(x, [like.shape[0] - 1, -1, *x.shape[1:]])
    return tf.concat([x, tf.zeros_like(x[:1])], 0)


def with_first(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Values of all rows but the first, [(T - 1) * B, ...], as [T, B, ...], with zeros in the first row; `like` [T, B]."""
    x = tf.reshape(x, [like.shape[0] - 1, -1, *x.shape[1:]])
    return tf.concat([tf.zeros_like(x[:1]), x], 0)


def critic_values(critics: Sequence[Any], observation: Nest, action: tf.Tensor) -> list[tf.Tensor]:
    """Q(observation, action) of each critic, float32 [B], for rows [B, ...]."""
    return [critic((observation, action), step_type=(), network_state=())[0] for critic in critics]


def minimum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The element-wise minimum of one or two tensors."""
    return values[0] if len(values) == 1 else tf.minimum(*values)


def value_ascent(
    critics: Sequence[Any], observation: Nest, action: tf.Tensor, dqda_clipping: float | None
) -> tf.Tensor:
    """The value of actions, as something to maximise by the action alone.

    Args:
      critics: one or two, of which the smaller value counts.
      observation: rows [B, ...].
      action: float32 [B, ...], differentiable in what chose it.
      dqda_clipping: bounds each component of the gradient of the value with respect to the action.

    Returns:
      float32 [B]; no gradient flows into the critics, and that into the action is clipped.
    """
    with tf.GradientTape() as tape:
        fixed = tf.stop_gradient(action)
        tape.watch(fixed)
        q = minimum(critic_values(critics, observation, fixed))
    slope = tape.gradient(q, fixed)
    if dqda_clipping:
        slope = tf.clip_by_value(slope, -dqda_clipping, dqda_clipping)
    axes = list(range(1, action.shape.rank))
    # Zero in value, the slope in gradient.
    step = tf.reduce_sum(tf.stop_gradient(slope) * (action - fixed), axes)
    return tf.stop_gradient(q) + step
