"""Acting through an actor thread's queue: the request, the batched forward pass, the replies."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.policy_store import Snapshot, reading
from alf.drivers.queues import TFQueues
from alf.drivers.unroll import Call, Policy


def queue_policy(queues: TFQueues) -> Policy:
    """Acts by a request to an actor queue and its reply; the call's handles name the two queues."""
    requests, replies = queues.actor_queues[0], queues.action_return_queues[0]

    def policy(call: Call, time_step: ActionTimeStep, state: Nest, t: tf.Tensor) -> tuple[PolicyStep, tf.Tensor]:
        del t
        sent = requests.enqueue((time_step, state, call.thread), call.handles[0])
        with tf.control_dependencies([sent]):
            return replies.dequeue(call.handles[1])

    return policy


class Server:
    """The traced loop body of the actor threads: A requests, one forward pass, A replies."""

    def __init__(
        self, algorithm: RLAlgorithm, variables: Sequence[tf.Variable], queues: TFQueues, in_order: bool
    ) -> None:
        """Traces the function, once for all actors; in the main thread.

        Args:
          algorithm: acts.
          variables: what a policy version consists of.
          queues: the driver's queues.
          in_order: sort the requests by thread, so that the same requests always make the same batch.
        """
        self._algorithm = algorithm
        self._variables = list(variables)
        self._requests = queues.actor_queues[0]
        self._replies = queues.action_return_queues[0]
        self._in_order = in_order
        self._return_handles = tf.stack([q.handle for q in queues.action_return_queues])
        weights = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self._variables)
        self._function = tf.function(self._serve, autograph=False).get_concrete_function(
            weights,
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], tf.resource),
            tf.TensorSpec(self._return_handles.shape, tf.resource),
            tf.TensorSpec([2], tf.int32),
        )

    def serve(self, snapshot: Snapshot, requests: tf.Tensor, seed: tf.Tensor) -> None:
        """Waits for A requests in the queue whose handle is given, and answers them under `snapshot`."""
        version = tf.constant(snapshot.version, tf.int64)
        self._function(snapshot.weights, version, requests, self._return_handles, seed)

    def _serve(
        self,
        weights: tuple[tf.Tensor, ...],
        version: tf.Tensor,
        requests: tf.Tensor,
        return_handles: tf.Tensor,
        seed: tf.Tensor,
    ) -> None:
        count = self._requests.capacity
        time_step, state, threads = self._requests.dequeue_many(count, requests)
        if self._in_order:
            order = tf.argsort(threads)
            time_step, state, threads = tf.nest.map_structure(
                lambda x: tf.gather(x, order), (time_step, state, threads)
            )
        flat_time_step, flat_state = tf.nest.map_structure(
            lambda x: tf.reshape(x, [-1, *x.shape[2:]]), (time_step, state)
        )
        with reading(self._variables, weights):
            policy_step = self._algorithm.act(flat_time_step, flat_state, seed)
        batched = tf.nest.map_structure(lambda x: tf.reshape(x, [count, -1, *x.shape[1:]]), policy_step)
        for i in range(count):
            reply = tf.nest.map_structure(lambda x, i=i: x[i], batched)
            self._replies.enqueue((reply, version), tf.gather(return_handles, threads[i]))
