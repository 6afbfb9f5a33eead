"""An algorithm as named functions, which `alf.export` writes as a model that runs without `alf`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from alf.algorithms.contracts import check_prediction
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, RLAlgorithm
from alf.data_structures import ActionTimeStep, Nest, PolicyStep
from alf.export.graphs import trace
from alf.export.policy import ExportablePolicy, ExportError, Leaf, Tensors, leaves_of, named
from alf.utils import dist_utils, nest_utils, rng
from alf.utils.common import is_stateless, reset_state_at_first

# Log-probabilities closer than this are equal but for rounding.
_TIE = 1e-4


def exportable(algorithm: RLAlgorithm) -> ExportablePolicy:
    """The policy of an algorithm: what it would do, as functions of raw observations that read its live variables.

    Its functions: `action`, by `predict` without exploration; `distribution` and `value`, by `rollout`, where that
    records an `action_distribution` or a `value`. Rows at FIRST begin with a zero state, which has what these follow
    from: what else acting remembers, such as recurrent critics do for learning, is left out.

    Raises:
      ExportError: parts of the recurrent states of `rollout` and `predict` have one name and different specs, or a recurrent
        policy cannot be a model.
    """
    return _Functions(algorithm).policy()


class _Functions:
    """The functions of an algorithm over named tensors."""

    def __init__(self, algorithm: RLAlgorithm) -> None:
        algorithm.acting_variables()  # builds what builds itself late
        self._algorithm = algorithm
        self._time_step = algorithm.time_step_spec._replace(
            observation=algorithm.observation_spec, prev_action=algorithm.action_spec
        )
        self._state = self._states()

    def policy(self) -> ExportablePolicy:
        """All of it."""
        policy = self._policy()
        if policy.state:
            needed = _needed_state(policy)
            self._state = {name: leaf for name, leaf in self._state.items() if name in needed}
            policy = self._policy()
        return policy

    def _policy(self) -> ExportablePolicy:
        algorithm, states, fields = self._algorithm, self._state, self._time_step._asdict()
        functions: dict[str, Callable[[Tensors], Tensors]] = {"action": self._action}
        for name, field in (("distribution", "action_distribution"), ("value", "value")):
            if nest_utils.find_field(algorithm.rollout_info_spec, field):
                functions[name] = self._output(name, field)
        observations = leaves_of("observation", algorithm.observation_spec)
        inputs = [leaf for field, spec in fields.items() for leaf in _bounded(field, spec)]
        stateless = [] if not states else ["step_type", *states]
        return ExportablePolicy(
            inputs=(*inputs, *states.values()),
            always=frozenset([*(leaf.name for leaf in observations), *stateless]),
            state=tuple(states),
            functions=functions,
            nearly_best=self._nearly_best,
            description={
                "observation": [leaf.describe() for leaf in observations],
                "action": [leaf.describe() for leaf in leaves_of("action", algorithm.action_spec)],
                "state": [leaf.describe() for leaf in states.values()],
                "distribution": self._describe_distribution() if "distribution" in functions else [],
            },
        )

    def _states(self) -> dict[str, Leaf]:
        """The leaves of the recurrent state, of acting and of what else is asked for, by name."""
        algorithm = self._algorithm
        leaves: dict[str, Leaf] = {}
        # What only `rollout` remembers, such as noise, is no part of a model that has no function of it.
        recorded = any(nest_utils.find_field(algorithm.rollout_info_spec, f) for f in ("action_distribution", "value"))
        for spec in (algorithm.predict_state_spec, *([algorithm.train_state_spec] if recorded else [])):
            for leaf in leaves_of("state", spec):
                same = leaves.setdefault(leaf.name, leaf)
                if (same.shape, same.dtype) != (leaf.shape, leaf.dtype):
                    raise ExportError(
                        f"{algorithm.name}: {leaf.name} is {same.shape} {same.dtype.name} for predict and {leaf.shape} "
                        f"{leaf.dtype.name} for rollout; give the two parts different names."
                    )
        return leaves

    def _describe_distribution(self) -> list[dict[str, Any]]:
        spec = self._algorithm.action_distribution_spec
        described = []
        for name, leaf in named("action", spec):
            distribution = isinstance(leaf, nest_utils.DistributionSpec)
            described.append({"action": name, "type": leaf.type.__name__ if distribution else "Deterministic"})
        return described

    # ---- the functions ----

    def _step(self, inputs: Tensors, state_spec: Nest, act: Callable[[ActionTimeStep, Nest], PolicyStep]) -> PolicyStep:
        """`act` on the transformed time step and the state before it."""
        raw = ActionTimeStep(*(_packed(field, spec, inputs) for field, spec in self._time_step._asdict().items()))
        rows = tf.shape(raw.step_type)[0]
        idle = {leaf.name: leaf.zeros(rows) for leaf in leaves_of("state", state_spec) if leaf.name not in self._state}
        state = reset_state_at_first(_packed("state", state_spec, inputs | idle), raw.step_type)
        # What is not asked for, such as the sample of `rollout`, must take no number from anybody's stream.
        with rng.scope(tf.zeros([2], tf.int32)):
            return act(self._algorithm.transform_timestep(raw), state)

    def _predict(self, inputs: Tensors) -> PolicyStep:
        algorithm = self._algorithm
        step = self._step(
            inputs, algorithm.predict_state_spec, lambda t, s: algorithm.predict(t, s, epsilon_greedy=0.0)
        )
        check_prediction(algorithm.name, step, None, algorithm.action_spec, algorithm.predict_state_spec)
        return step

    def _rollout(self, inputs: Tensors) -> PolicyStep:
        algorithm = self._algorithm
        return self._step(inputs, algorithm.train_state_spec, lambda t, s: algorithm.rollout(t, s, OFF_POLICY_TRAINING))

    def _action(self, inputs: Tensors) -> Tensors:
        step = self._predict(inputs)
        return dict(named("action", step.action)) | self._after(step)

    def _after(self, step: PolicyStep) -> Tensors:
        return {name: x for name, x in named("state", step.state) if name in self._state}

    def _output(self, name: str, field: str) -> Callable[[Tensors], Tensors]:
        # Parameters have names of their own, such as `logits`; an action without distribution is called what it is.
        prefix, plain = ("", "action") if name == "distribution" else (name, name)

        def function(inputs: Tensors) -> Tensors:
            step = self._rollout(inputs)
            found = nest_utils.distributions_to_params(nest_utils.find_field(step.info, field)[0])
            return {key or plain: x for key, x in named(prefix, found)} | self._after(step)

        return function

    def _nearly_best(self, inputs: Tensors, actions: Tensors) -> np.ndarray:
        found = nest_utils.find_field(self._rollout(inputs).info, "action_distribution")
        if not found or not all(nest_utils.is_distribution(leaf) for leaf in tf.nest.flatten(found[0])):
            return np.zeros(len(next(iter(actions.values()))), bool)
        chosen = _packed("action", self._algorithm.action_spec, actions)
        best = dist_utils.mode_action_distribution(found[0])
        log_prob = [dist_utils.compute_log_probability(found[0], a, 1).numpy() for a in (chosen, best)]
        return log_prob[0] >= log_prob[1] - _TIE


def _needed_state(policy: ExportablePolicy) -> set[str]:
    """The names of the parts of the state that other outputs follow from, at the same step or a later one."""
    behind: dict[str, set[str]] = {}
    for function in policy.functions:
        traced = trace(policy, [function])
        for name, tensor in traced.outputs.items():
            graph = tf.compat.v1.graph_util.extract_sub_graph(traced.graph_def, [tensor.partition(":")[0]])
            present = {node.name for node in graph.node}
            used = {leaf for leaf, placeholder in traced.inputs.items() if placeholder in present}
            behind[name] = behind.get(name, set()) | used
    states = set(policy.state)
    needed: set[str] = set()
    found = behind.keys() - states
    while found:
        found = (states & set().union(*(behind[name] for name in found))) - needed
        needed |= found
    return needed


def _bounded(field: str, spec: Nest) -> list[Leaf]:
    if field == "step_type":
        return [Leaf(field, (), tf.int32, np.asarray(0), np.asarray(2))]
    return leaves_of(field, spec)


def _packed(prefix: str, spec: Nest, tensors: Tensors) -> Nest:
    """The nest of `spec` out of named tensors."""
    if is_stateless(spec):
        return spec
    return tf.nest.pack_sequence_as(spec, [tensors[name] for name, _ in named(prefix, spec)])
