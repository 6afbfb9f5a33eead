"""Plays a policy, for evaluation and for looking at it."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from alf.algorithms.contracts import check_prediction
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, ON_POLICY_TRAINING, ROLLOUT, RLAlgorithm
from alf.data_structures import ActionTimeStep, Nest, PolicyStep, TimeStep
from alf.drivers.base import Driver, batched, check_env
from alf.drivers.collector import MEASURED_STEPS, SLOW_STEP_SECS, FreshObservations
from alf.drivers.host_calls import host_call
from alf.drivers.policy_store import PolicyStore, check_reads_no_variable
from alf.drivers.unroll import StopUnroll, action_time_step, control_of, executor_for, in_loop, thread_of_the_pool
from alf.utils import rng
from alf.utils.common import add_outer_dims, check_range, reset_state_at_first, zeros_from_spec
from alf.utils.devices import for_host, has_gpu
from alf.utils.reading import reading
from alf.utils.tracing import Traced

PREDICT = 2

# Steps in one call of TensorFlow, which holds a thread that other unrolls may wait for.
_STEPS_AT_ONCE = 64


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
          mode: PREDICT acts by `predict`, the others by `rollout`: OFF_POLICY_TRAINING asks it to collect. The algorithm
            observes nothing in any of them: what it is to learn from is collected by SyncOffPolicyDriver or another one.
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
        check_range(0, random_seed=random_seed)
        super().__init__(algorithm, 1, self._env.batch_size, observers, metrics)
        self._epsilon_greedy = epsilon_greedy
        self._predicts = mode == PREDICT
        self._rollout_mode = ON_POLICY_TRAINING if mode == ON_POLICY_TRAINING else ROLLOUT
        self._rng = np.random.default_rng(random_seed)
        self._executor = executor_for(algorithm.variables)
        self._act: Callable[..., Any] = Traced(for_host(self._act_in_loop))
        self._act_in_a_row: Callable[..., Any] = Traced(for_host(self._unroll))
        self._read: list[tf.Variable] | None = None
        self._store: PolicyStore | None = None
        self._weights: tuple[tf.Tensor, ...] = ()
        # Whether it looks at the variables by copies of its own: what acts on the processors sees none on a GPU.
        self._copies = has_gpu()
        # Where the environment stands, the seed of the next action, and what asks whether to go on.
        self._now: TimeStep = TimeStep((), (), (), ())
        self._fresh = FreshObservations(self._env)
        self._seed = self._next_seed()
        self._over: Callable[[], bool] = lambda: False
        self._failure: BaseException | None = None
        self._steps, self._step_secs = 0, 0.0

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
        self._fresh = FreshObservations(env)
        self._rng = np.random.default_rng(random_seed)
        self._seed = self._next_seed()

    def freeze(self) -> None:
        """Acts by the weights of this moment from now on, whatever is learned meanwhile.

        Called in the learner's thread between two updates; the driver may then be used in another thread.

        Raises:
          ValueError: acting reads variables in a way that would meet the live ones.
        """
        self._copies = False
        self._copy()

    def _copy(self) -> None:
        store = self._frozen_store()
        self._weights = store.publish(store.version + 1).weights

    def weights(self) -> list[np.ndarray]:
        """What it acts by at this moment, as `load` takes it, also in another process."""
        held = self._store is not None and not self._copies
        return [x.numpy() for x in (self._weights if held else self._variables_read())]

    def load(self, weights: Sequence[np.ndarray]) -> None:
        """Acts by these weights from now on; the variables stay what they are.

        Args:
          weights: of a driver of the same algorithm.

        Raises:
          ValueError: they are not those of this algorithm, or acting reads variables in a way that would meet the live ones.
        """
        self._copies = False
        store = self._frozen_store()
        self._weights = store.load(store.version + 1, weights).weights

    def _frozen_store(self) -> PolicyStore:
        if self._store is None:
            self._store = PolicyStore(self._variables_read())
            self._act = self._frozen(self._act_in_loop, self._store, *self._act_specs())
            self._act_in_a_row = self._frozen(
                self._unroll, self._store, *self._act_specs(), tf.TensorSpec([], tf.int32)
            )
        return self._store

    def get_initial_time_step(self) -> ActionTimeStep:
        """Resets the environment: the first time step [B, ...] of new episodes."""
        zeros = zeros_from_spec(self._algorithm.time_step_spec.prev_action, self._env.batch_size)
        return self._action_time_step(self._fresh(self._env.reset()), zeros)

    def get_initial_policy_state(self) -> Nest:
        """The policy state [B, ...] before a first step: zeros."""
        spec = self._algorithm.predict_state_spec if self._predicts else self._algorithm.train_state_spec
        return zeros_from_spec(spec, self._env.batch_size)

    def run(
        self, max_num_steps: int | None = None, time_step: ActionTimeStep | None = None, policy_state: Nest = None
    ) -> tuple[ActionTimeStep, Nest]:
        """As `predict`; with defaults: one step, from a reset."""
        return self.predict(1 if max_num_steps is None else max_num_steps, time_step, policy_state)

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

        Raises:
          ValueError: `max_num_steps` is below 0.
        """
        check_range(0, max_num_steps=max_num_steps)
        steps = math.ceil(max_num_steps / self._env.batch_size)
        return self.predict_until(lambda: False, steps, time_step, policy_state)

    @for_host
    def predict_until(
        self,
        over: Callable[[], bool],
        max_batch_steps: float = math.inf,
        time_step: ActionTimeStep | None = None,
        policy_state: Nest = None,
    ) -> tuple[ActionTimeStep, Nest]:
        """Plays until `over()`, which is asked before the first step and after each.

        A fast environment is stepped from inside the graph, with many steps in a call of TensorFlow; one that takes long,
        its listeners included, between calls. The first steps tell which it is; what is played is the same.

        Args:
          over: whether to end; metrics and observers have had the step when it is asked.
          max_batch_steps: ends after so many steps of the batch in any case.
          time_step: where the environment stands; None resets it.
          policy_state: the policy state there; None is the initial one.

        Returns:
          where it stands then, and the policy state.
        """
        if self._copies:
            self._copy()
        if time_step is None:
            time_step, policy_state = self.get_initial_time_step(), None
        if policy_state is None:
            policy_state = self.get_initial_policy_state()
        self._over = over
        self._now = TimeStep(*(tf.nest.map_structure(np.asarray, time_step[: len(TimeStep._fields)])))
        end = self._steps + max_batch_steps
        while self._steps < end and not over():
            if self._steps >= MEASURED_STEPS and self._step_secs <= SLOW_STEP_SECS:
                time_step, policy_state = self._step_in_graph(time_step, policy_state, end - self._steps)
            else:
                time_step, policy_state = self._step_on_host(time_step, policy_state)
        return time_step, policy_state

    def run_episodes(self, num_episodes: int, max_steps_per_episode: int = 100_000) -> ActionTimeStep:
        """Plays from a reset until `num_episodes` episodes of the batch have ended, or the limit of steps is reached.

        Returns:
          where the environment stands then.
        """
        wanted = int(self._metrics[0].result()) + num_episodes
        limit = max_steps_per_episode * num_episodes
        time_step, _ = self.predict_until(lambda: int(self._metrics[0].result()) >= wanted, limit)
        return time_step

    def _step_on_host(self, time_step: ActionTimeStep, state: Nest) -> tuple[ActionTimeStep, Nest]:
        with self._executor():
            policy_step = self._act(time_step, state, tf.constant(self._seed), *self._frozen_weights())
        self._advance(tf.nest.map_structure(lambda a: a.numpy(), policy_step.action))
        return self._action_time_step(self._now, policy_step.action), policy_step.state

    def _step_in_graph(self, time_step: ActionTimeStep, state: Nest, most: float) -> tuple[ActionTimeStep, Nest]:
        limit = tf.constant(int(min(most, _STEPS_AT_ONCE)))
        self._failure = None
        try:
            with thread_of_the_pool(self._over), self._executor():
                return self._act_in_a_row(time_step, state, tf.constant(self._seed), limit, *self._frozen_weights())
        except StopUnroll:
            return time_step, state
        except tf.errors.OpError:
            # What Python raised inside the graph comes out as an error of TensorFlow.
            if self._failure is not None:
                raise self._failure from None
            raise

    def _advance(self, action: Nest) -> None:
        """Steps the environment, tells metrics and observers, and draws the seed of the next action."""
        begin = time.monotonic()
        # An environment may change what it is given; what is recorded stays.
        before, now = self._now, self._fresh(self._env.step(tf.nest.map_structure(np.array, action)))
        # As with observations, one that uses its arrays again would change the step before.
        self._now = TimeStep(*map(np.array, now[:3]), now.observation)
        step = trajectory.Trajectory(
            step_type=before.step_type,
            observation=before.observation,
            action=action,
            policy_info=(),
            next_step_type=self._now.step_type,
            reward=self._now.reward,
            discount=self._now.discount,
        )
        for listener in [*self._metrics, *self._observers]:
            listener(step)
        self._seed = self._next_seed()
        self._steps += 1
        # A moving average that starts as a plain one.
        self._step_secs += max(0.1, 1 / self._steps) * (time.monotonic() - begin - self._step_secs)

    def _advance_flat(self, *flat_action: np.ndarray) -> list[Any]:
        """As `_advance`, from inside the graph: whether to go on, the seed, control and flat observation after the step."""
        try:
            self._advance(tf.nest.pack_sequence_as(self._algorithm.action_spec, flat_action))
            more = not self._over()
        except BaseException as e:
            self._failure = e
            raise
        return [np.bool_(more), self._seed, control_of(self._now), *self._fresh.leaves]

    def _next_seed(self) -> np.ndarray:
        return self._rng.integers(0, 2**30, 2, dtype=np.int32)

    def _frozen_weights(self) -> list[tuple[tf.Tensor, ...]]:
        return [self._weights] if self._store else []

    def _act_specs(self) -> tuple[Nest, ...]:
        algorithm, rows = self._algorithm, [self._env.batch_size]
        state = algorithm.predict_state_spec if self._predicts else algorithm.train_state_spec
        seed = tf.TensorSpec([2], tf.int32)
        return add_outer_dims(algorithm.time_step_spec, rows), add_outer_dims(state, rows), seed

    def _variables_read(self) -> list[tf.Variable]:
        if self._read is None:
            live = tf.function(self._act_once, autograph=False).get_concrete_function(*self._act_specs())
            read = {v.ref() for v in live.graph.variables}
            self._read = [v for v in self._algorithm.variables if v.ref() in read]
        return self._read

    # ---- traced ----

    def _frozen(self, act: Callable[..., Any], store: PolicyStore, *specs: Nest) -> Any:
        """Traces `act` with the weights as a last argument in place of the store's variables."""

        def frozen(*args: Nest) -> Any:
            with reading(store.variables, args[-1]):
                return for_host(act)(*args[:-1])

        weights = tuple(tf.TensorSpec(v.shape, v.dtype) for v in store.variables)
        with self._executor():
            function = tf.function(frozen, autograph=False).get_concrete_function(*specs, weights)
        check_reads_no_variable(function)
        return function

    def _act_once(self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor) -> PolicyStep:
        algorithm = self._algorithm
        time_step = algorithm.transform_timestep(time_step)
        state = reset_state_at_first(state, time_step.step_type)
        with rng.scope(seed):
            if self._predicts:
                policy_step = algorithm.predict(time_step, state, self._epsilon_greedy)
                specs = algorithm.action_spec, algorithm.predict_state_spec
                check_prediction(algorithm.name, policy_step, self._env.batch_size, *specs)
            else:
                policy_step = algorithm.rollout(time_step, state, self._rollout_mode)
        return PolicyStep(policy_step.action, policy_step.state, ())

    def _act_in_loop(self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor) -> PolicyStep:
        """`_act_once`, to the last bit as `_unroll` has it."""
        action_spec = add_outer_dims(self._algorithm.action_spec, [self._env.batch_size])
        spec = PolicyStep(action_spec, self._act_specs()[1], ())
        return in_loop(lambda: self._act_once(time_step, state, seed), spec)

    def _unroll(
        self, time_step: ActionTimeStep, state: Nest, seed: tf.Tensor, limit: tf.Tensor
    ) -> tuple[ActionTimeStep, Nest]:
        """Acts and steps the environment until it is over, at most `limit` times."""
        # TensorFlow keeps what it calls for ever, which must not keep the environment.
        driver = weakref.ref(self)

        def advance(*flat_action: np.ndarray) -> list[Any]:
            driving = driver()
            assert driving is not None, "a driver lives while it is driving"
            return driving._advance_flat(*flat_action)

        rows = [self._env.batch_size]
        observation_spec = add_outer_dims(self._algorithm.time_step_spec.observation, rows)
        after = [tf.TensorSpec([], tf.bool), tf.TensorSpec([2], tf.int32), tf.TensorSpec([3, *rows], tf.float32)]
        specs = [*after, *tf.nest.flatten(observation_spec)]

        def step(
            t: tf.Tensor, _: tf.Tensor, seed: tf.Tensor, time_step: ActionTimeStep, state: Nest
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, ActionTimeStep, Nest]:
            policy_step = self._act_once(time_step, state, seed)
            more, seed, control, *flat = host_call(advance, tf.nest.flatten(policy_step.action), specs)
            observation = tf.nest.pack_sequence_as(observation_spec, flat)
            return (
                t + 1,
                more,
                seed,
                action_time_step(control, observation, policy_step.action, tf.range(*rows)),
                policy_step.state,
            )

        *_, time_step, state = tf.while_loop(
            lambda t, more, *_: more & (t < limit),
            step,
            (tf.constant(0), tf.constant(True), seed, time_step, state),
            parallel_iterations=1,
        )
        return time_step, state

    def _action_time_step(self, time_step: TimeStep, prev_action: Nest) -> ActionTimeStep:
        observation = tf.nest.map_structure(tf.constant, time_step.observation)
        return action_time_step(
            tf.constant(control_of(time_step)), observation, prev_action, tf.range(self._env.batch_size)
        )
