"""How a batch of segments is cut into sequences, shuffled into minibatches, and run through `train_step`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from alf.data_structures import ActionTimeStep, Bootstrap, Experience, Nest, PolicyStep
from alf.utils import nest_utils, rng
from alf.utils.common import check_sizes, flat, reset_state_at_first

if TYPE_CHECKING:
    from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm

_SHORT = (tf.uint8, tf.int8, tf.uint16, tf.int16)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sizes of one training call: `sequences` of `length` steps, `size` a minibatch, `epochs` passes."""

    sequences: int
    length: int
    size: int
    epochs: int


def sizes(experience: Experience) -> tuple[int, int]:
    """B and T of experience [B, T, ...]; ValueError where it has other axes."""
    shape = experience.step_type.shape
    if len(shape) != 2:
        raise ValueError(
            f"Experience to train from must be [B, T, ...], but its step types are {[*shape]}: give [Q, T, B, ...], "
            "as of a driver's get_training_exps(), to observe() and call train()."
        )
    return int(shape[0]), int(shape[1])


def plan(batch: int, length: int, num_updates: int, mini_batch_size: int | None, mini_batch_length: int | None) -> Plan:
    """Checks the sizes for data [batch, length] and returns them.

    Raises:
      ValueError: a size is no whole number of at least 1, or mini_batch_length does not divide the length of the data.
    """
    check_sizes(num_updates=num_updates, mini_batch_size=mini_batch_size, mini_batch_length=mini_batch_length)
    sequence_length = length if mini_batch_length is None else mini_batch_length
    if length % sequence_length:
        raise ValueError(
            f"mini_batch_length={sequence_length} does not divide the {length} steps of a segment, or of what a memory holds: "
            "make unroll_length, and ReplayBuffer.max_length, multiples of it."
        )
    sequences = batch * length // sequence_length
    size = sequences if mini_batch_size is None else mini_batch_size
    return Plan(sequences, sequence_length, min(size, sequences), num_updates)


def check_segments(
    algorithm: OffPolicyAlgorithm, unroll_length: int, mini_batch_length: int | None, where: str = ""
) -> None:
    """Checks the sizes of segments that are learned from as a whole, before there are any.

    Args:
      algorithm: what learns.
      unroll_length: steps in a segment, and one more behind it to look at.
      mini_batch_length: of them in a sequence, None for all.
      where: what is before the names of both sizes in messages.

    Raises:
      ValueError: the segments cannot be cut into such sequences, or these are too short.
    """
    length = plan(1, unroll_length, 1, None, mini_batch_length).length
    # The row behind a sequence is there to look at.
    ahead = algorithm.least_sample_length - 1
    if length < ahead:
        size = "unroll_length" if mini_batch_length is None else "mini_batch_length"
        raise ValueError(
            f"{algorithm.learner.name} looks {ahead} steps ahead from the first of each sequence that it learns from, and "
            f"{where}{size}={length} is fewer: set it to at least {ahead}."
        )


def _bootstrap_row(experience: Experience) -> Experience:
    """The bootstrap [B', ...] as one more row [B', 1, ...] of experience.

    It took no action. In place of one stands that of the row before, which every distribution takes, though it may have no
    chance there: the loss of the row is masked out, but 0 times NaN would be NaN.
    """
    time_step: ActionTimeStep = experience.bootstrap.time_step

    def stand_in(data: tf.Tensor) -> tf.Tensor:
        return data[:, -1:]

    return Experience(
        **_row(time_step)._asdict(),
        action=tf.nest.map_structure(stand_in, experience.action),
        rollout_info=tf.nest.map_structure(stand_in, experience.rollout_info),
        state=tf.nest.map_structure(stand_in, experience.state),
        policy_version=stand_in(experience.policy_version),
    )


def _row(nest: Nest) -> Nest:
    """[B', ...] as one row [B', 1, ...]."""
    return tf.nest.map_structure(lambda x: tf.expand_dims(x, 1), nest)


def with_last_row(sampled: Experience, preprocess: Callable[[Experience], Experience]) -> tuple[Experience, bool]:
    """Preprocesses sampled sequences, whose last step is what the others are judged by and is not trained on itself.

    `preprocess` sees it as the bootstrap of the others. Unless it has used it up, it is the last row again, with the
    action that was really taken there.

    Args:
      sampled: [b, L, ...], L at least 2, without a bootstrap.
      preprocess: from experience [b, L - 1, ...] with its bootstrap to what is trained on, of the same axes.

    Returns:
      [b, L, ...] and True, or [b, L - 1, ...] and False.
    """
    trained, last = (tf.nest.map_structure(f, sampled) for f in (lambda x: x[:, :-1], lambda x: x[:, -1]))
    time_step = ActionTimeStep(*last[: len(ActionTimeStep._fields)])
    done = preprocess(trained._replace(bootstrap=Bootstrap(time_step, last.state, last.action, last.rollout_info)))
    if done.bootstrap == ():
        return done, False
    row = _bootstrap_row(done)._replace(
        action=_row(last.action), state=_row(last.state), policy_version=_row(last.policy_version)
    )
    if nest_utils.same_structure(done.rollout_info, last.rollout_info):
        row = row._replace(rollout_info=_row(last.rollout_info))
    return tf.nest.map_structure(lambda x, r: tf.concat([x, r], 1), done._replace(bootstrap=()), row), True


def cut(experience: Experience, length: int) -> tuple[Experience, bool]:
    """Cuts [B', T, ...] into sequences [B' * T / length, length, ...].

    With a bootstrap, every sequence gets the step that follows it as one more row, and True is returned.
    """
    batch, total = experience.step_type.shape[:2]
    pieces = total // length
    if experience.bootstrap == ():
        return tf.nest.map_structure(lambda x: tf.reshape(x, [batch * pieces, length, *x.shape[2:]]), experience), False
    row = _bootstrap_row(experience)
    experience = tf.nest.map_structure(lambda x, r: tf.concat([x, r], 1), experience._replace(bootstrap=()), row)
    if pieces == 1:
        return experience, True
    rows = tf.range(pieces)[:, tf.newaxis] * length + tf.range(length + 1)[tf.newaxis]

    def overlapping(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(_gather(x, rows, axis=1), [batch * pieces, length + 1, *x.shape[2:]])

    return tf.nest.map_structure(overlapping, experience), True


def take(sequences: Nest, indices: tf.Tensor) -> Nest:
    """The sequences that `indices` int32 [b] name, of sequences [B', L, ...]: time-major, [L, b, ...]."""
    length = tf.nest.flatten(sequences)[0].shape[1]
    rows = indices * length + tf.range(length)[:, tf.newaxis]
    # Taken row by row they need not be brought into that order first, which would copy them once more.
    return tf.nest.map_structure(lambda x: _gather(tf.reshape(x, [-1, *x.shape[2:]]), rows, axis=0), sequences)


def _gather(x: tf.Tensor, indices: tf.Tensor, axis: int) -> tf.Tensor:
    """`tf.gather`, which a GPU does of bytes as well.

    TensorFlow has no such operation of one and two bytes there, and would bring all pictures back to the processors for
    every minibatch. Taken four bytes at a time they are the same, and are not copied for it.
    """
    inner = x.shape[axis + 1 :]
    together = 4 // x.dtype.size
    if x.dtype not in _SHORT or not x.shape.is_fully_defined() or inner.num_elements() % together:
        return tf.gather(x, indices, axis=axis)
    fours = tf.bitcast(tf.reshape(x, [*x.shape[: axis + 1], -1, together]), tf.int32)
    taken = tf.bitcast(tf.gather(fours, indices, axis=axis), x.dtype)
    return tf.reshape(taken, tf.concat([tf.shape(taken)[: axis + indices.shape.rank], inner], 0))


def time_major(batch: Nest) -> Nest:
    """[b, L, ...] to [L, b, ...]."""
    return tf.nest.map_structure(
        lambda x: x[tf.newaxis, :, 0] if x.shape[1] == 1 else tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), batch
    )


def run(
    update: Callable[[tf.Tensor | None, tf.Tensor, tf.Tensor | float], tf.Tensor], plan: Plan, shuffle_seed: tf.Tensor
) -> tf.Tensor:
    """Runs `update(indices, step, weight)` over all minibatches of all epochs; returns the mean of its results.

    Each epoch shuffles all sequences and uses each exactly once; a remainder makes a smaller last minibatch whose
    weight is its share. All is one `tf.while_loop`, so the update is traced once however many minibatches there are.

    Args:
      update: gets the indices of a minibatch (None: all sequences, in order), the number of the gradient step and the
        weight of the loss; returns a vector.
      plan: the sizes.
      shuffle_seed: int32 [2].
    """
    per_epoch = -(-plan.sequences // plan.size)
    if per_epoch == 1:
        if plan.epochs == 1:
            return update(None, tf.constant(0), 1.0)
        return mean_of_loop(plan.epochs, lambda step: update(None, step, 1.0))
    seeds = [tf.random.experimental.stateless_fold_in(shuffle_seed, epoch) for epoch in range(plan.epochs)]
    sequences = tf.range(plan.sequences)
    orders = tf.stack([tf.random.experimental.stateless_shuffle(sequences, seed) for seed in seeds])
    ragged = plan.sequences % plan.size != 0

    def minibatch(step: tf.Tensor) -> tf.Tensor:
        begin = step % per_epoch * plan.size
        indices = orders[step // per_epoch, begin : begin + plan.size]
        if not ragged:
            return update(tf.ensure_shape(indices, [plan.size]), step, 1.0)
        return update(indices, step, tf.cast(tf.size(indices), tf.float32) / plan.size)

    return mean_of_loop(plan.epochs * per_epoch, minibatch)


def mean_of_loop(times: int | tf.Tensor, body: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """The mean of the vectors `body(0) .. body(times - 1)`, which run one after the other."""
    results = tf.TensorArray(tf.float32, times, element_shape=[None])
    _, results = tf.while_loop(
        lambda i, _: i < times, lambda i, r: (i + 1, r.write(i, body(i))), (0, results), parallel_iterations=1
    )
    return tf.reduce_mean(results.stack(), 0)


def vector(values: dict[str, tf.Tensor], names: list[str]) -> tf.Tensor:
    """The scalars `values` as one vector, which such loops take; their names go into `names`."""
    names[:] = list(values)
    return tf.stack(list(values.values()))


def by_name(values: tf.Tensor, names: list[str]) -> dict[str, tf.Tensor]:
    """The scalars of a `vector`."""
    return dict(zip(names, tf.unstack(values, num=len(names)), strict=True))


def map_flat(f: Callable[[Experience], Nest], exp: Experience) -> Nest:
    """`f` on [L * b, ...] once; its result, distributions included, back as [L, b, ...]."""
    length = exp.step_type.shape[0]
    return map_params(lambda x: tf.reshape(x, [length, -1, *x.shape[1:]]), f(flat(exp)))


def map_apart(f: Callable[[Experience], Nest], exp: Experience, looked_at: int) -> Nest:
    """As `map_flat`, where the last `looked_at` rows are only looked at: no gradient flows into them, and none is computed."""
    if not looked_at:
        return map_flat(f, exp)
    before, last = (tf.nest.map_structure(cut, exp) for cut in (lambda x: x[:-looked_at], lambda x: x[-looked_at:]))
    info, seen = map_flat(f, before), nest_utils.distributions_to_params(map_flat(f, last))
    params = tf.nest.map_structure(
        lambda x, row: tf.concat([x, tf.stop_gradient(row)], 0), nest_utils.distributions_to_params(info), seen
    )
    return nest_utils.params_to_distributions(params, nest_utils.extract_spec(info))


def map_params(f: Callable[[tf.Tensor], tf.Tensor], info: Nest) -> Nest:
    """`f` on each tensor of a nest, and on each parameter of its distributions, which are rebuilt of the results."""
    spec = nest_utils.extract_spec(info)
    params = tf.nest.map_structure(f, nest_utils.distributions_to_params(info))
    return nest_utils.params_to_distributions(params, spec)


def last_state(step: Callable[[Experience, Nest], PolicyStep], exp: Experience, state: Nest) -> Nest:
    """The state after the L rows of [L, b, ...]; arguments as in `scan`."""
    seed = rng.next_seed()

    def run_one(t: tf.Tensor | int, state: Nest) -> Nest:
        now = tf.nest.map_structure(lambda x: x[t], exp)
        with rng.scope(tf.random.experimental.stateless_fold_in(seed, t)):
            return step(now, reset_state_at_first(state, now.step_type)).state

    _, state = tf.while_loop(
        lambda t, _: t < exp.step_type.shape[0],
        lambda t, state: (t + 1, run_one(t, state)),
        (tf.constant(1), run_one(0, state)),
        parallel_iterations=1,
    )
    return state


def scan(step: Callable[[Experience, Nest], PolicyStep], exp: Experience, state: Nest) -> Nest:
    """Runs `step` over the L rows of [L, b, ...] from `state`, which is zeroed at each FIRST; returns its infos [L, b, ...].

    The loop is a `tf.while_loop`, through which gradients flow back in time.
    """
    length = exp.step_type.shape[0]
    spec: list[Nest] = []
    seed = rng.next_seed()

    def run_one(t: tf.Tensor | int, state: Nest) -> tuple[Nest, Nest]:
        now = tf.nest.map_structure(lambda x: x[t], exp)
        with rng.scope(tf.random.experimental.stateless_fold_in(seed, t)):
            result = step(now, reset_state_at_first(state, now.step_type))
        spec[:] = [nest_utils.extract_spec(result.info)]
        return result.state, nest_utils.distributions_to_params(result.info)

    # The first step is outside of the loop: it tells what the loop has to store.
    state, first = run_one(0, state)
    arrays = tf.nest.map_structure(lambda x: tf.TensorArray(x.dtype, length, element_shape=x.shape).write(0, x), first)

    def body(t: tf.Tensor, state: Nest, arrays: Nest) -> tuple[tf.Tensor, Nest, Nest]:
        state, info = run_one(t, state)
        return t + 1, state, tf.nest.map_structure(lambda a, x: a.write(t, x), arrays, info)

    _, _, arrays = tf.while_loop(lambda t, *_: t < length, body, (tf.constant(1), state, arrays), parallel_iterations=1)
    return nest_utils.params_to_distributions(tf.nest.map_structure(lambda a: a.stack(), arrays), spec[0])
