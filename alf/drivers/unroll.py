"""The traced functions that turn T steps of one batched environment into a segment.

They are traced once, in the main thread, and shared by all environment threads of a driver: what differs between
threads (environment, queues, weights, seeds) comes in as tensors. AutoGraph is off, since converting network code costs
seconds at start.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

from alf import _tf
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, Nest, PolicyStep, StepType, TimeStep
from alf.drivers.host_calls import host_call
from alf.drivers.policy_store import check_reads_no_variable
from alf.utils.common import add_outer_dims, broadcast_mask, reset_state_at_first
from alf.utils.devices import for_host, on_host
from alf.utils.reading import reading
from alf.utils.tracing import Concrete

# The three numbers of a step, stacked in one float32 array [3, B] on the way through the graph.
_STEP_TYPE, _REWARD, _DISCOUNT = 0, 1, 2


class Carry(NamedTuple):
    """Where a stream stands between two segments, [B, ...]: what came last from the environment and from the policy."""

    control: tf.Tensor
    observation: Nest
    prev_action: Nest
    state: Nest


class Segment(NamedTuple):
    """T consecutive steps of one environment thread.

    `experience` [T, B, ...] with its bootstrap [B, ...]; `outcome` float32 [T, 3, B]: step type, raw reward and discount
    of the step that each action led to; `versions` int64 [T]: the weights that acted.
    """

    experience: Experience
    outcome: tf.Tensor
    versions: tf.Tensor


def sequential() -> contextlib.AbstractContextManager[None]:
    """Runs traced code operation by operation on one thread, to be entered for tracing and for calling.

    Small operations cost less there than their way between the threads of a pool. Not for code that waits in queues: it
    would hold a thread of the pool while it waits.

    Operations are not fused. TensorFlow fuses some in a function that it leaves alone in a loop, and the last bits of
    what a policy records would tell whether its environment was stepped inside the graph.

    It is code for the processors: a loop that runs so is placed as a whole, and Python is no part of a GPU.
    """
    return _acting("SINGLE_THREADED_EXECUTOR")


def convolving() -> contextlib.AbstractContextManager[None]:
    """As `sequential`, on TensorFlow's default executor: it alone hands the convolutions of a loop to oneDNN.

    Otherwise they are Eigen's, which take longer, and are never of bfloat16.
    """
    return _acting("")


def executor_for(weights: Iterable[Any]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """`convolving` where one of the weights (variables or specs) is the kernel of a convolution, else `sequential`."""
    return convolving if any((x.shape.rank or 0) > 3 for x in weights) else sequential


@contextlib.contextmanager
def _acting(executor: str) -> Iterator[None]:
    now = context.context()
    before = now.function_call_options
    with on_host():
        now.function_call_options = context.FunctionCallOptions(
            executor, _without_fusing(before.config_proto_serialized)
        )
        try:
            yield
        finally:
            now.function_call_options = before


@functools.lru_cache(maxsize=8)
def _without_fusing(serialized: bytes) -> config_pb2.ConfigProto:
    """The configuration in force, which another run of the process may have changed (mixed precision), without fusing."""
    config = config_pb2.ConfigProto.FromString(serialized)
    config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return config


def parallel() -> contextlib.AbstractContextManager[None]:
    """Runs traced code for the processors on TensorFlow's default executor, where waiting in a queue holds no thread."""
    return on_host()


def control_of(time_step: TimeStep) -> np.ndarray:
    """step_type, reward and discount [B] of a time step as float32 [3, B]."""
    control = np.empty((3, len(time_step.step_type)), np.float32)
    control[_STEP_TYPE] = time_step.step_type
    control[_REWARD] = time_step.reward
    control[_DISCOUNT] = time_step.discount
    return control


@functools.cache
def _slots() -> threading.Semaphore:
    return threading.Semaphore(_tf.unroll_threads())


@contextlib.contextmanager
def thread_of_the_pool(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Holds one of the few threads of TensorFlow's pool that unrolls of this process may take.

    Raises:
      StopUnroll: `should_stop` came true while others held them all.
    """
    while not _slots().acquire(timeout=0.1):
        if should_stop():
            raise StopUnroll
    try:
        yield
    finally:
        _slots().release()


class Call(NamedTuple):
    """What one call of a traced acting function needs beside the carry.

    `weights` and `version`: a snapshot; `handles`: resources [2] of the actor queue and the return queue (empty when
    acting inline); `seed` int32 [2]; `thread` int32: number of the environment thread; `first_env_id` int32.
    """

    weights: tuple[tf.Tensor, ...]
    version: tf.Tensor
    handles: tuple[tf.Tensor, ...]
    seed: tf.Tensor
    thread: tf.Tensor
    first_env_id: tf.Tensor


class Kept(NamedTuple):
    """What is recorded of acting at one step, [B, ...]."""

    reward: tf.Tensor
    observation: Nest
    action: Nest
    rollout_info: Nest
    state: Nest


class StopUnroll(Exception):
    """Ends an unroll whose driver is stopping."""


# Acts at (call, transformed time step, state before the step, number of the step).
Policy = Callable[[Call, ActionTimeStep, Nest, tf.Tensor], tuple[PolicyStep, tf.Tensor]]


def inline_policy(algorithm: RLAlgorithm, variables: Sequence[tf.Variable]) -> Policy:
    """Acts in the environment thread itself, under the weights of the call."""

    def policy(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        with reading(variables, call.weights):
            return algorithm.act(time_step, state, call.seed + tf.stack([0, t])), call.version

    return policy


# Puts an action in the place of that of a step: at (call, transformed time step, state before the step, step, action).
Decision = Callable[[Call, ActionTimeStep, Nest, PolicyStep, Nest], PolicyStep]


def inline_decision(algorithm: RLAlgorithm, variables: Sequence[tf.Variable]) -> Decision:
    """What is remembered follows the action that is played, under the weights of the call."""

    def decide(call: Call, time_step: ActionTimeStep, state: Nest, step: PolicyStep, action: Nest) -> PolicyStep:
        with reading(variables, call.weights):
            after = algorithm.state_after_decision(time_step, action, state, step.state)
        return step._replace(action=action, state=after)

    return decide


def queue_decision(call: Call, time_step: ActionTimeStep, state: Nest, step: PolicyStep, action: Nest) -> PolicyStep:
    """What is remembered is that of the policy's action, since weights are at the other end of the queue."""
    return step._replace(action=action)


def inline_call_spec(variables: Sequence[tf.Variable]) -> Call:
    """Specs of a Call of `inline_policy`."""
    weights = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
    return queue_call_spec()._replace(weights=weights, handles=())


def queue_call_spec() -> Call:
    """Specs of a Call that acts through an actor's queue: no weights, two handles."""
    return Call(
        weights=(),
        version=tf.TensorSpec([], tf.int64),
        handles=(tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.resource)),
        seed=tf.TensorSpec([2], tf.int32),
        thread=tf.TensorSpec([], tf.int32),
        first_env_id=tf.TensorSpec([], tf.int32),
    )


class Unroller:
    """Builds and holds the traced functions of one driver."""

    def __init__(
        self,
        algorithm: RLAlgorithm,
        batch_size: int,
        unroll_length: int,
        policy: Policy,
        call_spec: Call,
        step_env: Callable[..., Any],
    ) -> None:
        """Prepares tracing.

        Args:
          algorithm: gives the shapes and transforms time steps.
          batch_size: B.
          unroll_length: T.
          policy: acts, inline or through an actor's queue.
          call_spec: specs of a Call.
          step_env: `(thread, *flat action)` -> `[control, *flat observation]` in numpy, called from inside the graph.
        """
        self._algorithm = algorithm
        self._batch_size = batch_size
        self._length = unroll_length
        self._policy = policy
        self._step_env = step_env
        self._executor = parallel if call_spec.handles else executor_for(call_spec.weights)
        spec = algorithm.time_step_spec
        self._carry_spec = Carry(
            control=tf.TensorSpec([3, batch_size], tf.float32),
            observation=add_outer_dims(spec.observation, [batch_size]),
            prev_action=add_outer_dims(spec.prev_action, [batch_size]),
            state=add_outer_dims(algorithm.train_state_spec, [batch_size]),
        )
        self._call_spec = call_spec
        recorded = algorithm.experience_spec
        self._kept_spec = add_outer_dims(
            Kept(
                reward=recorded.reward,
                observation=recorded.observation,
                action=recorded.action,
                rollout_info=recorded.rollout_info,
                state=recorded.state,
            ),
            [batch_size],
        )
        self._functions: dict[str, Any] = {}

    def trace(self, stepping: Sequence[str]) -> None:
        """Traces what the ways of stepping ("graph", "host") need; in the main thread, before threads start."""
        call, carry = self._call_spec, self._carry_spec
        with self._executor():
            if "graph" in stepping:
                self._functions["unroll"] = _concrete(self._unroll, call, carry)
            if "host" in stepping:
                self._functions["act"] = _concrete(self._act_in_loop, call, carry, tf.TensorSpec([], tf.int32))
                rows = add_outer_dims((self._kept_spec, tf.TensorSpec([], tf.int64), carry.control), [self._length])
                self._functions["segment"] = _concrete(self._segment, call, carry, *rows, carry)

    def initial_carry(self, time_step: TimeStep) -> Carry:
        """The carry of a stream that starts at `time_step` [B, ...] in numpy, fresh from `reset`."""
        prev_action, state = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), (self._carry_spec.prev_action, self._carry_spec.state)
        )
        observation = tf.nest.map_structure(tf.constant, time_step.observation)
        return Carry(tf.constant(control_of(time_step)), observation, prev_action, state)

    def unroll(self, call: Call, carry: Carry, should_stop: Callable[[], bool]) -> tuple[Segment, Carry]:
        """T steps, the environment stepped from inside the graph.

        Raises:
          StopUnroll: `should_stop` came true while other unrolls held the threads that this one needs.
        """
        if self._executor is parallel:
            with parallel():
                return self._functions["unroll"](call, carry)
        with thread_of_the_pool(should_stop), self._executor():
            return self._functions["unroll"](call, carry)

    def unroll_on_host(self, call: Call, carry: Carry, step: Callable[[Nest], TimeStep]) -> tuple[Segment, Carry]:
        """T steps, the environment stepped by `step(action)` in Python between calls of TensorFlow."""
        first = carry
        records = []
        for t in range(self._length):
            with self._executor():
                kept, state, version = self._functions["act"](call, carry, tf.constant(t))
            time_step = step(tf.nest.map_structure(lambda a: a.numpy(), kept.action))
            control = tf.constant(control_of(time_step))
            observation = tf.nest.map_structure(tf.constant, time_step.observation)
            carry = Carry(control, observation, kept.action, state)
            records.append((kept, version, control))
        rows = tf.nest.map_structure(lambda *x: tf.stack(x), *records)
        with self._executor():
            return self._functions["segment"](call, first, *rows, carry), carry

    # ---- traced ----

    def _time_step(self, call: Call, carry: Carry) -> ActionTimeStep:
        env_id = call.first_env_id + tf.range(self._batch_size)
        return action_time_step(carry.control, carry.observation, carry.prev_action, env_id)

    def _act(self, call: Call, carry: Carry, t: tf.Tensor) -> tuple[Kept, Nest, tf.Tensor]:
        """Acts at the carried time step: what is recorded, the policy state after it, the version that acted."""
        time_step = self._algorithm.transform_timestep(self._time_step(call, carry))
        state = reset_state_at_first(carry.state, time_step.step_type)
        policy_step, version = self._policy(call, time_step, state, t)
        kept = Kept(
            reward=time_step.reward,
            observation=time_step.observation,
            action=policy_step.action,
            rollout_info=policy_step.info,
            state=state if self._algorithm.need_full_rollout_state() else (),
        )
        tf.nest.assert_same_structure(kept, self._kept_spec)
        return kept, policy_step.state, version

    def _act_in_loop(self, call: Call, carry: Carry, t: tf.Tensor) -> tuple[Kept, Nest, tf.Tensor]:
        """`_act` as the one turn of a loop."""
        specs = (self._kept_spec, self._carry_spec.state, tf.TensorSpec([], tf.int64))
        return in_loop(lambda: self._act(call, carry, t), specs)

    def _seen_in_loop(self, call: Call, carry: Carry) -> ActionTimeStep:
        """The carried time step as `_act` will see it, to the last bit: a replay memory recognises it by its values."""
        spec = add_outer_dims(self._algorithm.transformed_time_step_spec, [self._batch_size])
        return in_loop(lambda: self._algorithm.transform_timestep(self._time_step(call, carry)), spec)

    def _step_in_graph(self, thread: tf.Tensor, action: Nest) -> tuple[tf.Tensor, Nest]:
        specs = [self._carry_spec.control, *tf.nest.flatten(self._carry_spec.observation)]
        control, *observation = host_call(self._step_env, [thread, *tf.nest.flatten(action)], specs)
        return control, tf.nest.pack_sequence_as(self._carry_spec.observation, observation)

    def _unroll(self, call: Call, carry: Carry) -> tuple[Segment, Carry]:
        row_spec = (self._kept_spec, tf.TensorSpec([], tf.int64), self._carry_spec.control)
        arrays = tf.nest.map_structure(
            lambda spec: tf.TensorArray(spec.dtype, self._length, element_shape=spec.shape), row_spec
        )

        def step(t: tf.Tensor, carry: Carry, arrays: Nest) -> tuple[tf.Tensor, Carry, Nest]:
            kept, state, version = self._act(call, carry, t)
            control, observation = self._step_in_graph(call.thread, kept.action)
            row = (kept, version, control)
            arrays = tf.nest.map_structure(lambda array, x: array.write(t, x), arrays, row)
            return t + 1, Carry(control, observation, kept.action, state), arrays

        _, last, arrays = tf.while_loop(
            lambda t, *_: t < self._length, step, (tf.constant(0), carry, arrays), parallel_iterations=1
        )
        kept, versions, outcome = tf.nest.map_structure(lambda array: array.stack(), arrays)
        return self._segment(call, carry, kept, versions, outcome, last), last

    def _segment(
        self, call: Call, first: Carry, kept: Kept, versions: tf.Tensor, outcome: tf.Tensor, last: Carry
    ) -> Segment:
        control = tf.concat([first.control[tf.newaxis], outcome[:-1]], 0)
        step_type = tf.cast(control[:, _STEP_TYPE], tf.int32)
        prev_action = tf.nest.map_structure(
            lambda f, a: tf.concat([f[tf.newaxis], a[:-1]], 0), first.prev_action, kept.action
        )
        shape = [self._length, self._batch_size]
        experience = Experience(
            step_type=step_type,
            reward=kept.reward,
            discount=control[:, _DISCOUNT],
            observation=kept.observation,
            prev_action=zero_at_first(prev_action, step_type),
            env_id=tf.broadcast_to(call.first_env_id + tf.range(self._batch_size), shape),
            action=kept.action,
            rollout_info=kept.rollout_info,
            state=kept.state,
            policy_version=tf.broadcast_to(versions[:, tf.newaxis], shape),
            bootstrap=Bootstrap(self._seen_in_loop(call, last), last.state),
        )
        return Segment(experience, outcome, versions)


def in_loop(function: Callable[[], Nest], spec: Nest) -> Nest:
    """What `function` returns, of `spec`, as the one turn of a loop.

    TensorFlow rewrites operations, and where a processor has the instructions for it hands them to oneDNN, but on the
    single-threaded executor not those of a loop; the last bits would tell them apart.
    """

    def turn(i: tf.Tensor, _: Nest) -> tuple[tf.Tensor, Nest]:
        # What Python computes for TensorFlow comes without a shape.
        return i + 1, tf.nest.map_structure(lambda x, s: tf.ensure_shape(x, s.shape), function(), spec)

    before = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
    return tf.while_loop(lambda i, _: i < 1, turn, (0, before))[1]


def action_time_step(control: tf.Tensor, observation: Nest, prev_action: Nest, env_id: tf.Tensor) -> ActionTimeStep:
    """The time step [B, ...] of what came from the environment: `control` float32 [3, B] as of `control_of`."""
    step_type = tf.cast(control[_STEP_TYPE], tf.int32)
    return ActionTimeStep(
        step_type=step_type,
        reward=control[_REWARD],
        discount=control[_DISCOUNT],
        observation=observation,
        prev_action=zero_at_first(prev_action, step_type),
        env_id=env_id,
    )


def zero_at_first(action: Nest, step_type: tf.Tensor) -> Nest:
    """`action` [..., B, ...] with zeros where `step_type` is FIRST: no action led there."""
    first = tf.equal(step_type, StepType.FIRST)
    return tf.nest.map_structure(lambda a: tf.where(broadcast_mask(first, a), tf.zeros_like(a), a), action)


def _concrete(function: Callable[..., Any], *specs: Nest) -> Concrete:
    traced = Concrete(for_host(function), *specs)
    check_reads_no_variable(traced)
    return traced
