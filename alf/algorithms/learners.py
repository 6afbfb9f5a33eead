"""Several learners: devices of this machine that share the sequences of every minibatch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from alf.data_structures import Experience, Nest
from alf.networks.calling import learning
from alf.utils import nest_utils, rng


class Learners:
    """Devices that take the networks forwards and backwards over a minibatch, each over its share of the sequences.

    A `tf.distribute.MirroredStrategy` runs `train_step` on each device. What comes out is put together again, and the loss
    is that of the whole minibatch, so that an update is that of a single learner whatever the loss does over a batch
    (normalised advantages, masks, weights, priorities) and however large the shares are. Its gradients in the outputs go
    back to the devices; those in the variables are summed, and the optimiser applies them once.

    There is one of each variable, which the devices read, and none is mirrored: acting, checkpoints and exports are those
    of a single learner. Reading costs one copy of the weights to each device, which mirroring would spend on gradients.
    """

    def __init__(self, count: int) -> None:
        """Takes the first devices of this machine: GPUs, or where there are none, TensorFlow's logical CPUs.

        Args:
          count: N, at least 2.

        Raises:
          ValueError: there are not so many.
        """
        # Gradients are needed where the variables are, and nowhere else.
        self._strategy = tf.distribute.MirroredStrategy(_devices(count), tf.distribute.ReductionToOneDevice())

    def run(
        self, train_steps: Callable[[Experience, Nest], Nest], exp: Experience, state: Nest
    ) -> tuple[SharedTape, Nest]:
        """Runs `train_steps` in training mode, each device over its share.

        Args:
          train_steps: from experience [L, b, ...] and a state to infos [L, b, ...].
          exp: [L, b, ...].
          state: [b, ...] before the first row, or None.

        Returns:
          the tape for the loss and its gradients, and the infos of all, [L, b, ...].

        Raises:
          ValueError: there are fewer sequences than devices.
        """
        shares = self._shares(exp, state)
        seeds = [rng.next_seed() for _ in shares]
        tapes = [tf.GradientTape(persistent=True) for _ in shares]
        infos: list[Nest] = [None for _ in shares]

        def forward() -> None:
            number = _number()
            with rng.scope(seeds[number]), tapes[number], learning():
                info = train_steps(*shares[number])
                infos[number] = nest_utils.distributions_to_params(info), nest_utils.extract_spec(info)

        self._strategy.run(forward)
        tape = SharedTape(self._strategy, tapes, [tf.nest.flatten(params) for params, _ in infos])
        params, spec = infos[0]
        return tape, nest_utils.params_to_distributions(tf.nest.pack_sequence_as(params, tape.outputs), spec)

    def _shares(self, exp: Experience, state: Nest) -> list[tuple[Experience, Nest]]:
        count = self._strategy.num_replicas_in_sync
        size = exp.step_type.shape[1]
        if size is None:
            # The last, smaller minibatch of an epoch, of which some devices may get nothing.
            size = tf.shape(exp.step_type)[1]
        elif size < count:
            raise ValueError(
                f"A minibatch of {size} sequences cannot be shared by {count} learners: raise mini_batch_size, or lower "
                "TrainerConfig.num_learners."
            )
        borders = [size * i // count for i in range(count + 1)]

        def share(begin: Any, end: Any) -> tuple[Experience, Nest]:
            return (
                tf.nest.map_structure(lambda x: x[:, begin:end], exp),
                None if state is None else tf.nest.map_structure(lambda x: x[begin:end], state),
            )

        return [share(*pair) for pair in itertools.pairwise(borders)]


def make_learners(count: int, name: str, in_loss: bool) -> Learners | None:
    """`Learners`, or None where there is one, or nothing to share, which a warning tells.

    Args:
      count: how many.
      name: of the algorithm that they train.
      in_loss: all its networks run in the loss.

    Raises:
      ValueError: there are not so many.
    """
    learners = Learners(count) if count > 1 else None
    if learners is None or not in_loss:
        return learners
    logging.warning(
        "%s runs its networks in the loss, which one learner computes: %d learners have nothing to share, and one trains. "
        "They share an Agent's encoding_network, recurrent networks, and the actor of SAC, PPO and actor-critics.",
        name,
        count,
    )
    return None


class SharedTape:
    """For several learners what a `tf.GradientTape` is for one; persistent.

    Attributes:
      outputs: of the networks, those of all shares together, [L, b, ...]; the loss is to be computed from them.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, tapes: Sequence[tf.GradientTape], leaves: Sequence[Sequence[tf.Tensor]]
    ) -> None:
        """Puts shares together.

        Args:
          strategy: of the devices.
          tapes: that saw how each computed its outputs; persistent.
          leaves: outputs of each, [L, share, ...].
        """
        self._strategy = strategy
        self._tapes = tapes
        self._leaves = leaves
        self._tape = tf.GradientTape(persistent=True)
        with self._tape:
            for leaf in tf.nest.flatten(leaves):
                if leaf.dtype.is_floating:
                    self._tape.watch(leaf)
            self.outputs = [tf.concat(parts, 1) for parts in zip(*leaves, strict=True)]

    def __enter__(self) -> SharedTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._tape.__exit__(*exc)

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable]) -> list[tf.Tensor | None]:
        """Gradients of a scalar in variables, summed over the devices; None for a variable without any."""
        floats = [i for i, leaf in enumerate(self.outputs) if leaf.dtype.is_floating]
        leaves, direct = self._tape.gradient(
            target, [[[part[i] for i in floats] for part in self._leaves], list(sources)]
        )
        used = [k for k, gradient in enumerate(leaves[0]) if gradient is not None]
        reached: list[int] = []

        def backward() -> list[tf.Tensor]:
            n = _number()
            outputs = [self._leaves[n][floats[k]] for k in used]
            found = self._tapes[n].gradient(outputs, sources, output_gradients=[leaves[n][k] for k in used])
            reached[:] = [i for i, gradient in enumerate(found) if gradient is not None]
            return [tf.convert_to_tensor(found[i]) for i in reached]

        sums = self._summed(self._strategy.run(backward)) if used else []
        through = dict(zip(reached, sums, strict=True))
        return [_sum(gradient, through.get(i)) for i, gradient in enumerate(direct)]

    def _summed(self, values: Sequence[Any]) -> list[tf.Tensor]:
        """Sums of values over the devices, on the first, where the variables are."""
        strategy = self._strategy.extended
        pairs = [(value, strategy.worker_devices[0]) for value in values]
        sums = strategy.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs) if pairs else []
        return [self._strategy.experimental_local_results(x)[0] for x in sums]


def _sum(*gradients: tf.Tensor | None) -> tf.Tensor | None:
    found = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    return tf.add_n(found) if found else None


def _number() -> int:
    """Which of the devices the code is being traced, or run, for."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def _devices(count: int) -> list[str]:
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if count > len(names):
        raise ValueError(
            f"TrainerConfig.num_learners={count} needs as many devices, and TensorFlow finds {len(names)} here (of kind "
            f"{kind}): set it to at most {len(names)}."
        )
    return names[:count]
