"""The base of algorithms that act: rollout, prediction, specs of what acting records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms import contracts
from alf.algorithms.algorithm import Algorithm
from alf.algorithms.predictions import outputs_of
from alf.data_structures import (
    ActionTimeStep,
    Experience,
    Nest,
    PolicyStep,
    TrainingInfo,
)
from alf.utils import nest_utils, rng
from alf.utils.action_masks import ActionMasks
from alf.utils.common import add_outer_dims, as_list, cast_transformer, is_stateless, zeros_from_spec
from alf.utils.random_actions import random_actions

# What `rollout` is asked for; also attributes of RLAlgorithm.
ON_POLICY_TRAINING = 0  # acting where nothing is recorded, as in evaluations without a `predict`
OFF_POLICY_TRAINING = 1  # re-running recorded steps for the loss: no side effects
ROLLOUT = 2  # acting to collect experience
PREPARE_SPEC = 3  # fake data, only to learn shapes: no side effects

_SPEC_BATCH = 2


@dataclasses.dataclass
class _Recorded:
    """What acting records and reads, once known, and who gets experience; kept from TensorFlow's tracking."""

    specs: tuple[Nest, Nest] | None = None
    variables: list[tf.Variable] | None = None
    observers: list[Callable[[Experience], None]] = dataclasses.field(default_factory=list)
    exploration_stands: bool = False


def _check_numbering(action_spec: Nest) -> None:
    """Networks number discrete actions from 0, and so must the specs; those of Gymnasium's spaces do."""
    for spec in tf.nest.flatten(action_spec):
        if isinstance(spec, BoundedTensorSpec) and spec.dtype.is_integer and np.any(spec.minimum != 0):
            raise ValueError(f"Discrete actions are numbered from 0; got {spec}: let the environment count so.")


@gin.configurable(module="alf")
class RLAlgorithm(Algorithm):
    """An algorithm that acts in an environment and learns from what happened.

    Subclasses define `rollout` (acting to collect), `train_step` (re-running a recorded step for the loss) and
    `calc_loss`; `predict` where acting for evaluation differs, `preprocess_experience` for targets that are computed
    once per batch.
    """

    # What `rollout` is asked for: see there.
    ON_POLICY_TRAINING = ON_POLICY_TRAINING
    OFF_POLICY_TRAINING = OFF_POLICY_TRAINING
    ROLLOUT = ROLLOUT
    PREPARE_SPEC = PREPARE_SPEC

    # From observations to actions or their distributions, in algorithms that have such a network.
    _actor_network: Any = None

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        train_state_spec: Nest = (),
        predict_state_spec: Nest = None,
        optimizer: Any = None,
        trainable_module_sets: Sequence[Sequence[tf.Module]] | None = None,
        gradient_clipping: float | None = None,
        clip_by_global_norm: bool = False,
        reward_shaping_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        observation_transformer: Callable[[Nest], Nest] | Sequence[Callable[[Nest], Nest]] | None = cast_transformer,
        debug_summaries: bool = False,
        summarize_grads_and_vars: bool = False,
        summarize_action_distributions: bool = False,
        name: str | None = None,
    ) -> None:
        """Creates the algorithm; arguments not named here as in `Algorithm`.

        Args:
          observation_spec: nest of specs of one raw observation, as the environment gives it.
          action_spec: nest of bounded specs of one action.
          reward_shaping_fn: maps rewards [B] to the rewards that are learned from; metrics show the raw ones.
          observation_transformer: one function or several, applied in order to the raw observations.
          summarize_grads_and_vars: report norms of every gradient and variable, whatever TrainerConfig says.
          summarize_action_distributions: report the parameters of the action distributions, likewise.

        Raises:
          ValueError: discrete actions are not numbered from 0, or its class defines a method of ALF's earlier releases that
            nothing calls, such as `summarize_train`.
        """
        contracts.check_methods(type(self))
        super().__init__(
            train_state_spec=train_state_spec,
            predict_state_spec=predict_state_spec,
            optimizer=optimizer,
            trainable_module_sets=trainable_module_sets,
            gradient_clipping=gradient_clipping,
            clip_by_global_norm=clip_by_global_norm,
            debug_summaries=debug_summaries,
            name=name,
        )
        _check_numbering(action_spec)
        self._observation_spec = observation_spec
        self._action_spec = action_spec
        self._reward_shaping_fn = reward_shaping_fn
        self._observation_transformers = as_list(observation_transformer)
        self._use_rollout_state = False
        self._action_masks = ActionMasks()
        self._recorded = _Recorded()
        self._summarize_grads_and_vars = summarize_grads_and_vars
        self._summarize_action_distributions = summarize_action_distributions

    # ---- specs ----

    @property
    def observation_spec(self) -> Nest:
        """Specs of one raw observation."""
        return self._observation_spec

    @property
    def action_spec(self) -> Nest:
        """Specs of one action."""
        return self._action_spec

    @property
    def time_step_spec(self) -> ActionTimeStep:
        """Specs of one raw time step, without batch axis."""
        return self._time_step_spec(self._observation_spec)

    def _time_step_spec(self, observation_spec: Nest) -> ActionTimeStep:
        return ActionTimeStep(
            step_type=tf.TensorSpec([], tf.int32),
            reward=tf.TensorSpec([], tf.float32),
            discount=tf.TensorSpec([], tf.float32),
            observation=add_outer_dims(observation_spec, []),
            prev_action=add_outer_dims(self._action_spec, []),
            env_id=tf.TensorSpec([], tf.int32),
        )

    @property
    def transformed_time_step_spec(self) -> ActionTimeStep:
        """Specs of one time step as `rollout` sees it, without batch axis."""
        return self._record_specs()[0]

    @property
    def rollout_info_spec(self) -> Nest:
        """Specs of what `rollout` records, distributions as distribution specs."""
        return self._record_specs()[1]

    @property
    def action_distribution_spec(self) -> Nest:
        """Spec of the action distribution inside the rollout info; `()` where there is none."""
        found = nest_utils.find_field(self.rollout_info_spec, "action_distribution")
        return found[0] if found else ()

    @property
    def experience_spec(self) -> Experience:
        """Specs of one recorded step, distributions as parameters, without the bootstrap."""
        time_step = self.transformed_time_step_spec
        return Experience(
            *time_step[:6],
            action=add_outer_dims(self._action_spec, []),
            rollout_info=nest_utils.to_distribution_param_spec(self.rollout_info_spec),
            state=add_outer_dims(self._train_state_spec, []) if self.need_full_rollout_state() else (),
            policy_version=tf.TensorSpec([], tf.int64),
        )

    def _record_specs(self) -> tuple[Nest, Nest]:
        """Finds the specs by acting once, eagerly, on zeros; this also builds layers that build themselves late."""
        if self._recorded.specs is None:
            raw = zeros_from_spec(self.time_step_spec, _SPEC_BATCH)
            time_step = self.transform_timestep(raw)
            observation_spec = nest_utils.extract_spec(time_step.observation)
            info_spec = self._info_spec(time_step) if self.acts else ()
            self._recorded.specs = (self._time_step_spec(observation_spec), info_spec)
        return self._recorded.specs

    def _info_spec(self, time_step: ActionTimeStep) -> Nest:
        state = zeros_from_spec(self._train_state_spec, _SPEC_BATCH)
        with rng.scope(tf.zeros([2], tf.int32)):
            policy_step = self.rollout(time_step, state, PREPARE_SPEC)
        contracts.check_policy_step(self.name, policy_step, _SPEC_BATCH, self._action_spec, self._train_state_spec)
        return nest_utils.extract_spec(policy_step.info)

    # ---- acting ----

    @property
    def acts(self) -> bool:
        """Whether it acts to collect experience; False for one that learns only from what it is given (offline, imitation).

        Such an algorithm defines no `rollout`. It brings its own replayer, already filled, or a `train` of its own; to be
        evaluated it defines `predict`.
        """
        return True

    @property
    def shapes_reward(self) -> bool:
        """Whether it learns from other rewards than the environment gives."""
        return self._reward_shaping_fn is not None

    def shape_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """The rewards that are learned from, for raw ones, both [B]."""
        return reward if self._reward_shaping_fn is None else self._reward_shaping_fn(reward)

    @property
    def transforms_observation(self) -> bool:
        """Whether it learns from other observations than the environment gives, apart from their dtype."""
        return any(transformer is not cast_transformer for transformer in self._observation_transformers)

    def transform_timestep(self, time_step: ActionTimeStep) -> ActionTimeStep:
        """Shapes the reward and transforms the observation, in this order; a pure function of its input."""
        reward, observation = self.shape_reward(time_step.reward), time_step.observation
        for transformer in self._observation_transformers:
            observation = transformer(observation)
        return time_step._replace(reward=reward, observation=observation)

    @property
    def action_masks(self) -> ActionMasks:
        """The masks of actions in transformed observations, as this algorithm splits them."""
        return self._action_masks

    def allowed_actions(self, time_step: ActionTimeStep) -> tf.Tensor | None:
        """Which actions a transformed time step [B, ...] allows, bool [B, number of actions]; None for all; reads no weights."""
        return self._action_masks.allowed(time_step.observation)

    @property
    def follows_goals(self) -> bool:
        """Whether it acts by goals that it draws itself, besides what it observes."""
        return False

    def random_action(self, time_step: ActionTimeStep) -> Nest:
        """An action at random for a transformed time step [B, ...], of those that it allows; reads no weights."""
        return random_actions(self._action_spec, tf.shape(time_step.step_type)[:1], self.allowed_actions(time_step))

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """Acts to collect experience.

        Args:
          time_step: transformed, [B, ...].
          state: nest as `train_state_spec` [B, ...]; rows at FIRST are already zero.
          mode: what for. ROLLOUT: to collect, in every driver. OFF_POLICY_TRAINING: recorded steps are run again, for the loss
            and for what is exported. PREPARE_SPEC: on zeros, to learn shapes. ON_POLICY_TRAINING: acting of which nothing
            is recorded, by the default `predict` and a PolicyDriver of that mode.

        Returns:
          PolicyStep(action, state, info); `info` is recorded and comes back as `rollout_info`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no rollout.")

    def state_after_decision(self, time_step: ActionTimeStep, action: Nest, before: Nest, acted: Nest) -> Nest:
        """What is remembered after an action that is not, or not only, this algorithm's; by default as after its own.

        Args:
          time_step: transformed, [B, ...].
          action: what was done, [B, ...].
          before: recurrent state before the step, zero at FIRST, [B, ...].
          acted: that after what this algorithm would have done.
        """
        return acted

    def act(self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor) -> PolicyStep:
        """One acting step of every driver: `rollout` with random numbers that follow from `seed`.

        Args:
          time_step: transformed, [B, ...].
          state: recurrent state before the step, zero at FIRST, [B, ...].
          seed: int32 [2].

        Returns:
          the PolicyStep, its info with distributions turned into their parameters.
        """
        with rng.scope(seed):
            policy_step = self.rollout(time_step, state, ROLLOUT)
        return policy_step._replace(info=nest_utils.distributions_to_params(policy_step.info))

    def acting_variables(self) -> list[tf.Variable]:
        """The variables that acting reads, in a fixed order: what a policy version consists of; none where `acts` is False."""
        if not self.acts:
            return []
        if self._recorded.variables is None:
            self._record_specs()

            @tf.function(autograph=False)
            def probe() -> Nest:
                time_step = self.transform_timestep(zeros_from_spec(self.time_step_spec, _SPEC_BATCH))
                state = zeros_from_spec(self._train_state_spec, _SPEC_BATCH)
                return self.act(time_step, state, tf.zeros([2], tf.int32))

            read = {v.ref() for v in probe.get_concrete_function().graph.variables}
            self._recorded.variables = [v for v in self.variables if v.ref() in read]
        return self._recorded.variables

    # ---- learning ----

    def preprocess_experience(self, experience: Experience) -> Experience:
        """Computes, once per batch, what the losses need beside the recorded data.

        Args:
          experience: [B', T, ...] with a bootstrap [B', ...]; rollout_info with distributions as parameters.

        Returns:
          Experience of the same axes. With the bootstrap left in, the learner appends it as a last row; an algorithm
          that has used it up replaces it by `()`.
        """
        return experience

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """Re-runs one recorded time slice [B, ...] under the current weights; see `rollout` for what it returns."""
        raise NotImplementedError(f"{type(self).__name__} defines no train_step.")

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """Acts for evaluation; by default as `rollout` does.

        Args:
          inputs: transformed time step [B, ...].
          state: nest as `predict_state_spec` [B, ...].
          epsilon_greedy: the chance, a row, of a sampled instead of the most likely action.
        """
        return self.rollout(inputs, state, ON_POLICY_TRAINING)

    @property
    def takes_encoded(self) -> bool:
        """Whether a network that learns with it may encode its observations."""
        return True

    @property
    def actor_field(self) -> str | None:
        """Dotted path of the part of an observation that the actor network gets; None for all."""
        return None

    def seen_by_actor(self, observation: Nest) -> Nest:
        """What the actor network gets of an observation [B, ...]."""
        return self._action_masks.observation(observation)

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """What the networks say of a time step, by name; see `alf.algorithms.predictions.get_predictions`.

        Args:
          time_step: transformed, [B, ...].
          state: nest as `train_state_spec` [B, ...].
        """
        return outputs_of(self.rollout(time_step, state, OFF_POLICY_TRAINING).info)

    @property
    def outputs_tell_chances(self) -> bool:
        """Whether what `predict` samples with `epsilon_greedy` follows from `outputs`, as `judging.judge` supposes."""
        return True

    # ---- experience observers ----

    def _rl_children(self) -> Iterator[RLAlgorithm]:
        return (child for child in self._children() if isinstance(child, RLAlgorithm))

    @property
    def use_rollout_state(self) -> bool:
        """Whether the state before each step is stored and recurrent training starts from it."""
        return self._use_rollout_state

    @use_rollout_state.setter
    def use_rollout_state(self, flag: bool) -> None:
        self._use_rollout_state = flag
        # More networks may be run in acting, for what they remember.
        self._recorded.variables = None
        for child in self._rl_children():
            child.use_rollout_state = flag

    def need_full_rollout_state(self) -> bool:
        """Whether experience must carry the recurrent state."""
        return self._use_rollout_state and not is_stateless(self._train_state_spec)

    @property
    def exp_observers(self) -> list[Callable[[Experience], None]]:
        """Functions that get every experience."""
        return self._recorded.observers

    def add_experience_observer(self, f: Callable[[Experience], None]) -> None:
        """Adds a function that gets every experience, as `observe` is given it: of transformed steps."""
        self._recorded.observers.append(f)

    def observe(self, exp: Experience) -> None:
        """Hands experience [Q, T, B, ...] (or [B, ...], one step) to the observers.

        Args:
          exp: of steps as `transform_timestep` gives them, which is not applied again: rewards are shaped, observations
            transformed. Drivers record such; of raw steps the learner would learn something else without a word.
        """
        self.count_env_steps(math.prod(exp.step_type.shape))
        if not self.need_full_rollout_state():
            exp = exp._replace(state=())
        for observer in self._recorded.observers:
            observer(exp)

    @property
    def exploration_stands(self) -> bool:
        """Whether schedules of exploration stand still, as in heat-up."""
        return self._recorded.exploration_stands

    @exploration_stands.setter
    def exploration_stands(self, flag: bool) -> None:
        self._recorded.exploration_stands = flag
        for child in self._rl_children():
            child.exploration_stands = flag

    def count_env_steps(self, steps: int) -> None:
        """Told of every `steps` environment steps observed; schedules and target networks may go by them."""
        for child in self._rl_children():
            child.count_env_steps(steps)

    def set_summary_settings(
        self, summarize_grads_and_vars: bool | None = None, summarize_action_distributions: bool | None = None
    ) -> None:
        """Switches what `train` reports beside the losses; None leaves it as it is."""
        if summarize_grads_and_vars is not None:
            self._summarize_grads_and_vars = summarize_grads_and_vars
        if summarize_action_distributions is not None:
            self._summarize_action_distributions = summarize_action_distributions

    def _report_as(self, *inside: RLAlgorithm) -> None:
        """Reports what one of those inside, which this one trains, was made to report."""
        self.set_summary_settings(
            any(one._summarize_grads_and_vars for one in inside) or None,
            any(one._summarize_action_distributions for one in inside) or None,
        )


def training_info_from(experience: Experience, info: Nest, rollout_info: Nest) -> TrainingInfo:
    """What losses see, of experience [T, B, ...] and the infos of its steps."""
    return TrainingInfo(
        action=experience.action,
        step_type=experience.step_type,
        reward=experience.reward,
        discount=experience.discount,
        info=info,
        rollout_info=rollout_info,
        env_id=experience.env_id,
    )


def check_constructor(what: str, make: Any) -> None:
    """Raises ValueError where `make`, bound to `what`, is a class of something else than algorithms, such as a loss."""
    if isinstance(make, type) and not issubclass(make, RLAlgorithm):
        raise ValueError(f"{what}={make.__name__} makes no algorithm: bind it to one, such as @SacAlgorithm.")
