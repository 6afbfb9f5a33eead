"""Steps of a dataset as experience of an algorithm: to learn from alone, or for its memory to begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, RLAlgorithm
from alf.data_structures import ActionTimeStep, Experience, Nest, StepType
from alf.replay.dataset import Steps, read_dataset
from alf.replay.uniform_replay import UniformReplay
from alf.utils import nest_utils, rng
from alf.utils.common import add_outer_dims, is_stateless, reset_state_at_first, zeros_from_spec

# Steps that are stored at once. Shorter pieces are powers of two, so that few lengths have to be traced.
_PIECE = 256


def time_steps_of(steps: Steps) -> ActionTimeStep:
    """Recorded steps [N, ...] as raw time steps of environment 0."""
    count = len(steps.step_type)
    step_type = tf.constant(steps.step_type)
    prev_action = tf.nest.map_structure(lambda a: np.concatenate([np.zeros_like(a[:1]), a[:-1]]), steps.action)
    return ActionTimeStep(
        step_type=step_type,
        reward=tf.constant(steps.reward),
        discount=tf.constant(steps.discount),
        observation=tf.nest.map_structure(tf.constant, steps.observation),
        prev_action=reset_state_at_first(tf.nest.map_structure(tf.constant, prev_action), step_type),
        env_id=tf.zeros([count], tf.int32),
    )


def fill_memory(algorithm: OffPolicyAlgorithm, path: str) -> int:
    """Has the replay memory of an algorithm hold what a dataset does, as if it had been collected; returns the steps.

    Its episodes are dealt out to the streams of the memory, each as a whole. What acting would have recorded beside them
    is that of the present policy. They are no environment steps, and statistics of normalisers do not count them.

    Args:
      algorithm: with its memory, to which a driver has set it; what the memory holds stays.
      path: of a file by `alf.replay.dataset.write_dataset`.

    Raises:
      DatasetError: the file cannot be read, or is of other observations or actions.
      ValueError: there is no memory that samples, or it is too small.
    """
    memory = algorithm.exp_replayer
    if not isinstance(memory, UniformReplay):
        kind = "no replayer yet" if memory is None else f"a {type(memory).__name__}"
        raise ValueError(
            f"A memory that samples can be filled from {path}, and {algorithm.name} has {kind}: set "
            "TrainerConfig.whole_replay_buffer_training=False, or exp_replayer='uniform'."
        )
    steps = read_dataset(path, algorithm.observation_spec, algorithm.action_spec)
    streams = _dealt(steps.step_type, memory.batch_size)
    longest = max(len(rows) for rows in streams)
    if longest > memory.buffer.max_length:
        raise ValueError(
            f"The {len(steps.step_type)} steps of {path}, in {memory.batch_size} streams, need ReplayBuffer.max_length of "
            f"at least {longest}; it is {memory.buffer.max_length}."
        )
    record = _recorder(algorithm)
    for stream, rows in enumerate(streams):
        _store(algorithm, memory, record, stream, tf.nest.map_structure(lambda x, rows=rows: x[rows], steps))
    memory.end_streams()
    return len(steps.step_type)


def _dealt(step_type: np.ndarray, streams: int) -> list[np.ndarray]:
    """The rows of each stream: episodes one after the other, each where there is least."""
    begins = np.flatnonzero(step_type == StepType.FIRST)
    episodes = np.split(np.arange(len(step_type)), begins[begins > 0])
    dealt: list[list[np.ndarray]] = [[] for _ in range(streams)]
    sizes = np.zeros(streams, np.int64)
    for episode in episodes:
        least = int(sizes.argmin())
        dealt[least].append(episode)
        sizes[least] += len(episode)
    return [np.concatenate(rows) if rows else np.zeros(0, np.int64) for rows in dealt]


def _recorder(algorithm: RLAlgorithm) -> Any:
    """What acting records at raw time steps [n, ...]: they, transformed, the states before them, infos, the states after.

    It takes the time steps, what was done there, the states, and the seed of what is drawn, int32 [2].
    """

    def record(
        time_step: ActionTimeStep, action: Nest, state: Nest, seed: tf.Tensor
    ) -> tuple[ActionTimeStep, Nest, Nest, Nest]:
        time_step = algorithm.transform_timestep(time_step)
        state = reset_state_at_first(state, time_step.step_type)
        with rng.scope(seed):
            step = algorithm.rollout(time_step, state, OFF_POLICY_TRAINING)
            after = algorithm.state_after_decision(time_step, action, state, step.state)
        return time_step, state, nest_utils.distributions_to_params(step.info), after

    specs = algorithm.time_step_spec, algorithm.action_spec, algorithm.train_state_spec
    signature = add_outer_dims(specs, [None])
    return tf.function(record, autograph=False, input_signature=[*signature, tf.TensorSpec([2], tf.int32)])


def _store(
    algorithm: OffPolicyAlgorithm, memory: UniformReplay, record: Callable[..., Any], stream: int, steps: Steps
) -> None:
    """Has `memory` observe the steps [n, ...] of one stream, piece by piece."""
    time_steps = time_steps_of(steps)
    state = zeros_from_spec(algorithm.train_state_spec, 1)
    at, total = 0, len(steps.step_type)
    while at < total:
        size = min(_PIECE, 1 << (total - at).bit_length() - 1)
        rows = slice(at, at + size)
        piece = tf.nest.map_structure(lambda x, rows=rows: x[rows], time_steps)
        action = tf.nest.map_structure(lambda a, rows=rows: tf.constant(a[rows]), steps.action)
        seen, states, info, state = _recorded(record, piece, action, state, (stream, at))
        exp = Experience(
            **seen._replace(env_id=tf.fill([size], stream))._asdict(),
            action=action,
            rollout_info=info,
            state=states if algorithm.need_full_rollout_state() else (),
            policy_version=tf.zeros([size], tf.int64),
        )
        memory.observe(tf.nest.map_structure(lambda x: x[tf.newaxis, :, tf.newaxis], exp))
        at += size


def _recorded(
    record: Callable[..., Any], rows: ActionTimeStep, action: Nest, state: Nest, place: tuple[int, int]
) -> tuple[Any, Nest, Nest, Nest]:
    """As `record`, of consecutive steps [n, ...] from `state` [1, ...] on, and the state after the last.

    `place`, the stream and the number of the first step in it, seeds what is drawn: otherwise at every step.
    """
    stream, first = place
    if is_stateless(state):
        return record(rows, action, state, tf.constant([stream, first]))
    found = []
    for t in range(rows.step_type.shape[0]):
        row, done = tf.nest.map_structure(lambda x, t=t: x[t : t + 1], (rows, action))
        *recorded, state = record(row, done, state, tf.constant([stream, first + t]))
        found.append(tuple(recorded))
    seen, states, info = tf.nest.map_structure(lambda *x: tf.concat(x, 0), *found)
    return seen, states, info, state
