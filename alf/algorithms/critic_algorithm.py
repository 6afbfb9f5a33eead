"""What the algorithms with critics and target networks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.exploration import Exploration
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.data_structures import Nest, TrainingInfo, namedtuple
from alf.networks.calling import call_network, learning
from alf.utils.common import flat, is_bounded, is_stateless, only_true
from alf.utils.target_updater import TargetUpdater, get_target_updater

if TYPE_CHECKING:
    from alf.algorithms.parameter_noise import ParameterNoise

NetworkStates = namedtuple(
    "NetworkStates", ["actor", "critics", "target_actor", "target_critics", "noise"], default_value=()
)
NetworkStates.__doc__ = """What the networks of an algorithm with critics remember of a row, and the noise of acting.

`critics` and `target_critics` are tuples with one state for each network, `()` for a feed-forward one. The target
networks' are there in learning only. A critic remembers what was observed and done, whatever action it judges next.
"""


def refuse(name: str, given: Mapping[str, Any], advice: Mapping[str, str]) -> None:
    """Refuses arguments that an algorithm shares with the one it is made from, and that mean nothing to it.

    Args:
      name: of the algorithm.
      given: its arguments by name.
      advice: what to do instead, by the name of each argument to refuse.

    Raises:
      ValueError: one of them is given.
    """
    for argument, instead in advice.items():
        if argument in given:
            raise ValueError(f"{name} takes no {argument}, got {given[argument]!r}: {instead}.")


def check_bounds(action_spec: Nest, name: str) -> None:
    """Raises ValueError where a continuous action is not bounded: what acts, explores or judges goes by its range."""
    for spec in tf.nest.flatten(action_spec):
        if not spec.dtype.is_floating:
            continue
        bounds = BoundedTensorSpec.from_spec(spec)
        low, high = np.min(bounds.minimum), np.max(bounds.maximum)
        if not is_bounded(low, high):
            raise ValueError(
                f"{name} needs bounded actions, got {low:g} to {high:g}: have a wrapper, such as "
                "gymnasium.wrappers.TransformAction, rescale them from a Box such as [-1, 1], or use PPO with an actor whose "
                "NormalProjectionNetwork.mean_transform is None."
            )


def state_spec_of(actor: Any = None, critics: Sequence[Any] = (), noise: Nest = ()) -> Nest:
    """Specs of what these networks and the noise remember, NetworkStates; `()` where that is nothing."""
    spec = NetworkStates(
        actor=() if actor is None else actor.state_spec, critics=tuple(c.state_spec for c in critics), noise=noise
    )
    return () if is_stateless(spec) else spec


def advance(networks: Sequence[Any], inputs: Nest, step_type: tf.Tensor, states: Sequence[Nest]) -> Sequence[Nest]:
    """What the networks remember after `inputs` [B, ...], each from its own of `states`; feed-forward ones are not run."""
    if is_stateless(states):
        return states
    return tuple(
        () if is_stateless(state) else network(inputs, step_type=step_type, network_state=state)[1]
        for network, state in zip(networks, states, strict=True)
    )


def copies(networks: Sequence[Any], prefix: str) -> list[Any]:
    """Networks of the same kind with variables of their own, whose kernels begin with other values.

    Raises:
      ValueError: one cannot be copied, or a copy shares variables with its original, such as those of a layer that was
        made outside of it.
    """
    made = [_copy(network, f"{prefix}{i}") for i, network in enumerate(networks)]
    for original, network in zip(networks, made, strict=True):
        network.create_variables()
        own = {v.ref() for v in original.variables}
        shared = [v.name for v in network.variables if v.ref() in own]
        if shared:
            raise ValueError(
                f"A copy of {original.name}, such as its target network, shares {', '.join(shared)} with it: have its "
                "__init__ make every layer, instead of taking layers as arguments."
            )
        _draw_equal_kernels(original, network)
    return made


def _copy(network: Any, name: str) -> Any:
    try:
        return network.copy(name=name)
    except TypeError as e:
        raise ValueError(
            f"{network.name} cannot be copied, as for its target network: a copy is a {type(network).__name__} made with the "
            "same arguments and another `name`, which its __init__ has to take and to hand to super().__init__."
        ) from e


# What Keras' layers begin with at random, by the name of the initialiser.
_RANDOM = {
    "kernel_initializer": "kernel",
    "recurrent_initializer": "recurrent_kernel",
    "depthwise_initializer": "depthwise_kernel",
    "pointwise_initializer": "pointwise_kernel",
    "embeddings_initializer": "embeddings",
}


def _draw_equal_kernels(original: Any, network: Any) -> None:
    """Draws kernels anew that begin like the original's: some networks copy weights too, or share an initialiser."""
    taken = [v.numpy() for v in original.trainable_variables]
    for layer in network.submodules:
        for name, random in _RANDOM.items():
            initializer, kernel = vars(layer).get(name), vars(layer).get(random)
            if isinstance(kernel, tf.Variable) and any(np.array_equal(kernel, value) for value in taken):
                kernel.assign(_unseeded(initializer)(kernel.shape, dtype=kernel.dtype))


def _unseeded(initializer: Any) -> Any:
    if not hasattr(initializer, "get_config"):  # A function.
        return initializer
    config = initializer.get_config()
    return type(initializer).from_config({**config, **{k: None for k in config if k == "seed"}})


class CriticAlgorithm(OffPolicyAlgorithm):
    """An algorithm that learns values of actions from recorded transitions, with target networks.

    `train_step` keeps what the loss needs of each row; the loss runs the critics only where they are needed. With
    feed-forward networks, recorded rows are learned from independently of each other. Recurrent ones are run over the
    rows as they were recorded, from the state before the first of them, which is recorded with
    `RLAlgorithm.use_rollout_state` and zero without; target networks begin with what those that they follow had
    (Kapturowski et al. 2019, R2D2).
    """

    # Whether an action may be a nest of continuous ones.
    takes_nests = False
    _critic_networks: list[Any]
    # What explores when it acts to collect, and what shakes the weights that act then, where there is such a thing.
    _exploration: Exploration | None = None
    _parameter_noise: ParameterNoise | None = None

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
          action_spec: spec of one action, or, where `takes_nests`, a nest of float specs.
          trained: (optimiser or None, the modules and variables that it trains).
          followed: the networks that get a target network.
          critic_loss: the critics' loss, called as an `OneStepTDLoss` is, with its `n_step` and `gamma`; that by default.
          target_update_tau: see `get_target_updater`.
          target_update_period: see `get_target_updater`.
          target_update_unit: "updates" or "env_steps".

        Raises:
          ValueError: the action spec is a nest that it does not take, or of continuous actions without finite bounds; or
            the loss is none.
        """
        self.check_nesting(action_spec)
        check_bounds(action_spec, type(self).__name__)
        own = [(optimizer, list(modules)) for optimizer, modules in trained if optimizer is not None]
        super().__init__(
            observation_spec,
            action_spec,
            optimizer=[optimizer for optimizer, _ in own] or None,
            trainable_module_sets=[modules for _, modules in own] or None,
            debug_summaries=debug_summaries,
            **kwargs,
        )
        if critic_loss is not None and (isinstance(critic_loss, type) or not callable(critic_loss)):
            raise ValueError(
                f"{self.name}.critic_loss={critic_loss!r} is not the loss of a critic: make one, in gin @OneStepTDLoss()."
            )
        self._critic_loss = self._default_loss(debug_summaries) if critic_loss is None else critic_loss
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

    @classmethod
    def check_nesting(cls, action_spec: Nest) -> None:
        """Raises ValueError where the action spec is a nest that the algorithm does not take."""
        nest = isinstance(action_spec, (list, tuple, dict))
        mixed = any(not spec.dtype.is_floating for spec in tf.nest.flatten(action_spec))
        if nest and (mixed or not cls.takes_nests):
            kind = "a single action, or a nest of continuous ones" if cls.takes_nests else "a single action"
            raise ValueError(f"{cls.__name__} takes {kind}, got {action_spec}: use PPO or another actor-critic.")
        for spec in tf.nest.flatten(action_spec):
            if spec.dtype.is_integer and spec.shape.num_elements() != 1:
                raise ValueError(
                    f"{cls.__name__} takes one discrete choice at a time, and {spec.name or 'the action'} is of "
                    f"{spec.shape.num_elements()}: use PPO or another actor-critic."
                )

    def _default_loss(self, debug_summaries: bool) -> Any:
        """The critic's, where none is given; None for an algorithm that has another."""
        return OneStepTDLoss(**only_true(debug_summaries=debug_summaries))

    def _trainable_attributes_to_ignore(self) -> list[str]:
        return ["_target_networks", "_parameter_noise"]

    def followers(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """See `Algorithm.followers`: the target networks, and what explorations act by."""
        shaken = [pair for exploration in self.explorations for pair in exploration.followers()]
        return [*super().followers(), *self._update_targets.pairs, *shaken]

    @property
    def learning_state_spec(self) -> Nest:
        """Nothing, unless a network is recurrent: noise is no part of learning."""
        spec = self._train_state_spec
        return () if is_stateless(spec) or is_stateless(spec._replace(noise=())) else spec

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """What the networks that `predict` runs remember."""
        spec = self._predict_state_spec
        if is_stateless(spec):
            return ()
        return NetworkStates(
            **{name: getattr(state, name) for name in spec._fields if not is_stateless(getattr(spec, name))}
        )

    def state_for_learning(self, state: Nest) -> Nest:
        """With what the target networks remember: the same as those that they follow."""
        states = self.states_of(state)
        target_actor = () if self._target_actor is None else states.actor
        return states._replace(target_actor=target_actor, target_critics=states.critics)

    @property
    def _target_actor(self) -> Any:
        """The actor's target network, where there is one."""
        return None

    @property
    def _target_critics(self) -> list[Any]:
        """The critics' target networks."""
        return list(self._target_networks)

    def states_of(self, state: Nest) -> Any:
        """`state` as NetworkStates; of feed-forward networks, which remember nothing, where there is none."""
        if isinstance(state, NetworkStates):
            return state
        nothing: tuple[Nest, ...] = ((),) * len(self._critic_networks)
        return NetworkStates(critics=nothing, target_critics=nothing)

    def critic_inputs(self, observation: Nest, action: tf.Tensor) -> Nest:
        """What the critics get of rows [B, ...]."""
        return observation, action

    def next_states(self, inputs: Any, action: tf.Tensor, states: Any, actor_state: Nest) -> Any:
        """What the networks remember after a row.

        Args:
          inputs: time step or experience [B, ...].
          action: what was done, [B, ...].
          states: NetworkStates [B, ...] before it.
          actor_state: what the actor remembers after it.
        """
        seen, step_type = self.critic_inputs(inputs.observation, action), inputs.step_type
        return states._replace(
            actor=actor_state,
            critics=advance(self._critic_networks, seen, step_type, states.critics),
            target_actor=advance([self._target_actor], inputs.observation, step_type, [states.target_actor])[0],
            target_critics=advance(self._target_critics, seen, step_type, states.target_critics),
        )

    def state_after_acting(self, time_step: Any, action: tf.Tensor, states: Any, actor_state: Nest) -> Nest:
        """As `next_states`. Critics, which acting has no need of, are run only where what they remember is recorded."""
        if is_stateless(self._train_state_spec):
            return ()
        if self.use_rollout_state:
            return self.next_states(time_step, action, states, actor_state)
        return states._replace(actor=actor_state)

    def state_after_decision(self, time_step: Any, action: tf.Tensor, before: Nest, acted: Nest) -> Nest:
        """See `RLAlgorithm.state_after_decision`; critics remember what was done."""
        if not isinstance(acted, NetworkStates) or not self.use_rollout_state:
            return acted
        return self.next_states(time_step, action, before._replace(noise=acted.noise), acted.actor)

    @property
    def explorations(self) -> list[Exploration]:
        """What explores when it acts to collect."""
        return [each for each in (self._exploration, self._parameter_noise) if each is not None]

    def exploration_metrics(self) -> dict[str, tf.Tensor]:
        """For the loss to report, float32 [] by name: what controls exploration, and what parameter noise tells."""
        found = {}
        if self._exploration is not None:
            found[self._exploration.control] = tf.convert_to_tensor(self._exploration.strength())
        if self._parameter_noise is not None:
            found.update(self._parameter_noise.metrics())
        return found

    @property
    def n_step(self) -> int:
        """How many steps targets look ahead."""
        return self._critic_loss.n_step

    @property
    def least_sample_length(self) -> int:
        """A row, and those that its target looks at."""
        return self.n_step + 1

    @property
    def rows_only_looked_at(self) -> int:
        """Those behind the last row that is trained: they are there for targets, through which no gradient flows."""
        return self.n_step

    def count_env_steps(self, steps: int) -> None:
        """See `RLAlgorithm.count_env_steps`."""
        self._env_steps.assign_add(steps)
        if not self.exploration_stands:
            for exploration in self.explorations:
                exploration.advance("env_steps", steps)

    def target_mark(self) -> dict[str, tf.Tensor]:
        """For the loss to report: `target_update`, float32 [], 1 where the target networks move after this update, else 0."""
        return {"target_update": tf.cast(self._update_targets.due(), tf.float32)}

    def after_train(self, training_info: TrainingInfo) -> None:
        """Moves target networks and clocks of exploration, and shakes the weights that act anew where it is time."""
        if self._parameter_noise is not None:
            self._shake(self._parameter_noise, flat(training_info))
        self._update_targets()
        for exploration in self.explorations:
            exploration.advance("updates", 1)

    def _shake(self, noise: ParameterNoise, rows: TrainingInfo) -> None:
        """Tells the parameter noise of an update on rows [T * B, ...]; algorithms that take such noise define it."""
        raise NotImplementedError(f"{type(self).__name__} takes no parameter noise.")


def critic_values(
    critics: Sequence[Any], inputs: Nest, step_type: tf.Tensor, states: Sequence[Nest]
) -> list[tf.Tensor]:
    """What each critic makes of rows of `inputs` [B, ...] and of what it remembers before each, float32 [B, ...]."""
    return [
        call_network(critic, inputs, step_type=step_type, network_state=state)[0]
        for critic, state in zip(critics, states, strict=True)
    ]


def minimum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The element-wise minimum of one or two tensors."""
    return values[0] if len(values) == 1 else tf.minimum(*values)


def value_ascent(
    critics: Sequence[Any],
    observation: Nest,
    action: Nest,
    dqda_clipping: float | None,
    step_type: tf.Tensor,
    states: Sequence[Nest],
) -> tf.Tensor:
    """The value of actions, as something to maximise by the action alone.

    Args:
      critics: one or two, of which the smaller value counts.
      observation: rows [B, ...].
      action: nest of float32 [B, ...], differentiable in what chose it.
      dqda_clipping: bounds each component of the gradient of the value with respect to the action.
      step_type: int32 [B].
      states: what each critic remembers before each row.

    Returns:
      float32 [B]; no gradient flows into the critics, and that into the action is clipped.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape, learning(False):
        fixed = tf.nest.map_structure(tf.stop_gradient, action)
        tape.watch(fixed)
        q = minimum(critic_values(critics, (observation, fixed), step_type, states))
    total = tf.stop_gradient(q)
    slopes = tf.nest.flatten(tape.gradient(q, fixed))
    for slope, chosen, held in zip(slopes, tf.nest.flatten(action), tf.nest.flatten(fixed), strict=True):
        if dqda_clipping:
            slope = tf.clip_by_value(slope, -dqda_clipping, dqda_clipping)
        axes = list(range(1, chosen.shape.rank))
        # Zero in value, the slope in gradient.
        total += tf.reduce_sum(tf.stop_gradient(slope) * (chosen - held), axes)
    return total
