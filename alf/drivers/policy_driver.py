"""Plays a policy, for evaluation and for looking at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, ON_POLICY_TRAINING, RLAlgorithm
from alf.data_structures import ActionTimeStep, Nest, PolicyStep, TimeStep
from alf.drivers.base import Driver, batched, check_env
from alf.drivers.policy_store import PolicyStore, check_reads_no_variable, reading
from alf.drivers.unroll import sequential, zero_at_first
from alf.utils import rng
from alf.utils.common import add_outer_dims, reset_state_at_first, zeros_from_spec

PREDICT = 2


@gin.configurable(module="alf")
class PolicyDriver(Driver):
    """Steps one batched environment by the present weights, in the calling thread, and trains nothing."""

    ON_POLICY_TRAINING = ON_POLICY_TRAINING
    OFF_POLICY_TRAINING = OFF_POLICY_TRAINING
    PREDICT = PREDICT

    def __init__(
        self,
        env: Any,
        algorithm: RLAlgorithm,
        observers: Sequence[Callable[..., Any]] | None = None,
        metrics: Sequence[Callable[..., Any]] | None = None,
        epsilon_greedy: float = 0.1,
        mode: int = PREDICT,
        *,
        random_seed: int | None = None,
    ) -> None:
        """Creates the driver.

        Args:
          env: a batched environment; it stays the caller's, who closes it.
          algorithm: acts.
          observers: called as `f(trajectory [B, ...])` at every step.
          metrics: called likewise; reported after the four standard ones.
          epsilon_greedy: the chance, a row, of a sampled instead of the most likely action, when predicting.
          mode: PREDICT acts by `predict`, the others by `rollout`.
          random_seed: seeds action sampling; None draws one.

        Raises:
          ValueError: the environment does not fit the algorithm, or an argument is out of range.
        """
        self._env = batched(env)
        check_env(self._env, algorithm)
        if not 0 <= epsilon_greedy <= 1:
            raise ValueError(f"epsilon_greedy is a chance and must be in [0, 1], got {epsilon_greedy}.")
        if mode not in (ON_POLICY_TRAINING, OFF_POLICY_TRAINING, PREDICT):
            raise ValueError(f"mode={mode} is none of PREDICT={PREDICT}, ON_POLICY_TRAINING=0, OFF_POLICY_TRAINING=1.")
        super().__init__(algorithm, 1, self._env.batch_size, observers, metrics)
        self._epsilon_greedy = epsilon_greedy
        self._predicts = mode == PREDICT
        self._rng = np.random.default_rng(random_seed)
        self._act = tf.function(self._act_once, autograph=False)
        self._store: PolicyStore | None = None
        self._weights: tuple[tf.Tensor, ...] = ()

    def restart(self, env: Any, random_seed: int | None) -> None:
        """Plays another environment of the same kind from now on, with samples of another seed.

        Args:
          env: batched as the one before, of which the caller disposes.
          random_seed: seeds action sampling; None draws one.

        Raises:
          ValueError: the environment does not fit the algorithm, or has another batch size.
        """
        env = batched(env)
        check_env(env, self._algorithm)
        if env.batch_size != self._env.batch_size:
            raise ValueError(f"The environment has batch size {env.batch_size}, the one before {self._env.batch_size}.")
        self._env = env
        self._rng = np.random.default_rng(random_seed)

    def freeze(self) -> None:
        """Acts by the weights of this moment from now on, whatever is learned meanwhile.

        Called in the learner's thread between two updates; the driver may then be used in another thread.

        Raises:
          ValueError: acting reads variables in a way that would meet the live ones.
        """
        if self._store is None:
            self._store = PolicyStore(self._variables_read())
            weights = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self._store.variables)
            frozen = tf.function(self._act_frozen, autograph=False)
            self._act = frozen.get_concrete_function(*self._act_specs(), weights)
            check_reads_no_variable(self._act)
        self._weights = self._store.publish(self._store.version + 1).weights

    def get_initial_time_step(self) -> ActionTimeStep:
        """Resets the environment: the first time step [B, ...] of new episodes."""
        zeros = zeros_from_spec(self._algorithm.time_step_spec.prev_action, self._env.batch_size)
        return _action_time_step(self._env.reset(), zeros)

    def get_initial_policy_state(self) -> Nest:
        """The policy state [B, ...] before a first step: zeros."""
        spec = self._algorithm.predict_state_spec if self._predicts else self._algorithm.train_state_spec
        return zeros_from_spec(spec, self._env.batch_size)

    def run(
        self, max_num_steps: int | None = None, time_step: ActionTimeStep | None = None, policy_state: Nest = None
    ) -> tuple[ActionTimeStep, Nest]:
        """As `predict`; with defaults: one step, from a reset."""
        return self.predict(max_num_steps or 1, time_step, policy_state)

    def predict(
        self, max_num_steps: int, time_step: ActionTimeStep | None = None, policy_state: Nest = None
    ) -> tuple[ActionTimeStep, Nest]:
        """Plays ceil(max_num_steps / B) steps of the batch.

        Args:
          max_num_steps: steps of single environments.
          time_step: where the environment stands; None resets it.
          policy_state: the policy state there; None is the initial one.

        Returns:
          where it stands then, and the policy state.
        """
        if time_step is None:
            time_step, policy_state = self.get_initial_time_step(), None
        if policy_state is None:
            policy_state = self.get_initial_policy_state()
        for _ in range(math.ceil(max_num_steps / self._env.batch_size)):
            time_step, policy_state = self._step(time_step, policy_state)
        return time_step, policy_state

    def run_episodes(self, num_episodes: int, max_steps_per_episode: int = 100_000) -> None:
        """Plays from a reset until `num_episodes` episodes of the batch have ended, or the limit of steps is reached."""
        before = int(self._metrics[0].result())
        time_step, state = self.get_initial_time_step(), self.get_initial_policy_state()
        for _ in range(max_steps_per_episode * num_episodes):
            if int(self._metrics[0].result()) - before >= num_episodes:
                return
            time_step, state = self._step(time_step, state)

    def _step(self, time_step: ActionTimeStep, state: Nest) -> tuple[ActionTimeStep, Nest]:
        seed = tf.constant(self._rng.integers(0, 2**30, 2, dtype=np.int32))
        with sequential():
            policy_step = self._act(time_step, state, seed, *([self._weights] if self._store else []))
        action = tf.nest.map_structure(lambda a: a.numpy(), policy_step.action)
        following = self._env.step(action)
        step = trajectory.Trajectory(
            step_type=time_step.step_type.numpy(),
            observation=time_step.observation,
            action=action,
            policy_info=(),
            next_step_type=following.step_type,
            reward=following.reward,
            discount=following.discount,
        )
        for listener in [*self._metrics, *self._observers]:
            listener(step)
        return _action_time_step(following, policy_step.action), policy_step.state

    def _act_specs(self) -> tuple[Nest, ...]:
        algorithm, rows = self._algorithm, [self._env.batch_size]
        state = algorithm.predict_state_spec if self._predicts else algorithm.train_state_spec
        seed = tf.TensorSpec([2], tf.int32)
        return add_outer_dims(algorithm.time_step_spec, rows), add_outer_dims(state, rows), seed

    def _variables_read(self) -> list[tf.Variable]:
        live = tf.function(self._act_once, autograph=False).get_concrete_function(*self._act_specs())
        read = {v.ref() for v in live.graph.variables}
        return [v for v in self._algorithm.variables if v.ref() in read]

    def _act_frozen(
        self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor, weights: tuple[tf.Tensor, ...]
    ) -> PolicyStep:
        assert self._store is not None
        with reading(self._store.variables, weights):
            return self._act_once(time_step, state, seed)

    def _act_once(self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor) -> PolicyStep:
        time_step = self._algorithm.transform_timestep(time_step)
        state = reset_state_at_first(state, time_step.step_type)
        with rng.scope(seed):
            if self._predicts:
                policy_step = self._algorithm.predict(time_step, state, self._epsilon_greedy)
            else:
                policy_step = self._algorithm.rollout(time_step, state, OFF_POLICY_TRAINING)
        return PolicyStep(policy_step.action, policy_step.state, ())


def _action_time_step(time_step: TimeStep, prev_action: Nest) -> ActionTimeStep:
    step_type = tf.constant(time_step.step_type)
    return ActionTimeStep(
        step_type=step_type,
        reward=tf.constant(time_step.reward),
        discount=tf.constant(time_step.discount),
        observation=tf.nest.map_structure(tf.constant, time_step.observation),
        prev_action=zero_at_first(prev_action, step_type),
        env_id=tf.range(len(time_step.step_type)),
    )
