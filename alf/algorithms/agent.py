"""The shell that composes an algorithm from parts: what sees, what sets goals and rewards, and what learns to act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent_parts import (
    AgentInfo,
    AgentState,
    by_size,
    check_entropy_target,
    check_parts,
    goal_of,
    of_part,
    part,
    state_of,
    total_loss,
    what_follows,
)
from alf.algorithms.curiosity import CuriosityAlgorithm, Explored, Transition
from alf.algorithms.entropy_target_algorithm import EntropyTargetAlgorithm
from alf.algorithms.network_kinds import build_network
from alf.algorithms.normalization import ObservationNormalizer, RewardNormalizer
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, RLAlgorithm, check_constructor
from alf.data_structures import (
    ActionTimeStep,
    Experience,
    LossInfo,
    Nest,
    PolicyStep,
    TrainingInfo,
)
from alf.networks.calling import call_network
from alf.utils import nest_utils
from alf.utils.common import as_list, cast_transformer, check_made, flat, is_stateless, reset_state_at_first

# Stands for the goal where there is no goal generator.
_NO_GOAL = PolicyStep((), (), ())


def _built_encoder(network: Any, observation_spec: Nest) -> tuple[Any, Nest]:
    """The encoding network, None where there is none, and specs of what it makes of an observation."""
    if network is None:
        return None, observation_spec
    encoder = build_network(network)
    if not is_stateless(encoder.state_spec):
        raise ValueError(
            "Agent's encoding_network must be feed-forward: put recurrence into the actor and value networks."
        )
    return encoder, encoder.create_variables()


@gin.configurable(module="alf")
class Agent(OffPolicyAlgorithm):
    """An RL algorithm with what may stand around it; owns transforms, optimiser and clipping.

    An observation is transformed, normalised and encoded; with a goal generator the RL algorithm sees the list
    [observation, goal]. Transforms that make it larger, such as pictures of bytes into numbers, come after recording: queues
    and replay memories hold the bytes, acting and learning scale what they look at. What it learns from is, at every step,

        extrinsic_reward_coef * reward + intrinsic_reward_coef * intrinsic reward + the goal generator's reward,

    put together in one place, in the learner, for every kind of RL algorithm. The curiosity module is not run in acting.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        rl_algorithm_cls: Callable[..., Any] = ActorCriticAlgorithm,
        encoding_network: Any = None,
        intrinsic_curiosity_module: CuriosityAlgorithm | None = None,
        goal_generator: RLAlgorithm | None = None,
        intrinsic_reward_coef: float = 1.0,
        extrinsic_reward_coef: float = 1.0,
        enforce_entropy_target: bool = False,
        entropy_target_cls: Callable[..., EntropyTargetAlgorithm] | None = None,
        optimizer: Any = None,
        gradient_clipping: float | None = None,
        clip_by_global_norm: bool = False,
        reward_shaping_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        observation_transformer: Callable[[Nest], Nest] | Sequence[Callable[[Nest], Nest]] | None = cast_transformer,
        debug_summaries: bool = False,
        name: str = "AgentAlgorithm",
        *,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
        intrinsic_reward_scales: bool = False,
    ) -> None:
        """Creates the agent; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one raw observation.
          action_spec: nest of specs of one action.
          rl_algorithm_cls: makes the RL algorithm, called with observation_spec, of what it will see, action_spec and
            debug_summaries.
          encoding_network: a feed-forward TF-Agents network (or a function that makes it) from transformed observations
            to what the RL algorithm sees; trained with it.
          intrinsic_curiosity_module: gives the intrinsic reward, such as ICMAlgorithm; it sees encoded observations,
            without masks of actions.
          goal_generator: its action is the goal; it sees transformed, normalised observations that are not encoded.
          intrinsic_reward_coef: see above.
          extrinsic_reward_coef: see above.
          enforce_entropy_target: adds the loss of `entropy_target_cls`.
          entropy_target_cls: called with action_spec and debug_summaries; EntropyTargetAlgorithm by default.
          observation_normalizer: normalises transformed observations.
          reward_normalizer: scales shaped rewards.
          intrinsic_reward_scales: the intrinsic reward does not add to the extrinsic one, but multiplies it: by
            1 + intrinsic_reward_coef * intrinsic reward.

        Raises:
          ValueError: `rl_algorithm_cls` makes no algorithm, the encoding network is recurrent or the RL algorithm takes none,
            masks of actions would be normalised or encoded, or stand beside a goal, a part is made for what another does not
            give, does not act, cannot be called as it will be, or has a `reward_shaping_fn` or an `observation_transformer` of
            its own.
        """
        check_constructor("Agent.rl_algorithm_cls", rl_algorithm_cls)
        check_made(
            name,
            intrinsic_curiosity_module=intrinsic_curiosity_module,
            goal_generator=goal_generator,
            observation_normalizer=observation_normalizer,
            reward_normalizer=reward_normalizer,
        )
        recorded, late, transformed = by_size(as_list(observation_transformer), observation_spec)
        encoder, seen_spec = _built_encoder(encoding_network, transformed)
        goal_states: tuple[Nest, Nest] = ((), ())
        if goal_generator is not None:
            seen_spec = [seen_spec, goal_generator.action_spec]
            goal_states = (goal_generator.train_state_spec, goal_generator.predict_state_spec)
        rl_algorithm = rl_algorithm_cls(
            observation_spec=seen_spec, action_spec=action_spec, debug_summaries=debug_summaries
        )
        check_parts(
            name, rl_algorithm, goal_generator, encoder, transformed, observation_normalizer, intrinsic_curiosity_module
        )
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=state_of(rl_algorithm.train_state_spec, goal_states[0]),
            predict_state_spec=state_of(rl_algorithm.predict_state_spec, goal_states[1]),
            optimizer=optimizer,
            gradient_clipping=gradient_clipping,
            clip_by_global_norm=clip_by_global_norm,
            reward_shaping_fn=reward_shaping_fn,
            observation_transformer=recorded,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._late_transformers, self._encoding_network = late, encoder
        self._rl_algorithm = rl_algorithm
        self._report_as(rl_algorithm)
        self._action_masks = rl_algorithm.action_masks
        self._icm = intrinsic_curiosity_module
        self._goal_generator = goal_generator
        self._coefs = (extrinsic_reward_coef, intrinsic_reward_coef)
        self._intrinsic_reward_scales = intrinsic_reward_scales
        if self._icm is None and (intrinsic_reward_coef != 1.0 or intrinsic_reward_scales):
            logging.warning("%s: there is no intrinsic reward without an intrinsic_curiosity_module.", name)
        self._entropy_target = None
        if enforce_entropy_target:
            make = entropy_target_cls or EntropyTargetAlgorithm
            self._entropy_target = make(action_spec=action_spec, debug_summaries=debug_summaries)
            check_entropy_target(name, self._entropy_target)
        self._observation_normalizer = observation_normalizer
        self._reward_normalizer = reward_normalizer
        if observation_normalizer is not None:
            self.add_experience_observer(lambda exp: observation_normalizer.observe(self._unpacked_rows(exp)))
            self.add_after_train_hook(observation_normalizer.publish)
        if reward_normalizer is not None:
            self.add_experience_observer(reward_normalizer.observe)
            self.add_after_train_hook(reward_normalizer.publish)

    @property
    def learning_state_spec(self) -> Nest:
        """The RL algorithm's; goals are recorded."""
        return () if is_stateless(self._rl_algorithm.learning_state_spec) else self._train_state_spec

    def state_for_learning(self, state: Nest) -> Nest:
        """With the RL algorithm's."""
        return state._replace(rl=self._rl_algorithm.state_for_learning(state.rl))

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """The parts'."""
        rl = self._rl_algorithm.convert_train_state_to_predict_state(part(state, "rl"))
        return state_of(rl, part(state, "goal_generator"))

    # ---- seeing ----

    def _unpacked(self, observation: Nest) -> Nest:
        """A recorded observation [B, ...] with the transforms that are left to whoever looks at it."""
        for transformer in self._late_transformers:
            observation = transformer(observation)
        return observation

    def _normalized(self, inputs: Any) -> Any:
        """`inputs` (a time step or experience, [B, ...]) with its observation unpacked and normalised."""
        observation = self._unpacked(inputs.observation)
        if self._observation_normalizer is not None:
            observation = self._observation_normalizer.normalize(observation)
        return inputs._replace(observation=observation)

    def _unpacked_rows(self, exp: Experience) -> Experience:
        """Experience with any leading axes, its observation as unpacked rows [n, ...]."""
        axes = exp.step_type.shape.rank
        rows = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[axes:]]), exp.observation)
        return exp._replace(observation=self._unpacked(rows))

    def allowed_actions(self, time_step: ActionTimeStep) -> tf.Tensor | None:
        """See `RLAlgorithm.allowed_actions`."""
        return self._action_masks.allowed(self._unpacked(time_step.observation))

    @property
    def follows_goals(self) -> bool:
        """Whether there is a goal generator."""
        return self._goal_generator is not None

    def _encoded(self, observation: Nest, step_type: tf.Tensor) -> Nest:
        """A normalised observation [B, ...] encoded."""
        if self._encoding_network is None:
            return observation
        return call_network(self._encoding_network, observation, step_type=step_type, network_state=())[0]

    def _seen(self, inputs: Any, goal: Nest) -> Any:
        """`inputs` (a time step or experience, [B, ...]) as the RL algorithm sees it."""
        inputs = self._normalized(inputs)
        observation = self._encoded(inputs.observation, inputs.step_type)
        return inputs._replace(observation=observation if self._goal_generator is None else [observation, goal])

    # ---- acting ----

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The RL algorithm's rollout on what it sees, with the goal generator's."""
        goal = _NO_GOAL
        if self._goal_generator is not None:
            goal = self._goal_generator.rollout(self._normalized(time_step), part(state, "goal_generator"), mode)
        step = self._rl_algorithm.rollout(self._seen(time_step, goal.action), part(state, "rl"), mode)
        return self._joined(step, goal)

    def state_after_decision(self, time_step: ActionTimeStep, action: Nest, before: Nest, acted: Nest) -> Nest:
        """See `RLAlgorithm`; beside a goal generator, whose goal is not told here, as after the agent's own action."""
        if not isinstance(acted, AgentState) or self._goal_generator is not None:
            return acted
        seen = self._seen(time_step, ())
        return acted._replace(rl=self._rl_algorithm.state_after_decision(seen, action, before.rl, acted.rl))

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The RL algorithm's predict on what it sees, with the goal generator's."""
        goal = _NO_GOAL
        if self._goal_generator is not None:
            goal = self._goal_generator.predict(self._normalized(inputs), part(state, "goal_generator"), epsilon_greedy)
        step = self._rl_algorithm.predict(self._seen(inputs, goal.action), part(state, "rl"), epsilon_greedy)
        return self._joined(step, goal)

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The RL algorithm's, and the "embedding" by the encoding network."""
        goal = _NO_GOAL
        if self._goal_generator is not None:
            generator_state = part(state, "goal_generator")
            goal = self._goal_generator.rollout(self._normalized(time_step), generator_state, OFF_POLICY_TRAINING)
        outputs = dict(self._rl_algorithm.outputs(self._seen(time_step, goal.action), part(state, "rl")))
        if self._encoding_network is not None:
            normalized = self._normalized(time_step)
            outputs["embedding"] = self._encoded(normalized.observation, time_step.step_type)
        return outputs

    def _joined(self, step: PolicyStep, goal: PolicyStep) -> PolicyStep:
        info = AgentInfo(rl=step.info, goal_generator=goal.info)
        return PolicyStep(step.action, state_of(step.state, goal.state), info)

    # ---- learning ----

    @property
    def least_sample_length(self) -> int:
        """The RL algorithm's; the curiosity module learns from transitions, and rewards are put together in sequences."""
        composed = (self._icm, self._reward_normalizer, self._goal_generator)
        alone = all(part is None for part in composed) and self._coefs[0] == 1.0
        return max(1 if alone else 2, self._rl_algorithm.least_sample_length)

    @property
    def learner(self) -> OffPolicyAlgorithm:
        """The RL algorithm's, unless the reward asks for more."""
        inside = self._rl_algorithm
        return self if inside.least_sample_length < self.least_sample_length else inside.learner

    def preprocess_experience(self, experience: Experience) -> Experience:
        """Puts the reward together, and has the RL algorithm preprocess what it sees of it."""
        experience = self._rewarded(experience)
        recorded, bootstrap = experience.rollout_info, experience.bootstrap
        goals = goal_of(recorded)
        # Where the RL algorithm does not look at it, TensorFlow does not compute it.
        seen = self._seen(flat(experience._replace(bootstrap=(), state=())), flat(goals)).observation
        steps = experience.step_type.shape[1]
        inner = experience._replace(
            observation=tf.nest.map_structure(lambda x: tf.reshape(x, [-1, steps, *x.shape[1:]]), seen),
            rollout_info=part(recorded, "rl"),
            state=part(experience.state, "rl"),
        )
        if bootstrap != ():
            goal = tf.nest.map_structure(lambda g: g[:, -1], goals)
            inner = inner._replace(
                bootstrap=bootstrap._replace(
                    time_step=self._seen(bootstrap.time_step, goal),
                    state=part(bootstrap.state, "rl"),
                    rollout_info=part(bootstrap.rollout_info, "rl"),
                )
            )
        inner = self._rl_algorithm.preprocess_experience(inner)
        return inner._replace(
            observation=experience.observation,
            rollout_info=recorded._replace(rl=inner.rollout_info),
            state=experience.state,
            bootstrap=bootstrap if inner.bootstrap != () else (),
        )

    def _rewarded(self, experience: Experience) -> Experience:
        """Experience [B', T, ...] with the total reward in place of the extrinsic one, in the bootstrap too."""
        bootstrap = experience.bootstrap
        reward = experience.reward
        if bootstrap != ():
            reward = tf.concat([reward, bootstrap.time_step.reward[:, tf.newaxis]], 1)
        if self._reward_normalizer is not None:
            reward = self._reward_normalizer.normalize(reward)
        if self._icm is not None:
            explored = self._explore(experience, self._icm)
            experience = experience._replace(rollout_info=experience.rollout_info._replace(icm=explored))
            # The reward of a transition stands in the row that it leads to; what led to the first is not known.
            intrinsic = tf.concat([tf.zeros_like(reward[:, :1]), explored.reward[:, : reward.shape[1] - 1]], 1)
            reward = self._combined(reward, intrinsic)
        elif self._coefs[0] != 1.0:
            reward = self._coefs[0] * reward
        if self._goal_generator is not None:
            for_goal = self._goal_reward(experience, self._goal_generator)
            reward = reward if isinstance(for_goal, tuple) else reward + for_goal
        if bootstrap != ():
            last = bootstrap.time_step._replace(reward=reward[:, -1])
            experience = experience._replace(bootstrap=bootstrap._replace(time_step=last))
            reward = reward[:, :-1]
        return experience._replace(reward=reward)

    def _combined(self, extrinsic: tf.Tensor, intrinsic: tf.Tensor) -> tf.Tensor:
        if self._intrinsic_reward_scales:
            return self._coefs[0] * extrinsic * (1.0 + self._coefs[1] * intrinsic)
        return self._coefs[0] * extrinsic + self._coefs[1] * intrinsic

    def _goal_reward(self, experience: Experience, generator: RLAlgorithm) -> tf.Tensor | tuple[()]:
        """The goal generator's reward [B', T], with that of the bootstrap [B', T + 1]; `()` where it gives none."""
        recorded = experience.rollout_info.goal_generator.reward
        if isinstance(recorded, tuple) or experience.bootstrap == ():
            return recorded
        time_step, state, _, info = experience.bootstrap
        if info != ():
            # A sample of a memory: the generator was there, and what it remembers need not have been stored.
            last = info.goal_generator.reward
        else:
            state = reset_state_at_first(part(state, "goal_generator"), time_step.step_type)
            last = generator.rollout(self._normalized(time_step), state, OFF_POLICY_TRAINING).info.reward
        return tf.concat([recorded, last[:, tf.newaxis]], 1)

    def _explore(self, experience: Experience, icm: CuriosityAlgorithm) -> Explored:
        """What follows each step of [B', T, ...], and the intrinsic reward of getting there."""
        following, valid = what_follows(experience)
        steps = flat(experience._replace(bootstrap=(), state=()))
        transition = self._transition(steps, flat(following))
        try:
            reward = icm.rewards(transition, flat(valid))
        except (TypeError, ValueError) as e:
            seen = tf.nest.map_structure(lambda x: f"{x.dtype.name} {x.shape[1:]}", transition.observation)
            raise ValueError(
                f"{icm.name} cannot take what the policy sees, {seen}: give it an encoding_net, or other networks, for that, or "
                f"the Agent an encoding_network. ({type(e).__name__}: {str(e).splitlines()[0]})"
            ) from e
        return Explored(next_observation=following, valid=valid, reward=tf.reshape(reward, [-1, *valid.shape[1:]]))

    def _transition(self, inputs: Experience, next_observation: Nest) -> Transition:
        """What the curiosity module learns from, [B, ...]: of observations what the networks of the policy see."""

        def looked_at(inputs: Experience) -> Nest:
            return self._action_masks.observation(self._encoded(self._normalized(inputs).observation, inputs.step_type))

        return Transition(
            observation=looked_at(inputs),
            action=inputs.action,
            next_observation=looked_at(inputs._replace(observation=next_observation)),
            goal=goal_of(inputs.rollout_info),
        )

    @property
    def rows_only_looked_at(self) -> int:
        """As the RL algorithm; the losses of other parts leave out the last row alone."""
        wanted = self._rl_algorithm.rows_only_looked_at
        return min(wanted, 1) if self._others_learn else wanted

    @property
    def runs_in_loss(self) -> bool:
        """As the RL algorithm, where nothing else is trained."""
        alone = self._encoding_network is None and not self._others_learn
        return alone and self._rl_algorithm.runs_in_loss

    @property
    def _others_learn(self) -> bool:
        return any(part is not None for part in (self._icm, self._goal_generator, self._entropy_target))

    @property
    def rows_for_targets(self) -> int:
        """Those of the RL algorithm: its steps are counted, whatever other parts learn from."""
        return self._rl_algorithm.rows_for_targets

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The RL algorithm's train_step on what it sees, and those of the parts."""
        recorded = inputs.rollout_info
        seen = self._seen(inputs, goal_of(recorded))._replace(rollout_info=part(recorded, "rl"))
        step = self._rl_algorithm.train_step(seen, part(state, "rl"))
        info, goal = AgentInfo(rl=step.info), _NO_GOAL
        if self._icm is not None:
            transition = self._transition(inputs, recorded.icm.next_observation)
            info = info._replace(icm=self._icm.train_step(transition).info)
        if self._goal_generator is not None:
            given = self._normalized(inputs)._replace(rollout_info=part(recorded, "goal_generator"))
            goal = self._goal_generator.train_step(given, part(state, "goal_generator"))
            info = info._replace(goal_generator=goal.info)
        if self._entropy_target is not None:
            found = [
                action
                for action in nest_utils.find_field(step.info, "action_distribution")
                if all(map(nest_utils.is_distribution, tf.nest.flatten(action)))
            ]
            if len(found) != 1:
                raise ValueError(
                    f"{self.name}: enforce_entropy_target needs one action_distribution in the info of "
                    f"{type(self._rl_algorithm).__name__}, which has {len(found) or 'none'}: leave it out."
                )
            info = info._replace(entropy_target=self._entropy_target.train_step((found[0], inputs.step_type)).info)
        return PolicyStep(step.action, state_of(step.state, goal.state), info)

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """The parts' specs, with what `preprocess_experience` adds."""
        spec = rollout_info_spec._replace(rl=self._rl_algorithm.loss_info_spec(rollout_info_spec.rl))
        if self._icm is None:
            return spec
        scalar, observation = tf.TensorSpec([], tf.float32), self.transformed_time_step_spec.observation
        return spec._replace(icm=Explored(next_observation=observation, valid=scalar, reward=scalar))

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The RL algorithm's loss and those of the parts."""
        valid, parts = training_info.valid, []
        if self._icm is not None:
            of_icm = of_part(training_info, "icm")
            explored = of_icm.rollout_info
            masked = explored._replace(valid=explored.valid * valid)
            parts.append(self._icm.calc_loss(of_icm._replace(rollout_info=masked)))
        if self._goal_generator is not None:
            parts.append(self._goal_generator.calc_loss(of_part(training_info, "goal_generator")))
        if self._entropy_target is not None:
            parts.append(self._entropy_target.calc_loss(of_part(training_info, "entropy_target"), valid))
        return total_loss(self._rl_algorithm.calc_loss(of_part(training_info, "rl")), parts)

    def after_train(self, training_info: TrainingInfo) -> None:
        """The RL algorithm's, and those of the parts."""
        self._rl_algorithm.after_train(of_part(training_info, "rl"))
        if self._icm is not None:
            self._icm.after_train(of_part(training_info, "icm"))
        if self._goal_generator is not None:
            self._goal_generator.after_train(of_part(training_info, "goal_generator"))
        if self._entropy_target is not None:
            self._entropy_target.after_train(of_part(training_info, "entropy_target"), training_info.valid)
