"""Several algorithms that decide together for one agent, each of which learns from whatever they have done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.agent_parts import check_part
from alf.algorithms.critic_algorithm import CriticAlgorithm
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import RLAlgorithm, check_constructor
from alf.data_structures import ActionTimeStep, Experience, LossInfo, Nest, PolicyStep, TrainingInfo, namedtuple
from alf.utils.common import is_stateless

EnsembleState = namedtuple("EnsembleState", ["members", "turn"], default_value=())
EnsembleState.__doc__ = """What each member remembers, and, of a round robin, whose turn it is, int32 [B]."""

SINGLE, ROUND_ROBIN, MAJORITY, MEAN = "single", "round_robin", "majority", "mean"
DECISIONS = (SINGLE, ROUND_ROBIN, MAJORITY, MEAN)


def majority(actions: Sequence[Nest]) -> Nest:
    """What most of the nests of discrete actions [B, ...] say; of several said as often, what the first of them says."""

    def vote(*proposed: tf.Tensor) -> tf.Tensor:
        votes = tf.stack(proposed, -1)
        agreeing = tf.reduce_sum(tf.cast(votes[..., tf.newaxis] == votes[..., tf.newaxis, :], tf.int32), -1)
        first = tf.argmax(agreeing, -1)
        return tf.gather(votes, first, batch_dims=first.shape.rank)

    return tf.nest.map_structure(vote, *actions)


def mean(actions: Sequence[Nest]) -> Nest:
    """The mean of the nests of continuous actions [B, ...], which lies within their bounds."""

    def middle(*proposed: tf.Tensor) -> tf.Tensor:
        stacked = tf.stack(proposed)
        # Of numbers at a bound it may be rounded to one beyond.
        return tf.clip_by_value(tf.reduce_mean(stacked, 0), tf.reduce_min(stacked, 0), tf.reduce_max(stacked, 0))

    return tf.nest.map_structure(middle, *actions)


def in_turn(actions: Sequence[Nest], turn: tf.Tensor) -> Nest:
    """Of the nests of actions [B, ...], for each row the one with the number `turn`, int32 [B]."""
    return tf.nest.map_structure(lambda *proposed: tf.gather(tf.stack(proposed, 1), turn, batch_dims=1), *actions)


@gin.configurable(module="alf")
class EnsembleAlgorithm(OffPolicyAlgorithm):
    """Several algorithms with critics that decide for one agent.

    All act on what is observed and propose an action, of which `decision` makes the one that is taken; a member that
    explores explores in what it proposes. Each is trained on every sample with its own loss, whoever has decided. With
    weights of their own to begin with they make different mistakes (Osband et al. 2016, arXiv:1602.04621, for values).
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        members: Sequence[Callable[..., Any]],
        decision: str = SINGLE,
        decider: int = 0,
        optimizer: Any = None,
        gradient_clipping: float | None = None,
        clip_by_global_norm: bool = False,
        debug_summaries: bool = False,
        name: str = "EnsembleAlgorithm",
    ) -> None:
        """Creates the algorithm; arguments not named here as in `RLAlgorithm`.

        Args:
          observation_spec: nest of specs of one observation.
          action_spec: nest of specs of one action.
          members: each makes an algorithm, called with observation_spec, action_spec and debug_summaries: DQN, C51, SAC, DDPG
            or TD3. The same one several times makes as many.
          decision: "single": the member with the number `decider` decides, the others only learn; "round_robin": at each
            step of an episode the next one; "majority": what most propose, of discrete actions, the first of them where as
            many propose something else; "mean": the mean of what they propose, of continuous actions.
          decider: see above, from 0 on.
          optimizer: trains the members that have none.

        Raises:
          ValueError: the members are no list of constructors, one of them does not learn from what others have decided, alters
            steps or sees masks of actions that others do not, two share a network or an exploration, or the decision is none,
            or not one about such actions.
        """
        _check_constructors(name, members)
        made = [_member(name, make, observation_spec, action_spec, debug_summaries) for make in members]
        _check_decision(name, made, decision, decider, action_spec)
        turn = BoundedTensorSpec([], tf.int32, 0, len(made) - 1, "turn") if decision == ROUND_ROBIN else ()
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=_state([m.train_state_spec for m in made], turn),
            predict_state_spec=_state([m.predict_state_spec for m in made], turn),
            optimizer=optimizer,
            gradient_clipping=gradient_clipping,
            clip_by_global_norm=clip_by_global_norm,
            debug_summaries=debug_summaries,
            name=name,
        )
        self._members: list[Any] = made
        self._report_as(*made)
        self._decision = decision
        self._decider = decider
        self._action_masks = made[0].action_masks

    @property
    def members(self) -> list[Any]:
        """The algorithms that decide."""
        return list(self._members)

    # ---- acting ----

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """The decision about what the members would do to collect; what their critics remember follows it."""
        step = self._decided(time_step, state, lambda member, remembered: member.rollout(time_step, remembered, mode))
        return step._replace(state=self.state_after_decision(time_step, step.action, state, step.state))

    def state_after_decision(self, time_step: ActionTimeStep, action: Nest, before: Nest, acted: Nest) -> Nest:
        """The members'."""
        if not isinstance(acted, EnsembleState):
            return acted
        states = [
            member.state_after_decision(time_step, action, own, after)
            for (member, own), after in zip(self._remembering(before), acted.members, strict=True)
        ]
        return _state(states, acted.turn)

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The decision about what the members would do in evaluation."""
        return self._decided(
            inputs, state, lambda member, remembered: member.predict(inputs, remembered, epsilon_greedy)
        )

    def _decided(self, time_step: ActionTimeStep, state: Nest, act: Callable[[Any, Nest], PolicyStep]) -> PolicyStep:
        steps = [
            act(member, remembered) if self._is_asked(number, remembered) else PolicyStep((), (), ())
            for number, (member, remembered) in enumerate(self._remembering(state))
        ]
        actions = [step.action for step in steps]
        turn: Any = ()
        if self._decision == SINGLE:
            action = actions[self._decider]
        elif self._decision == ROUND_ROBIN:
            now = state.turn if isinstance(state, EnsembleState) else tf.zeros_like(time_step.step_type)
            turn = (now + 1) % len(steps)
            action = in_turn(actions, now)
        else:
            action = majority(actions) if self._decision == MAJORITY else mean(actions)
        return PolicyStep(action, _state([step.state for step in steps], turn), ())

    def _is_asked(self, number: int, remembered: Nest) -> bool:
        """Whether a member acts: one that does not decide needs not, unless it remembers what it has seen."""
        return self._decision != SINGLE or number == self._decider or not is_stateless(remembered)

    def _remembering(self, state: Nest) -> list[tuple[Any, Nest]]:
        """Each member with what it remembers."""
        states = state.members if isinstance(state, EnsembleState) else ((),) * len(self._members)
        return list(zip(self._members, states, strict=True))

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """The members'."""
        converted = [m.convert_train_state_to_predict_state(remembered) for m, remembered in self._remembering(state)]
        return _state(converted, state.turn if isinstance(state, EnsembleState) else ())

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The members', by their numbers."""
        return {
            f"member{number}/{key}": value
            for number, (member, remembered) in enumerate(self._remembering(state))
            for key, value in member.outputs(time_step, remembered).items()
        }

    # ---- learning ----

    @property
    def takes_encoded(self) -> bool:
        """Whether all members do."""
        return all(member.takes_encoded for member in self._members)

    @property
    def reproducible(self) -> bool:
        """Whether all members are."""
        return all(member.reproducible for member in self._members)

    @property
    def least_sample_length(self) -> int:
        """The longest of the members'."""
        return int(self.learner.least_sample_length)

    @property
    def learner(self) -> OffPolicyAlgorithm:
        """That of the member that needs the longest samples."""
        return max(self._members, key=lambda member: member.least_sample_length).learner

    @property
    def rows_only_looked_at(self) -> int:
        """Those that no member learns from."""
        return min(member.rows_only_looked_at for member in self._members)

    @property
    def runs_in_loss(self) -> bool:
        """Whether that is so of all members."""
        return all(member.runs_in_loss for member in self._members)

    @property
    def learning_state_spec(self) -> Nest:
        """The members'; whose turn it was is no part of learning."""
        return _state([member.learning_state_spec for member in self._members])

    def state_for_learning(self, state: Nest) -> Nest:
        """The members'."""
        states = [member.state_for_learning(remembered) for member, remembered in self._remembering(state)]
        return EnsembleState(members=tuple(states))

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """The members' train_steps."""
        steps = [member.train_step(inputs, remembered) for member, remembered in self._remembering(state)]
        after = EnsembleState(members=tuple(step.state for step in steps))
        return PolicyStep(inputs.action, after, tuple(step.info for step in steps))

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The sum of the members' losses; the priority of a sequence is their mean, and each reports by its number."""
        losses = [member.calc_loss(seen) for member, seen in self._of_members(training_info)]
        priorities = [loss.priority for loss in losses]
        alike = not any(isinstance(priority, tuple) for priority in priorities)
        return LossInfo(
            loss=_sum([loss.loss for loss in losses]),
            scalar_loss=_sum([loss.scalar_loss for loss in losses]),
            extra={f"member{number}": loss.extra for number, loss in enumerate(losses)},
            priority=mean(priorities) if alike else (),
        )

    def after_train(self, training_info: TrainingInfo) -> None:
        """The members'."""
        for member, seen in self._of_members(training_info):
            member.after_train(seen)

    def _of_members(self, training_info: TrainingInfo) -> list[tuple[Any, TrainingInfo]]:
        """Each member with what it sees of it."""
        infos = zip(self._members, training_info.info, strict=True)
        return [(member, training_info._replace(info=info)) for member, info in infos]


def _check_constructors(name: str, members: Any) -> None:
    """Raises ValueError where these are not some functions that make algorithms."""
    if not isinstance(members, (list, tuple)) or not members or not all(callable(make) for make in members):
        raise ValueError(
            f"{name}.members={members!r} must be a list of what makes algorithms, in gin such as [@DqnAlgorithm, "
            "@DqnAlgorithm], without parentheses behind the names."
        )


def _member(
    name: str, make: Callable[..., Any], observation_spec: Nest, action_spec: Nest, debug_summaries: bool
) -> Any:
    """What `make` makes; raises ValueError where it does not learn from what others have decided, or alters steps."""
    check_constructor(f"{name}.members", make)
    member = make(observation_spec=observation_spec, action_spec=action_spec, debug_summaries=debug_summaries)
    check_part(name, member)
    as_recorded = type(member).preprocess_experience is RLAlgorithm.preprocess_experience
    if not isinstance(member, CriticAlgorithm) or not as_recorded:
        raise ValueError(
            f"{name}.members: {type(member).__name__} is not made to learn from what others have decided: use DQN, C51, SAC, "
            "DDPG or TD3."
        )
    return member


def _check_decision(name: str, members: Sequence[Any], decision: str, decider: int, action_spec: Nest) -> None:
    """Raises ValueError where these members cannot decide so."""
    if decision not in DECISIONS:
        raise ValueError(f"{name}.decision={decision!r} is none: use one of {', '.join(map(repr, DECISIONS))}.")
    if not isinstance(decider, int) or decider not in range(len(members)):
        raise ValueError(f"{name}.decider={decider!r} is the number of no member: these are 0 to {len(members) - 1}.")
    discrete = [spec.dtype.is_integer for spec in tf.nest.flatten(action_spec)]
    if decision == MAJORITY and not all(discrete):
        raise ValueError(f"{name}: a majority is of discrete actions, got {action_spec}: use decision='mean'.")
    if decision == MEAN and any(discrete):
        raise ValueError(f"{name}: a mean is of continuous actions, got {action_spec}: use decision='majority'.")
    first = members[0].action_masks.splitter
    if any(member.action_masks.splitter is not first for member in members):
        raise ValueError(
            f"{name}: members see different masks of actions: give all the same observation_and_action_constraint_splitter."
        )
    explorations = [exploration for member in members for exploration in member.explorations]
    if len({id(exploration) for exploration in explorations}) < len(explorations):
        raise ValueError(
            f"{name}: members share an exploration, whose clock would run for each of them: give each its own."
        )
    owners: dict[Any, int] = {}
    for number, member in enumerate(members):
        for variable in member.trainable_variables:
            if (owner := owners.setdefault(variable.ref(), number)) != number:
                raise ValueError(
                    f"{name}: the members {owner} and {number} share the variable {variable.name!r} and would decide alike: have "
                    "each constructor make its networks, in gin @QNetwork() and not a singleton; a network that encodes for "
                    "all is Agent.encoding_network."
                )


def _state(members: Sequence[Nest], turn: Nest = ()) -> Nest:
    """The state of an ensemble, or its spec, with those of its members; `()` where that is nothing."""
    state = EnsembleState(members=tuple(members), turn=turn)
    return () if is_stateless(state) else state


def _sum(losses: Sequence[Any]) -> Any:
    """The sum of those that are there; `()` where none is."""
    there = [loss for loss in losses if not isinstance(loss, tuple)]
    return tf.add_n(there) if there else ()
