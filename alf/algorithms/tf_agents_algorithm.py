"""TF-Agents' own agents as off-policy algorithms: alf collects, remembers and calls, the agent acts and trains itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.dqn import dqn_agent
from tf_agents.policies import greedy_policy, ou_noise_policy
from tf_agents.specs import BoundedTensorSpec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories.trajectory import Trajectory

from alf.algorithms.critic_algorithm import check_bounds
from alf.algorithms.exploration import LinearSchedule, OUNoise, select
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.one_step_loss import per_sequence
from alf.data_structures import ActionTimeStep, Experience, LossInfo, Nest, PolicyStep, StepType
from alf.export.policy import named
from alf.replay.memory_use import MemoryUse
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.utils import nest_utils, rng
from alf.utils.action_masks import ActionMasks
from alf.utils.common import add_outer_dims, is_stateless, zeros_from_spec
from alf.utils.untracked import Untracked

_BUILD_BATCH = 2
# What is said where a class is used as a network: of its method, called with a spec or without, and of its property.
_OF_CLASSES = ("_network_output_spec", "<property object", "create_variables() missing")


def trajectories_of(exp: Experience, length: int) -> tuple[Trajectory, tf.Tensor]:
    """Every `length` consecutive rows as TF-Agents' agents take them.

    Row t of a trajectory has what the action of row t has led to; in an experience that is in row t + 1. What there is
    behind the last row of a sequence is not known, and stands as what there is at it: agents do not look at it.

    Args:
      exp: [L, b, ...], time first, without a bootstrap.
      length: N, rows of a trajectory, at least 2 and at most L.

    Returns:
      Trajectory [K * b, N, ...] with K = L - N + 1, the b that begin with the first rows first; and bool [K, b]: whether
      it may be learned from. One that begins with LAST, whose action leads nowhere, may not; nor may one that goes on
      behind an episode that was cut off, of which agents would add up the rewards of two episodes.
    """
    count = exp.step_type.shape[0] - length + 1

    def led_to(x: tf.Tensor) -> tf.Tensor:
        return tf.concat([x[1:], x[-1:]], 0)

    def windows(x: tf.Tensor) -> tf.Tensor:
        rows = tf.stack([x[i : i + count] for i in range(length)], 2)
        return tf.reshape(rows, [-1, length, *x.shape[2:]])

    rows = Trajectory(
        step_type=exp.step_type,
        observation=exp.observation,
        action=exp.action,
        policy_info=exp.rollout_info,
        next_step_type=led_to(exp.step_type),
        reward=led_to(exp.reward),
        discount=led_to(exp.discount),
    )
    ends = tf.equal(exp.step_type, StepType.LAST)
    cut_off = tf.logical_and(ends, exp.discount > 0.0)
    valid = tf.logical_not(ends[:count])
    for i in range(1, length - 1):
        valid = tf.logical_and(valid, tf.logical_not(cut_off[i : i + count]))
    return tf.nest.map_structure(windows, rows), valid


def _as_policies_take(inputs: ActionTimeStep) -> ts.TimeStep:
    return ts.TimeStep(inputs.step_type, inputs.reward, inputs.discount, inputs.observation)


def _stand_ins(valid: tf.Tensor) -> tf.Tensor:
    """For each of bool [M] the index of one that is valid, itself where it is, int32 [M]; one must be."""
    found, every = tf.cast(tf.where(valid)[:, 0], tf.int32), tf.range(tf.size(valid))
    return tf.ensure_shape(tf.where(valid, every, tf.gather(found, every % tf.size(found))), valid.shape)


@dataclasses.dataclass
class _Traced:
    """What is known of an update once it was traced; kept from TensorFlow's tracking."""

    done: bool = False
    # The names of what it reports.
    names: tuple[str, ...] = ()
    tells_errors: bool = False


def _schedules_of(agent: tf_agent.TFAgent) -> dict[str, LinearSchedule]:
    """The schedules in an agent and its policies, by the names of the attributes that hold them."""
    paths = agent._flatten(predicate=lambda x: isinstance(x, LinearSchedule), with_path=True)
    # Policies hold those of their agent, under other names.
    found: dict[int, tuple[str, LinearSchedule]] = {}
    for path, schedule in sorted(paths, key=lambda pair: len(pair[0])):
        found.setdefault(id(schedule), (str(path[-1]).strip("_"), schedule))
    return dict(found.values())


@gin.configurable(module="alf")
class TFAgentsAlgorithm(OffPolicyAlgorithm):
    """An agent of TF-Agents (`DqnAgent`, `SacAgent`, `Td3Agent`, ...) in the place of an algorithm.

    It collects by `agent.collect_policy`, evaluates by the greedy form of `agent.policy`, and an update is
    `agent.train`: the agent's own losses, optimisers and target networks. What the collect policy says beside its action
    (policy info, such as log-probabilities) is recorded, and given back in training.

    Ornstein-Uhlenbeck noise of the collect policy (`DdpgAgent`) becomes `OUNoise` of the same parameters: TF-Agents keeps
    it in a variable that acting changes, one for all rows. A number of the agent that may be a function, such as
    `epsilon_greedy`, may be a `LinearSchedule`.

    Agents do not all leave out the rows that begin with the end of an episode (`DdpgAgent`, `Td3Agent`, `SacAgent` and
    `CategoricalDqnAgent` learn from them), and not all heed weights, so in every minibatch such a row is replaced by
    another of the minibatch. A minibatch of nothing else is left out. Importance weights, of prioritised replay, are for
    agents that tell the error of each row, such as `DqnAgent`; a last, smaller minibatch counts like the others.

    Random numbers are TensorFlow's, not those of `alf.utils.rng`: a resumed run does not go on with the same ones, so
    `TrainerConfig.exact_resume` refuses it.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        agent_ctor: Callable[..., tf_agent.TFAgent],
        debug_summaries: bool = False,
        name: str = "TFAgentsAlgorithm",
        **kwargs: Any,
    ) -> None:
        """Makes the agent and builds its networks.

        Args:
          observation_spec: nest of specs of one raw observation.
          action_spec: nest of bounded specs of one action.
          agent_ctor: makes the agent; called with `time_step_spec` (of transformed observations), `action_spec` (a
            discrete action of shape [1] as one of shape [], which is what TF-Agents takes) and `train_step_counter`, an
            int64 variable of this agent alone.
          debug_summaries: as in `RLAlgorithm`; the agent has an argument of its own.
          name: name of the algorithm.
          **kwargs: the arguments of `RLAlgorithm` about rewards and observations.

        Raises:
          ValueError: discrete actions are not numbered from 0, continuous ones are not bounded, or the agent learns from
            whole sequences, as recurrent and on-policy ones do.
        """
        super().__init__(observation_spec, action_spec, debug_summaries=debug_summaries, name=name, **kwargs)
        check_bounds(action_spec, name)
        # TF-Agents' agents take a discrete action of shape [] only.
        spec = action_spec
        self._squeezes = isinstance(spec, BoundedTensorSpec) and spec.dtype.is_integer and spec.shape == [1]
        if self._squeezes:
            spec = BoundedTensorSpec([], spec.dtype, spec.minimum.min(), spec.maximum.max(), spec.name)
        seen = self.transform_timestep(zeros_from_spec(self.time_step_spec, _BUILD_BATCH)).observation
        self._agent = self._made(agent_ctor, ts.time_step_spec(nest_utils.extract_spec(seen)), spec)
        self._rows = self._rows_needed()
        self._agent.initialize()
        policy = self._agent.policy
        greedy = isinstance(policy, greedy_policy.GreedyPolicy)
        self._greedy_policy = policy if greedy else greedy_policy.GreedyPolicy(policy)
        self._collect_policy = self._agent.collect_policy
        self._action_masks = ActionMasks(self._collect_policy.observation_and_action_constraint_splitter)
        # Their clocks are variables of the agent.
        self._schedules = Untracked(_schedules_of(self._agent))
        self._noise: OUNoise | None = None
        if isinstance(self._collect_policy, ou_noise_policy.OUNoisePolicy):
            self._noise = OUNoise(self._collect_policy._ou_stddev, self._collect_policy._ou_damping)
            self._collect_policy = self._collect_policy._wrapped_policy
            self._train_state_spec = add_outer_dims(action_spec, [])
        else:
            for schedule in self._schedules.value.values():
                schedule.claim(name)
        self._traced = _Traced()

    def _made(self, agent_ctor: Callable[..., tf_agent.TFAgent], time_step_spec: ts.TimeStep, action_spec: Nest) -> Any:
        counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step")
        try:
            return agent_ctor(time_step_spec=time_step_spec, action_spec=action_spec, train_step_counter=counter)
        except (AttributeError, TypeError, ValueError) as error:
            if not any(words in str(error) for words in _OF_CLASSES):
                raise
            kind = getattr(agent_ctor, "__name__", agent_ctor)
            raise ValueError(
                f"{self.name}: {kind} is given a class in the place of a network: write it with parentheses in gin, such as "
                "@QNetwork()."
            ) from error

    def _rows_needed(self) -> int:
        agent = self._agent
        length = agent.train_sequence_length
        states = (agent.policy.policy_state_spec, agent.collect_policy.policy_state_spec)
        if length is None or not is_stateless(states):
            raise ValueError(
                f"{self.name} takes agents that learn from pairs of steps, and {type(agent).__name__} here learns from whole "
                "sequences, as recurrent and on-policy agents do: give it feed-forward networks, or use an algorithm of alf."
            )
        return int(length)

    @property
    def least_sample_length(self) -> int:
        """The rows that the agent learns from at once."""
        return self._rows

    @property
    def rows_only_looked_at(self) -> int:
        """Those behind the last that begins a trajectory."""
        return self._rows - 1

    @property
    def agent(self) -> tf_agent.TFAgent:
        """The agent."""
        return self._agent

    @property
    def learning_state_spec(self) -> Nest:
        """Nothing: noise is no part of learning."""
        return ()

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """Nothing, as `predict` remembers nothing."""
        return ()

    def _trainable_attributes_to_ignore(self) -> list[str]:
        # The agent's own optimisers train them.
        return ["_agent", "_greedy_policy", "_collect_policy"]

    # ---- acting ----

    def _act(self, policy: Any, inputs: ActionTimeStep) -> PolicyStep:
        step = policy.action(_as_policies_take(inputs))
        return step._replace(action=step.action[:, tf.newaxis]) if self._squeezes else step

    def rollout(self, time_step: ActionTimeStep, state: Nest, mode: int) -> PolicyStep:
        """An action of the agent's collect policy."""
        step = self._act(self._collect_policy, time_step)
        if self._noise is None:
            return PolicyStep(step.action, (), step.info)
        flat = zip(*(tf.nest.flatten(x) for x in (step.action, state, self._action_spec)), strict=True)
        actions, states = zip(*(self._noise(action, noise, spec) for action, noise, spec in flat), strict=True)
        return PolicyStep(
            tf.nest.pack_sequence_as(step.action, actions), tf.nest.pack_sequence_as(state, states), step.info
        )

    def predict(self, inputs: ActionTimeStep, state: Nest = None, epsilon_greedy: float = 0.0) -> PolicyStep:
        """The most likely action; with probability `epsilon_greedy`, a row, the collect policy's, without OU noise."""
        action = self._act(self._greedy_policy, inputs).action
        if isinstance(epsilon_greedy, (int, float)) and epsilon_greedy <= 0.0:
            return PolicyStep(action, (), ())
        explores = tf.random.stateless_uniform(tf.shape(inputs.step_type), rng.next_seed()) < epsilon_greedy
        other = self._act(self._collect_policy, inputs).action
        return PolicyStep(tf.nest.map_structure(lambda o, a: select(explores, o, a), other, action), (), ())

    def outputs(self, time_step: ActionTimeStep, state: Nest) -> dict[str, tf.Tensor]:
        """The values of all actions, masked, of agents with a Q-network; nothing of others."""
        if not isinstance(self._agent, dqn_agent.DqnAgent):
            return super().outputs(time_step, state)
        # The logits of what it is greedy about are the values, those of C51's agent the means.
        choice = self._greedy_policy.wrapped_policy.distribution(_as_policies_take(time_step)).action
        return {"q_values": choice.logits_parameter()}

    @property
    def outputs_tell_chances(self) -> bool:
        """Not: collect policies need not tell the distribution that they sample from."""
        return False

    # ---- learning ----

    def train_step(self, inputs: Experience, state: Nest = None) -> PolicyStep:
        """Not there.

        Raises:
          ValueError: always; an `Agent` of alf asks for it.
        """
        raise ValueError(
            f"{self.name} is trained by an agent of TF-Agents and cannot be a part of an Agent: set "
            "TrainerConfig.algorithm_ctor = @TFAgentsAlgorithm."
        )

    def set_learners(self, count: int) -> None:
        """See `OffPolicyAlgorithm.set_learners`.

        Raises:
          ValueError: there would be several.
        """
        if count > 1:
            raise ValueError(
                f"{self.name}: agents of TF-Agents train on one device, got {count}: leave the number of learners at 1."
            )
        super().set_learners(count)

    def count_env_steps(self, steps: int) -> None:
        """See `RLAlgorithm.count_env_steps`."""
        if not self.exploration_stands:
            self._advance("env_steps", steps)

    def _advance(self, unit: str, steps: int) -> None:
        for schedule in self._schedules.value.values():
            schedule.advance(unit, steps)

    def updates_made(self) -> int:
        """How often the agent has been trained."""
        return int(self._agent.train_step_counter)

    @property
    def reproducible(self) -> bool:
        """Not: agents draw from TensorFlow's own random numbers."""
        return False

    def build_optimizers(self) -> None:
        """Traces an update, which makes the agent's optimisers create their variables; nothing is trained."""
        if self._traced.done:
            return
        rows = zeros_from_spec(add_outer_dims(self.experience_spec, [self._rows]), _BUILD_BATCH)
        rows = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), rows)

        @tf.function(autograph=False)
        def update() -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
            return self._trained(trajectories_of(self._as_agents_take(rows), self._rows)[0], None)

        metrics, errors = update.get_concrete_function().structured_outputs
        self._traced = _Traced(True, tuple(metrics), errors is not None)

    def _as_agents_take(self, exp: Experience) -> Experience:
        return exp._replace(action=exp.action[..., 0]) if self._squeezes else exp

    def _trained(
        self, trajectory: Trajectory, weights: tf.Tensor | None
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        """Has the agent train on [M, N, ...]; what it reports, float32 [] each, and the error of each row where it tells."""
        loss, extra = self._agent.train(trajectory, weights=weights)
        told = {"loss": loss, **dict(named("", extra))}
        errors = [e for e in nest_utils.find_field(extra, "td_error") if e.shape.rank == 1]
        return {k: tf.reduce_mean(tf.cast(x, tf.float32)) for k, x in told.items()}, errors[0] if errors else None

    def _update(
        self,
        exp: Experience,
        extended: bool,
        weight: tf.Tensor | float,
        sequence_weights: tf.Tensor | None = None,
        state: Nest = None,
    ) -> tuple[dict[str, tf.Tensor], LossInfo]:
        """One update of the agent on [L, b, ...], whose last row is only looked at."""
        self._check_rows(exp.step_type.shape[0])
        if sequence_weights is not None:
            self._check_errors()
        trajectory, valid = trajectories_of(self._as_agents_take(exp), self._rows)
        flat_valid = tf.reshape(valid, [-1])

        def train() -> tuple[list[tf.Tensor], tf.Tensor]:
            index = _stand_ins(flat_valid)
            weights = None
            if sequence_weights is not None:
                weights = tf.gather(tf.tile(sequence_weights, [valid.shape[0]]), index)
            found, errors = self._trained(tf.nest.map_structure(lambda x: tf.gather(x, index), trajectory), weights)
            self._advance("updates", 1)
            return list(found.values()), tf.zeros_like(flat_valid, tf.float32) if errors is None else errors

        def leave_out() -> tuple[list[tf.Tensor], tf.Tensor]:
            return [tf.zeros([]) for _ in self._traced.names], tf.zeros_like(flat_valid, tf.float32)

        values, errors = tf.cond(tf.reduce_any(flat_valid), train, leave_out)
        metrics = dict(zip(self._traced.names, values, strict=True))
        metrics.update({name: schedule() for name, schedule in self._schedules.value.items()})
        priority: Nest = ()
        if self._traced.tells_errors:
            priority = per_sequence(tf.reshape(errors, tf.shape(valid)), tf.cast(valid, tf.float32))
        return metrics, LossInfo(loss=metrics["loss"], priority=priority)

    def memory_uses(self, arguments: Mapping[str, Any]) -> dict[str | None, MemoryUse]:
        """See `OffPolicyAlgorithm`; a prioritised memory is for agents that tell errors."""
        uses = super().memory_uses(arguments)
        if any(isinstance(use.memory, PrioritizedReplay) for use in uses.values()):
            self.build_optimizers()
            self._check_errors()
        return uses

    def _check_errors(self) -> None:
        if not self._traced.tells_errors:
            raise ValueError(
                f"{type(self._agent).__name__} does not tell the error of each row, which exp_replayer='prioritized' needs: "
                "set it to 'uniform'."
            )

    def _check_rows(self, length: int) -> None:
        if length < self._rows:
            raise ValueError(
                f"{type(self._agent).__name__} learns from {self._rows} steps in a row, got {length}: set mini_batch_length "
                f"to at least {self._rows}."
            )
