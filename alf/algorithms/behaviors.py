"""Several algorithms for the agents of one environment: each acts for its slots, and learns from what they went through."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from alf.algorithms.agent_rows import idle_rows, merged, of_slots, one_of, rows_of, split
from alf.algorithms.algorithm import Algorithm
from alf.algorithms.behavior import Behavior, choose, make
from alf.algorithms.behavior_part import Part
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, Experience, Nest, PolicyStep
from alf.environments.agents import OBSERVATION, REWARD, slots_of
from alf.metrics.agent_episodes import UNSHAPED_REWARD
from alf.replay.memory_use import MemoryUse
from alf.replay.uniform_replay import UniformReplay
from alf.utils import common, nest_utils
from alf.utils.common import broadcast_mask, is_stateless
from alf.utils.untracked import Untracked


@contextlib.contextmanager
def _named(part: Part) -> Iterator[None]:
    """Puts the name of a behavior that learns before what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"The behavior {part.name!r} cannot learn so: {error}") from None


def _check_optimizers(parts: Sequence[Part]) -> None:
    """Raises ValueError where two behaviors would count, and schedule, by one optimiser."""
    owners: dict[int, str] = {}
    for part in parts:
        for _, optimizer, _ in part.algorithm.get_optimizer_and_module_sets():
            owner = owners.setdefault(id(optimizer), part.name)
            if optimizer is not None and owner != part.name:
                raise ValueError(
                    f"The behaviors {owner!r} and {part.name!r} share one optimizer, whose steps would count for both: make it "
                    "where the algorithm is made, inside of algorithm_ctor."
                )


def _check_variables(parts: Sequence[Part]) -> None:
    """Raises ValueError where training one behavior would change another, by a variable that is in both."""
    owners: dict[Any, Part] = {}
    for part in parts:
        for variable in part.algorithm.variables:
            other = owners.setdefault(variable.ref(), part)
            if other is not part and (part.behavior.trained or other.behavior.trained):
                raise ValueError(
                    f"The behaviors {other.name!r} and {part.name!r} share the variable {variable.name!r}, which training one "
                    "would change for both: make the network, exploration or normaliser that has it where the algorithm is "
                    "made, inside of algorithm_ctor."
                )


@gin.configurable(module="alf")
class Behaviors(OffPolicyAlgorithm):
    """The algorithms of an environment with agents (see `alf.environments.agents`), as one.

    To a driver it is an algorithm whose observations and actions are nests by the names of the behaviors. Each behavior
    sees the slots of all environments as rows of its batch, [B, K, ...] as [B * K, ...]. Its optimiser, replayer, random
    numbers and counters are its own; training one changes no variable of another. Where slots may be idle, their decision
    steps are joined to segments first, and a behavior is trained when it has as many of them as there are slots in a
    batch, which need not be at every iteration.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        behaviors: Mapping[str, Behavior] | None = None,
        debug_summaries: bool = False,
        name: str = "Behaviors",
    ) -> None:
        """Makes the algorithm of each behavior.

        Args:
          observation_spec: nest of bounded specs, of an environment with agents.
          action_spec: nest of bounded specs, by the names of the behaviors.
          behaviors: what acts for each; `'*'` for all that are not named, each of which gets an algorithm of its own.
          debug_summaries: report more about the inside of the losses.
          name: name of the algorithm.

        Raises:
          ValueError: the environment has no agents, or a behavior has nothing that acts, or there is none of a name, or two
            share what training changes.
        """
        slots = slots_of(observation_spec)
        if slots is None:
            raise ValueError(
                "Behaviors is for environments with agents, whose observations are dicts by the names of the behaviors; "
                "this one has a single agent: set TrainerConfig.algorithm_ctor to its algorithm, such as @Agent."
            )
        chosen = choose(behaviors or {}, list(slots))
        parts = []
        for key, count in slots.items():
            spec = one_of(observation_spec[key][OBSERVATION]), one_of(action_spec[key])
            parts.append(Part(key, chosen[key], make(key, chosen[key], *spec, debug_summaries), count))
        _check_optimizers([part for part in parts if part.behavior.trained])
        _check_variables(parts)
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec={p.name: of_slots(p.algorithm.train_state_spec, p.slots.count) for p in parts},
            predict_state_spec={p.name: of_slots(p.algorithm.predict_state_spec, p.slots.count) for p in parts},
            debug_summaries=debug_summaries,
            name=name,
        )
        self._all_parts = Untracked(parts)
        self._algorithms = {p.name: p.algorithm for p in parts}
        self._keep_states_of_the_idle()

    def _keep_states_of_the_idle(self) -> None:
        # A segment may begin at any step of a stream, so the state before each must be there.
        for part in self._parts:
            if part.joins and not is_stateless(part.algorithm.train_state_spec):
                part.algorithm.use_rollout_state = True

    @property
    def sampling(self) -> list[str]:
        """Names of the behaviors that are to learn from samples, whatever the others do."""
        own = [p for p in self._parts if p.behavior.trained and p.behavior.whole_replay_buffer_training is False]
        return [p.name for p in own]

    @property
    def by_name(self) -> dict[str, OffPolicyAlgorithm]:
        """The algorithm of each behavior."""
        return {p.name: p.algorithm for p in self._parts}

    @property
    def trained(self) -> dict[str, OffPolicyAlgorithm]:
        """The algorithm of each behavior that learns."""
        return {p.name: p.algorithm for p in self._parts if p.behavior.trained}

    def memories(self) -> dict[str | None, UniformReplay]:
        """See `OffPolicyAlgorithm`; of the behaviors that learn."""
        return {name: memory for name, child in self.trained.items() for memory in child.memories().values()}

    def memory_uses(self, arguments: Mapping[str, Any]) -> dict[str | None, MemoryUse]:
        """See `OffPolicyAlgorithm`; each behavior with the arguments that it sets itself.

        Raises:
          ValueError: all is to be learned from that a memory holds of streams of different lengths.
        """
        return {p.name: use for p in self._parts for use in p.memory_uses(arguments)}

    def steps_of_an_update(self, arguments: Mapping[str, Any]) -> float:
        """See `OffPolicyAlgorithm`; the updates of all behaviors are one number, so they must agree."""
        chosen = {p.name: p.behavior.train_arguments(arguments) for p in self._parts if p.behavior.trained}
        own = [n for n, c in chosen.items() if c["whole_replay_buffer_training"] or "num_updates" in c]
        found = {
            p.name: p.algorithm.steps_of_an_update(chosen[p.name]) / p.slots.count
            for p in self._parts
            if p.name in chosen and p.name not in own
        }
        if own or len(set(found.values())) != 1:
            raise ValueError(
                "TrainerConfig.samples_per_insert makes one number of updates for all behaviors, but they sample "
                f"{found} steps of an environment in an update, and {own} have num_updates or "
                "whole_replay_buffer_training of their own: let them agree, or set num_updates_per_train_step instead."
            )
        return next(iter(found.values()))

    def updates_made(self) -> int:
        """See `OffPolicyAlgorithm`; of the behavior that has made the most."""
        return max((p.algorithm.updates_made() for p in self._parts if p.behavior.trained), default=0)

    @property
    def reproducible(self) -> bool:
        """See `OffPolicyAlgorithm`."""
        return all(p.algorithm.reproducible for p in self._parts)

    @property
    def dropped_steps(self) -> dict[str, int]:
        """Decision steps that were collected and never learned from, by the behaviors whose steps are joined."""
        return {p.name: p.dropped_steps for p in self._parts if p.behavior.trained and p.joins}

    @property
    def _parts(self) -> list[Part]:
        return self._all_parts.value

    # ---- settings of all ----

    @property
    def use_rollout_state(self) -> bool:
        """See `RLAlgorithm`; recurrent behaviors whose slots may be idle store their states in any case."""
        return self._use_rollout_state

    @use_rollout_state.setter
    def use_rollout_state(self, flag: bool) -> None:
        RLAlgorithm.use_rollout_state.__set__(self, flag)  # type: ignore[attr-defined]
        self._keep_states_of_the_idle()

    def need_full_rollout_state(self) -> bool:
        """Whether a behavior stores its states."""
        return any(p.algorithm.need_full_rollout_state() for p in self._parts)

    @property
    def burn_in_length(self) -> int:
        """See `OffPolicyAlgorithm`; that of the behaviors that learn recurrent networks from samples, where one does."""
        return self._volatile.burn_in_length

    @burn_in_length.setter
    def burn_in_length(self, steps: int) -> None:
        self._volatile.burn_in_length = steps
        users = [p for p in self._parts if p.takes_burn_in]
        for part in self._parts:
            # Where none is, each says that it has no use for it.
            part.algorithm.burn_in_length = steps if part in users or not users else 0

    def set_learners(self, count: int) -> None:
        """See `OffPolicyAlgorithm`; all behaviors are trained so."""
        for part in self._parts:
            part.algorithm.set_learners(count)

    def set_summary_settings(
        self, summarize_grads_and_vars: bool | None = None, summarize_action_distributions: bool | None = None
    ) -> None:
        """See `RLAlgorithm`; for all behaviors."""
        super().set_summary_settings(summarize_grads_and_vars, summarize_action_distributions)
        for part in self._parts:
            part.algorithm.set_summary_settings(summarize_grads_and_vars, summarize_action_distributions)

    def set_seed(self, seed: int, again: bool = True) -> None:
        """Seeds every behavior, each otherwise; the first one as if it were alone. The rest as `OffPolicyAlgorithm`."""
        super().set_seed(seed, again)
        others = np.random.SeedSequence(seed).generate_state(len(self._parts))
        for i, part in enumerate(self._parts):
            part.algorithm.set_seed(int(others[i]) if i else seed, again)

    def set_default_replayer(self, arguments: Mapping[str, Any]) -> None:
        """See `OffPolicyAlgorithm`; of each behavior by the arguments that it is trained with."""
        super().set_default_replayer(arguments)
        for part in self._parts:
            part.algorithm.set_default_replayer(part.behavior.train_arguments(arguments))

    def set_exp_replayer(
        self,
        exp_replayer: str | None,
        num_envs: int,
        num_actors: int = 0,
        unroll_length: int = 0,
        learn_queue_cap: int = 0,
    ) -> None:
        """Makes the replayers of all behaviors; see `OffPolicyAlgorithm`."""
        for part in self._parts:
            part.begin_streams(exp_replayer, num_envs, unroll_length)

    def count_env_steps(self, steps: int) -> None:
        """Behaviors count their own steps, as they observe them."""

    # ---- acting ----

    def transform_timestep(self, time_step: ActionTimeStep) -> ActionTimeStep:
        """Has each behavior transform what its slots see, their rewards too; metrics find those of before beside them."""
        observation = {}
        for part in self._parts:
            seen = part.algorithm.transform_timestep(rows_of(time_step, part.name, part.slots.count))
            seen_by_slots = split((seen.reward, seen.observation), part.slots.count)
            observation[part.name] = {
                **time_step.observation[part.name],
                REWARD: seen_by_slots[0],
                OBSERVATION: seen_by_slots[1],
            }
            if part.algorithm.shapes_reward:
                observation[part.name][UNSHAPED_REWARD] = time_step.observation[part.name][REWARD]
        return time_step._replace(observation=observation)

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """Has each behavior act for its slots; see `RLAlgorithm`."""
        return self._act(time_step, state, lambda algorithm, rows, own: algorithm.rollout(rows, own, mode))

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """Has each behavior act for its slots; see `RLAlgorithm`."""
        return self._act(inputs, state, lambda algorithm, rows, own: algorithm.predict(rows, own, epsilon_greedy))

    def random_action(self, time_step: ActionTimeStep) -> Nest:
        """See `RLAlgorithm`; who decides nothing keeps its last action."""

        def act(algorithm: RLAlgorithm, rows: ActionTimeStep, state: Nest) -> PolicyStep:
            return PolicyStep(algorithm.random_action(rows), state, ())

        return self._act(time_step, {p.name: () for p in self._parts}, act).action

    def state_after_decision(self, time_step: ActionTimeStep, action: Nest, before: Nest, acted: Nest) -> Nest:
        """See `RLAlgorithm`; who decides nothing stays in its state."""
        after = dict(acted)
        for part in self._parts:
            name, count = part.name, part.slots.count
            if not part.algorithm.need_full_rollout_state():
                continue
            rows, idle = rows_of(time_step, name, count), idle_rows(time_step, name)
            own, of_acting, done = merged((before[name], acted[name], action[name]), 0)
            own = common.reset_state_at_first(own, rows.step_type)
            found = part.algorithm.state_after_decision(rows, done, own, of_acting)
            kept = tf.nest.map_structure(
                lambda a, f, idle=idle: tf.where(broadcast_mask(idle, f), a, f), of_acting, found
            )
            after[name] = split(kept, count)
        return after

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """See `RLAlgorithm`; [B, K, ...], the names of the behaviors in front."""
        found = {}
        for part in self._parts:
            name, count = part.name, part.slots.count
            rows = rows_of(time_step, name, count)
            own = part.algorithm.outputs(rows, common.reset_state_at_first(merged(state[name], 0), rows.step_type))
            found.update({f"{name}/{key}": value for key, value in split(own, count).items()})
        return found

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """See `Algorithm`."""
        return {p.name: p.algorithm.convert_train_state_to_predict_state(state[p.name]) for p in self._parts}

    def _act(
        self, time_step: ActionTimeStep, state: Nest, act: Callable[[RLAlgorithm, ActionTimeStep, Nest], PolicyStep]
    ) -> PolicyStep:
        steps = {}
        for part in self._parts:
            name, count = part.name, part.slots.count
            rows = rows_of(time_step, name, count)
            before = common.reset_state_at_first(merged(state[name], 0), rows.step_type)
            step = act(part.algorithm, rows, before)
            step = step._replace(info=nest_utils.distributions_to_params(step.info))
            if part.slots.may_idle:
                step = _unless(idle_rows(time_step, name), rows, before, step)
            steps[name] = split(step, count)
        return PolicyStep(
            *({name: getattr(step, field) for name, step in steps.items()} for field in PolicyStep._fields)
        )

    # ---- learning ----

    def _owned_variables(self) -> list[tuple[Algorithm, Any, list[tf.Variable]]]:
        owned = []
        for part in self._parts:
            # One that does not learn needs no optimizer.
            with _named(part) if part.behavior.trained else contextlib.suppress(ValueError):
                owned += part.algorithm._owned_variables()
        return owned

    def _check_clipping(self) -> None:
        for part in self._parts:
            if part.behavior.trained:
                with _named(part):
                    part.algorithm._check_clipping()

    def observe(self, exp: Experience) -> None:
        """Hands each behavior the experience [Q, T, B, ...] of its slots, as [Q, T, B * K, ...]."""
        super().observe(exp)
        for part in self._parts:
            part.observe(exp)

    def check_segments(self, arguments: Mapping[str, Any]) -> None:
        """Raises ValueError where a behavior cannot learn from whole segments as `train`, called with `arguments`, asks for."""
        for part in self._parts:
            part.check_segments(arguments)

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Traces what every behavior runs on samples."""
        for part in self._parts:
            part.prepare(arguments)

    def train(
        self,
        num_updates: int = 1,
        mini_batch_size: int | None = None,
        mini_batch_length: int | None = None,
        whole_replay_buffer_training: bool = True,
        clear_replay_buffer: bool = True,
        update_counter_every_mini_batch: bool = False,
    ) -> int:
        """Trains every behavior that has what it needs; arguments and result as of `OffPolicyAlgorithm.train`."""
        begin = time.monotonic()
        arguments = {
            "num_updates": num_updates,
            "mini_batch_size": mini_batch_size,
            "mini_batch_length": mini_batch_length,
            "whole_replay_buffer_training": whole_replay_buffer_training,
            "clear_replay_buffer": clear_replay_buffer,
            "update_counter_every_mini_batch": update_counter_every_mini_batch,
        }
        steps = sum(part.train(arguments) for part in self._parts)
        self._iterations.assign_add(1)
        self._volatile.metrics = {
            f"{p.name}/{key}": value for p in self._parts for key, value in p.algorithm.last_train_metrics.items()
        }
        self._end_train(begin)
        return steps


def _unless(idle: tf.Tensor, rows: ActionTimeStep, state: Nest, step: PolicyStep) -> PolicyStep:
    """`step`, but who decides nothing stays in its state, and its last action stays the one before its next step."""

    def keep(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.where(broadcast_mask(idle, new), old, new)

    return step._replace(
        action=tf.nest.map_structure(keep, rows.prev_action, step.action),
        state=tf.nest.map_structure(keep, state, step.state),
    )
