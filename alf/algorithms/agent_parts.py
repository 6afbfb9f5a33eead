"""The parts of an `Agent`: which go together, and how their records are taken apart and put together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from alf.algorithms.algorithm import Algorithm
from alf.algorithms.curiosity import CuriosityAlgorithm
from alf.algorithms.normalization import ObservationNormalizer
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import Experience, LossInfo, Nest, StepType, TrainingInfo, namedtuple
from alf.utils import nest_utils
from alf.utils.common import field_of, is_stateless, zeros_from_spec

Transformers = list[Callable[[Nest], Nest]]

AgentState = namedtuple("AgentState", ["rl", "goal_generator"], default_value=())
AgentState.__doc__ = """The recurrent states of the parts of an agent."""

AgentInfo = namedtuple("AgentInfo", ["rl", "icm", "goal_generator", "entropy_target"], default_value=())
AgentInfo.__doc__ = """What the parts of an agent record, each `()` where there is no such part.

`rl`, `goal_generator`: their infos; `icm`: in `rollout_info` an Explored, in `info` a CuriosityInfo; `entropy_target`: an
EntropyTargetInfo.
"""


def check_part(name: str, inside: RLAlgorithm) -> None:
    """Raises ValueError where a part of what is called `name` does not act, or would alter steps, as an `Agent` alone does."""
    if not isinstance(inside, RLAlgorithm):
        raise ValueError(f"{name}: {inside!r} was made where an algorithm was to be: have its constructor return one.")
    if not inside.acts:
        raise ValueError(
            f"{name}: {type(inside).__name__} learns from what it is given and does not act, so there is nothing to compose: "
            "bind TrainerConfig.algorithm_ctor to it."
        )
    altered = {"reward_shaping_fn": inside.shapes_reward, "observation_transformer": inside.transforms_observation}
    for argument, given in altered.items():
        if given:
            raise ValueError(
                f"{name} does not use the {argument} of the {type(inside).__name__} inside of it: set Agent.{argument} instead."
            )


def check_entropy_target(name: str, target: Any) -> None:
    """Raises ValueError where what the agent called `name` has for an entropy target cannot be called as it does."""
    if not isinstance(target, Algorithm):
        raise ValueError(f"{name}: entropy_target_cls made {target!r}: derive its class from EntropyTargetAlgorithm.")
    calls: dict[str, tuple[Callable[..., Any], int]] = {
        "train_step((distribution, step_type))": (target.train_step, 1),
        "calc_loss(training_info, valid)": (target.calc_loss, 2),
        "after_train(training_info, valid)": (target.after_train, 2),
    }
    for call, (method, arguments) in calls.items():
        taken = inspect.signature(method)
        try:
            taken.bind(*[None] * arguments)
        except TypeError as e:
            raise ValueError(
                f"{name} calls {call} of the {type(target).__name__} that entropy_target_cls made, and it has {taken}: {e}."
            ) from e


def check_parts(
    name: str,
    rl_algorithm: RLAlgorithm,
    goal_generator: RLAlgorithm | None,
    encoder: Any,
    transformed_spec: Nest,
    observation_normalizer: ObservationNormalizer | None,
    curiosity: CuriosityAlgorithm | None,
) -> None:
    """Raises ValueError where the parts of the agent called `name` do not go together, or do not take what it transforms to."""
    for inside in [rl_algorithm] if goal_generator is None else [rl_algorithm, goal_generator]:
        check_part(name, inside)
    masked = rl_algorithm.action_masks.present
    if goal_generator is not None and masked:
        raise ValueError(
            f"{name}: with a goal_generator the RL algorithm sees [observation, goal], which has no masks of actions: "
            "leave out the goal_generator or the observation_and_action_constraint_splitter."
        )
    if encoder is not None and not rl_algorithm.takes_encoded:
        raise ValueError(
            f"{name}: {type(rl_algorithm).__name__} cannot limit what an encoding_network that learns does to the "
            "policy: give its layers to the actor network instead."
        )
    if masked and encoder is not None:
        raise ValueError(
            f"{name}: the RL algorithm sees what the encoding_network gives, which has no masks of actions: give its layers "
            "to the networks of the RL algorithm, or leave out the observation_and_action_constraint_splitter."
        )
    if masked and observation_normalizer is not None and observation_normalizer.takes_all:
        raise ValueError(
            f"{name}: the ObservationNormalizer would normalise the masks of actions too: name what it is to take, "
            "by ObservationNormalizer.fields."
        )
    if observation_normalizer is not None:
        observation_normalizer.check_spec(transformed_spec)
    if rl_algorithm.actor_field is not None:
        _check_actor_field(name, rl_algorithm.actor_field, goal_generator, encoder)
    if curiosity is not None and not isinstance(curiosity, CuriosityAlgorithm):
        raise ValueError(
            f"{name}: intrinsic_curiosity_module is a {type(curiosity).__name__}: derive its class from "
            "alf.algorithms.curiosity.CuriosityAlgorithm, whose train_step is given transitions."
        )
    if curiosity is not None:
        curiosity.check_goal(() if goal_generator is None else goal_generator.action_spec)


def _check_actor_field(name: str, field: str, goal_generator: RLAlgorithm | None, encoder: Any) -> None:
    """Raises ValueError where a goal generator or an encoder leaves no part `field` in what the RL algorithm sees."""
    if goal_generator is not None:
        raise ValueError(
            f"{name}: with a goal_generator the RL algorithm sees [observation, goal], which has no part "
            f"actor_field={field!r}: leave out the goal_generator or the actor_field."
        )
    if encoder is None:
        return
    try:
        field_of(encoder.create_variables(), field)
    except ValueError as error:
        raise ValueError(
            f"{name}: the RL algorithm sees what the encoding_network gives, which has no part actor_field={field!r}: give its "
            "layers to the networks of the RL algorithm, or leave out the actor_field."
        ) from error


def part(nest: Nest, field: str) -> Nest:
    """One part's state or info; nothing of nothing."""
    return getattr(nest, field) if isinstance(nest, (AgentState, AgentInfo)) else ()


def state_of(rl: Nest, goal_generator: Nest) -> Nest:
    """The state, or its spec, of an agent whose parts have these; `()` where none has one."""
    if is_stateless(rl) and is_stateless(goal_generator):
        return ()
    return AgentState(rl=rl, goal_generator=goal_generator)


def total_loss(rl: LossInfo, parts: Sequence[LossInfo]) -> LossInfo:
    """The RL algorithm's loss with the scalar losses of the parts, each counted once.

    Raises:
      ValueError: a part has a loss per row, which would be weighted like the RL algorithm's, or two report by one name.
    """
    scalar: Any = rl.scalar_loss
    extra = dict(rl.extra) if rl.extra else {}
    for loss in parts:
        if not isinstance(loss.loss, tuple):
            raise ValueError("The parts of an Agent give their loss as LossInfo.scalar_loss, not as loss.")
        if not isinstance(loss.scalar_loss, tuple):
            scalar = loss.scalar_loss if isinstance(scalar, tuple) else loss.scalar_loss + scalar
        reported = loss.extra or {}
        if twice := extra.keys() & reported.keys():
            raise ValueError(f"Two parts of an Agent report {sorted(twice)}: give them different names.")
        extra.update(reported)
    return rl._replace(scalar_loss=scalar, extra=extra or rl.extra)


def goal_of(rollout_info: Nest) -> Nest:
    """The goal that was followed; `()` without a goal generator."""
    info = part(rollout_info, "goal_generator")
    return () if isinstance(info, tuple) and info == () else info.goal


def of_part(training_info: TrainingInfo, field: str) -> TrainingInfo:
    """What one part sees of it."""
    return training_info._replace(
        info=part(training_info.info, field), rollout_info=part(training_info.rollout_info, field)
    )


def what_follows(experience: Experience) -> tuple[Nest, tf.Tensor]:
    """The observation after each step of [B', T, ...], and float32 [B', T] where there is one, in the same episode."""
    bootstrap, valid = experience.bootstrap, tf.cast(experience.step_type != StepType.LAST, tf.float32)
    if bootstrap == ():
        last = tf.nest.map_structure(lambda o: o[:, -1], experience.observation)
        valid = tf.concat([valid[:, :-1], tf.zeros_like(valid[:, -1:])], 1)
    else:
        last = bootstrap.time_step.observation
    following = tf.nest.map_structure(
        lambda o, after: tf.concat([o[:, 1:], after[:, tf.newaxis]], 1), experience.observation, last
    )
    return following, valid


def by_size(transformers: Transformers, observation_spec: Nest) -> tuple[Transformers, Transformers, Nest]:
    """Tries the transformers on an observation.

    Returns:
      Those up to where it takes the fewest bytes, as late as possible; those after; and specs of what all of them make of
      it, which are still those of `observation_spec`, with their bounds, where shape and dtype are.
    """
    observation = zeros_from_spec(observation_spec, 1)
    sizes = [_bytes(observation)]
    for transformer in transformers:
        observation = transformer(observation)
        sizes.append(_bytes(observation))
    smallest = max(i for i, size in enumerate(sizes) if size == min(sizes))
    return transformers[:smallest], transformers[smallest:], _specs_after(observation, observation_spec)


def _specs_after(observation: Nest, spec: Nest) -> Nest:
    seen = nest_utils.extract_spec(observation)
    if not nest_utils.same_structure(seen, spec):
        return seen

    def specified(after: Any, before: Any) -> Any:
        return before if (after.shape, after.dtype) == (before.shape, before.dtype) else after

    return tf.nest.map_structure(specified, seen, spec)


def _bytes(observation: Nest) -> int:
    return sum(int(tf.size(x)) * x.dtype.size for x in tf.nest.flatten(observation))
