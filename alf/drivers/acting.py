"""Acting through an actor thread's queue: the request, the batched forward pass, the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.drivers.policy_store import Snapshot, check_reads_no_variable
from alf.drivers.queues import TFQueues
from alf.drivers.unroll import Call, Policy
from alf.utils.common import as_array, flat
from alf.utils.devices import for_host, on_host
from alf.utils.reading import reading


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
    """The traced parts of the actor threads' loop: A requests; one forward pass under weights picked then, A replies."""

    def __init__(
        self, algorithm: RLAlgorithm, variables: Sequence[tf.Variable], queues: TFQueues, in_order: bool
    ) -> None:
        """Traces the functions, once for all actors; in the main thread.

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
        with on_host():
            self._return_handles = tf.stack([q.handle for q in queues.action_return_queues])
        weights = tuple(tf.TensorSpec(v.shape, v.dtype) for v in self._variables)
        handle = tf.TensorSpec([], tf.resource)
        self._take = tf.function(for_host(self._take_requests), autograph=False).get_concrete_function(handle)
        requests = tf.nest.map_structure(tf.TensorSpec.from_tensor, self._take.structured_outputs)
        self._answer = tf.function(self._answer_requests, autograph=False).get_concrete_function(
            weights,
            tf.TensorSpec([], tf.int64),
            requests,
            tf.TensorSpec(self._return_handles.shape, tf.resource),
            tf.TensorSpec([2], tf.int32),
        )
        check_reads_no_variable(self._answer)

    def take(self, handle: tf.Tensor) -> Any:
        """Waits for A requests in the queue whose handle is given."""
        return self._take(handle)

    def answer(self, requests: Any, snapshot: Snapshot, seed: tf.Tensor) -> None:
        """Acts on requests under `snapshot`, in one forward pass, and sends each its reply."""
        version = tf.constant(as_array(snapshot.version, np.int64))
        self._answer(snapshot.weights, version, requests, self._return_handles, seed)

    def _take_requests(self, handle: tf.Tensor) -> Any:
        requests = self._requests.dequeue_many(self._requests.capacity, handle)
        if not self._in_order:
            return requests
        order = tf.argsort(requests[2])
        return tf.nest.map_structure(lambda x: tf.gather(x, order), requests)

    def _answer_requests(
        self,
        weights: tuple[tf.Tensor, ...],
        version: tf.Tensor,
        requests: Any,
        return_handles: tf.Tensor,
        seed: tf.Tensor,
    ) -> None:
        count = self._requests.capacity
        time_step, state, threads = requests
        flat_time_step, flat_state = flat((time_step, state))
        with reading(self._variables, weights):
            policy_step = self._algorithm.act(flat_time_step, flat_state, seed)
        with on_host():
            batched = tf.nest.map_structure(lambda x: tf.reshape(x, [count, -1, *x.shape[1:]]), policy_step)
            for i in range(count):
                reply = tf.nest.map_structure(lambda x, i=i: x[i], batched)
                self._replies.enqueue((reply, version), tf.gather(return_handles, threads[i]))
