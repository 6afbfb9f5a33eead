"""The base of everything that has a loss: ownership of optimisers, gradients, clipping."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms import contracts
from alf.data_structures import LossInfo, Nest, StepType, TrainingInfo
from alf.networks.calling import learning
from alf.utils.common import as_list, check_made, check_range

_SUM_OVER_REPLICAS = tf.keras.optimizers.legacy.SGD().gradient_aggregator


class Algorithm(tf.Module):
    """Computes outputs, losses and updates of a set of modules.

    Every trainable variable belongs to exactly one optimiser: that of the module set which names it, else the first
    optimiser of this algorithm, else the parent's.
    """

    def __init__(
        self,
        train_state_spec: Nest = None,
        predict_state_spec: Nest = None,
        optimizer: Any = None,
        trainable_module_sets: Sequence[Sequence[tf.Module]] | None = None,
        gradient_clipping: float | None = None,
        clip_by_global_norm: bool = False,
        debug_summaries: bool = False,
        name: str | None = None,
    ) -> None:
        """Creates the algorithm.

        Args:
          train_state_spec: nest of specs of the recurrent state, `()` for a feed-forward algorithm.
          predict_state_spec: the same for `predict`; by default `train_state_spec`.
          optimizer: None (the parent optimises), one optimiser, or a list matched with `trainable_module_sets`.
          trainable_module_sets: for each optimiser, the modules that it trains.
          gradient_clipping: norm to clip to, also for optimisers of algorithms inside that have no own; None does not clip.
          clip_by_global_norm: clip by the global norm of an optimiser's gradients instead of each by its own.
          debug_summaries: report more about the inside of the losses.
          name: name of the algorithm; by default that of its class.

        Raises:
          ValueError: optimisers and module sets do not match in number, one is no optimiser or has a rate below 0, or the norm is
            not above 0 or missing.
        """
        name = name or type(self).__name__
        super().__init__(name=name)
        self._train_state_spec = () if train_state_spec is None else train_state_spec
        self._predict_state_spec = self._train_state_spec if predict_state_spec is None else predict_state_spec
        self._optimizers = as_list(optimizer)
        for one in self._optimizers:
            _check_optimizer(name, one)
        self._module_sets = [list(s) for s in trainable_module_sets or []]
        # Without sets, a single optimiser has all that is left.
        if len(self._optimizers) != len(self._module_sets) and (self._module_sets or len(self._optimizers) > 1):
            raise ValueError(
                f"{name}: {len(self._optimizers)} optimisers for {len(self._module_sets)} trainable_module_sets; give one each."
            )
        if gradient_clipping is None and clip_by_global_norm:
            raise ValueError(
                f"{name}: clip_by_global_norm clips nothing without gradient_clipping: set it, such as to 0.5."
            )
        if gradient_clipping is not None and not gradient_clipping > 0.0:
            raise ValueError(
                f"{name}: gradient_clipping must be above 0, got {gradient_clipping}: leave it out to clip nothing."
            )
        self._gradient_clipping = gradient_clipping
        self._clip_by_global_norm = clip_by_global_norm
        self._debug_summaries = debug_summaries

    @property
    def train_state_spec(self) -> Nest:
        """Specs of the recurrent state used by `rollout` and `train_step`."""
        return self._train_state_spec

    @property
    def predict_state_spec(self) -> Nest:
        """Specs of the recurrent state used by `predict`."""
        return self._predict_state_spec

    def convert_train_state_to_predict_state(self, state: Nest) -> Nest:
        """The part of a training state that `predict` needs."""
        tf.nest.assert_same_structure(self._train_state_spec, self._predict_state_spec)
        return state

    def _trainable_attributes_to_ignore(self) -> list[str]:
        """Names of attributes that no optimiser trains, such as target networks."""
        return []

    def _children(self) -> Iterator[tf.Module | tf.Variable]:
        """The modules and variables that its attributes hold, each once."""
        seen: set[int] = set()
        ignored = {*self._trainable_attributes_to_ignore(), "_module_sets", "_optimizers"}
        for key, value in sorted(vars(self).items()):
            tensorflows_own = key.startswith("_self_")
            if (
                key not in ignored
                and not tensorflows_own
                and isinstance(value, (tf.Module, tf.Variable, list, tuple, dict))
            ):
                for item in tf.nest.flatten(value):
                    if isinstance(item, (tf.Module, tf.Variable)) and id(item) not in seen:
                        seen.add(id(item))
                        yield item

    def _ownership(self) -> list[tuple[Algorithm, Any, list[tf.Module]]]:
        """Who trains what: (the algorithm that gives the optimiser, the optimiser or None, modules)."""
        claimed = {id(m) for modules in self._module_sets for m in modules}
        rest: list[tf.Module] = []
        below: list[tuple[Algorithm, Any, list[tf.Module]]] = []
        for child in self._children():
            if id(child) in claimed:
                continue
            if not isinstance(child, Algorithm):
                rest.append(child)
                continue
            for owner, optimizer, modules in child._ownership():
                if optimizer is None:
                    rest.extend(modules)
                else:
                    below.append((owner, optimizer, modules))
        sets = [(self, o, list(m)) for o, m in zip(self._optimizers, self._module_sets, strict=False)]
        if self._optimizers and not sets:
            sets = [(self, self._optimizers[0], [])]
        if sets:
            sets[0][2].extend(rest)
        elif rest:
            sets = [(self, None, rest)]
        return sets + below

    def get_optimizer_and_module_sets(self) -> list[tuple[str, Any, list[tf.Module]]]:
        """Who trains what: (algorithm name, optimiser or None, modules), this algorithm's sets first."""
        return [(owner.name, optimizer, modules) for owner, optimizer, modules in self._ownership()]

    def _owned_variables(self) -> list[tuple[Algorithm, Any, list[tf.Variable]]]:
        result: list[tuple[Algorithm, Any, list[tf.Variable]]] = []
        owners: dict[Any, str] = {}
        for owner, optimizer, modules in self._ownership():
            if optimizer is not None and any(optimizer is other for _, other, _ in result):
                raise ValueError(
                    f"{owner.name}: one optimizer object is given for several sets of networks, and would count, and schedule, "
                    "each of its steps as several: make one for each, in gin @Adam() at each place."
                )
            variables: list[tf.Variable] = []
            for module in modules:
                for v in [module] if isinstance(module, tf.Variable) else module.trainable_variables:
                    if not v.trainable or any(v is w for w in variables):
                        continue
                    if v.ref() in owners:
                        raise ValueError(
                            f"Variable {v.name} is trained by {owners[v.ref()]} and by {owner.name}; it must be one."
                        )
                    owners[v.ref()] = owner.name
                    variables.append(v)
            if optimizer is None and variables:
                raise ValueError(
                    f"{self.name} has no optimizer for {[v.name for v in variables[:3]]}...: pass `optimizer`, e.g. Adam()."
                )
            if variables:
                result.append((owner, optimizer, variables))
        return result

    def optimized_variables(self) -> list[tuple[Any, list[tf.Variable]]]:
        """For each optimiser its trainable variables, each variable once.

        Raises:
          ValueError: a variable has no optimiser, or two.
        """
        return [(optimizer, variables) for _, optimizer, variables in self._owned_variables()]

    def build_optimizers(self) -> None:
        """Creates all optimiser variables now, in the calling thread, so that a checkpoint sees them.

        Raises:
          ValueError: as `optimized_variables`, or gradients of an algorithm inside were to be clipped that are not its own.
        """
        self._check_clipping()
        for optimizer, variables in self.optimized_variables():
            if hasattr(optimizer, "_create_all_weights"):
                optimizer._create_all_weights(variables)
            else:
                optimizer.build(variables)

    def _check_clipping(self) -> None:
        owners = [self, *(owner for owner, _, _ in self._owned_variables())]
        for inside in self._inside():
            if inside._gradient_clipping is not None and not any(inside is owner for owner in owners):
                raise ValueError(
                    f"{inside.name}.gradient_clipping={inside._gradient_clipping} clips nothing, since the optimizer of "
                    f"{self.name} applies its gradients: set it there, or give it an optimizer of its own."
                )

    def _inside(self) -> Iterator[Algorithm]:
        """The algorithms below this one."""
        for child in self._children():
            if isinstance(child, Algorithm):
                yield child
                yield from child._inside()

    def get_optimizer_info(self) -> str:
        """JSON text: for each optimiser its configuration and the names of its modules."""
        info = []
        for name, optimizer, modules in self.get_optimizer_and_module_sets():
            config = None if optimizer is None else optimizer.get_config()
            info.append({"algorithm": name, "optimizer": config, "modules": sorted(m.name for m in modules)})
        return json.dumps(info, indent=1, default=_plain)

    def predict(self, inputs: Nest, state: Nest = None) -> Any:
        """Output for acting only; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} defines no predict.")

    def train_step(self, inputs: Nest, state: Nest = None) -> Any:
        """Output and info for the loss, one time slice [B, ...]; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} defines no train_step.")

    def calc_loss(self, training_info: TrainingInfo) -> LossInfo:
        """The loss of [T, B] training infos; subclasses define it.

        What is learned is not assigned to in it, nor in `train_step`, but in `after_train`: it is read once an update.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no calc_loss.")

    def after_train(self, training_info: TrainingInfo) -> None:
        """Called in the graph after every update, such as to move target networks."""

    def followers(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """(variable, copy of it) of what follows others in training, such as target networks; those of the algorithms inside."""
        return [pair for child in self._children() if isinstance(child, Algorithm) for pair in child.followers()]

    def after_restore(self) -> None:
        """Called once, eagerly, when variables were filled from a checkpoint, or with the weights of another run.

        For what must follow from them, such as a copy that no checkpoint holds; by default the algorithms inside are told.
        """
        for child in self._children():
            if isinstance(child, Algorithm):
                child.after_restore()

    def train_complete(
        self,
        tape: tf.GradientTape,
        training_info: TrainingInfo,
        valid_masks: tf.Tensor | None = None,
        weight: float | tf.Tensor = 1.0,
        sequence_weights: tf.Tensor | None = None,
    ) -> tuple[LossInfo, list[tuple[tf.Tensor, tf.Variable]]]:
        """Computes the loss under `tape`, and applies its gradients.

        Args:
          tape: the tape that has seen the forward pass; persistent when there are several optimisers.
          training_info: [T, B].
          valid_masks: float32 [T, B], 1 where a step counts; the mean is over these steps only.
          weight: factor of the loss.
          sequence_weights: float32 [B], factors of the losses of the sequences, such as importance weights; the mean
            stays one over steps.

        Returns:
          the LossInfo, whose `loss` is the scalar that was minimised, and the gradients before clipping.

        Raises:
          ValueError: `calc_loss` gave something else than a LossInfo, or a loss of a wrong shape or without gradients.
        """
        trained = tf.cast(training_info.step_type != StepType.LAST, tf.float32) if valid_masks is None else valid_masks
        training_info = training_info._replace(valid=trained)
        with tape, learning():
            loss_info = self.calc_loss(training_info)
            loss = contracts.minimised(
                self.name, loss_info, training_info.step_type.shape, valid_masks, sequence_weights
            )
            weighted = loss * weight
        grads_and_vars = []
        for owner, optimizer, variables in self._owned_variables():
            grads = tape.gradient(weighted, variables)
            grads_and_vars += list(zip(grads, variables, strict=True))
            clipped = (self if owner._gradient_clipping is None else owner)._clip(grads)
            owner.apply_gradients(optimizer, list(zip(clipped, variables, strict=True)))
        self.after_train(training_info)
        return loss_info._replace(loss=loss), grads_and_vars

    def apply_gradients(self, optimizer: Any, grads_and_vars: list[tuple[tf.Tensor | None, tf.Variable]]) -> None:
        """Has an optimiser of this algorithm apply clipped gradients; called in the graph once for each optimiser."""
        contracts.check_gradients(self.name, grads_and_vars)
        # To sum gradients over the one replica there is, Keras makes an operation with a gradient of its own, which
        # TensorFlow keeps until the process ends, and with it the graph of the whole update.
        summed = getattr(optimizer, "gradient_aggregator", None) is _SUM_OVER_REPLICAS
        optimizer.apply_gradients(grads_and_vars, **({"experimental_aggregate_gradients": False} if summed else {}))

    def _clip(self, grads: list[tf.Tensor | None]) -> list[tf.Tensor | None]:
        if self._gradient_clipping is None or all(g is None for g in grads):
            return grads
        if self._clip_by_global_norm:
            return tf.clip_by_global_norm(grads, self._gradient_clipping)[0]
        return [None if g is None else tf.clip_by_norm(g, self._gradient_clipping) for g in grads]


def _check_optimizer(name: str, optimizer: Any) -> None:
    check_made(name, optimizer=optimizer)
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"{name}: optimizer={optimizer!r} is no optimiser: make one, in gin @Adam().")
    # A user's own optimisers and schedules need not tell.
    with contextlib.suppress(AttributeError, NotImplementedError):
        rate = optimizer.learning_rate
        if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
            rate.get_config()
            begins = float(rate(0))
            if not (math.isfinite(begins) and begins >= 0.0):
                raise ValueError(
                    f"{name}: {type(rate).__name__} begins with a learning rate of {begins}: correct its settings."
                )
        else:
            check_range(0.0, learning_rate=optimizer.get_config().get("learning_rate"))


def _plain(value: Any) -> float | str:
    """What JSON takes for a value of an optimiser that it does not know: a number as NumPy prints it, else its text."""
    return float(str(value)) if isinstance(value, np.number) else str(value)
