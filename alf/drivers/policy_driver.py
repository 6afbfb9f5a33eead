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
from alf.drivers.unroll import sequential, zero_at_first
from alf.utils import rng
from alf.utils.common import reset_state_at_first, zeros_from_spec

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
            policy_step = self._act(time_step, state, seed)
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
