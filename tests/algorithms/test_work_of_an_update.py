"""What one update of an off-policy learner multiplies: nothing is computed twice, or in vain."""

from __future__ import annotations

import collections
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.ensemble_algorithm import EnsembleAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.rl_algorithm import training_info_from
from alf.data_structures import Experience, StepType, TrainingInfo
from alf.utils import rng
from alf.utils.common import image_scale_transformer, zeros_from_spec
from tests.algorithms.off_policy import DISCRETE, make

OBS = tensor_spec.TensorSpec([3], tf.float32)
BOX = tensor_spec.BoundedTensorSpec([2], tf.float32, [-2.0, -2.0], [2.0, 2.0])
CHOICE = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
BATCH, HIDDEN = 24, 64

# Products of the minibatch with the square layer of one network: forward, and backward to weights (w) and to inputs (i).
WORK = {
    # The actor at both rows, backward w and i at the first; two critics forward, w and i; two targets; two critics
    # forward and i for the actor's slope.
    "sac": 2 + 2 + 2 * 3 + 2 + 2 * 2,
    # The actor at the first row, forward, w and i; critic, target actor and target critic; the slope.
    "ddpg": 3 + 3 + 2 + 2,
    # As DDPG, with a second critic and its target; the slope is that of the first.
    "td3": 3 + 2 * 3 + 3 + 2,
    # The network at both rows, w and i at the first; two targets; two critics forward, w and i.
    "discrete_sac": 2 + 2 + 2 * 3 + 2,
    # The network at both rows, of which the second chooses the action that the target judges; the target.
    "dqn": 2 + 2 + 1,
}


def experience(action_spec: Any, rows: int = 2) -> Experience:
    """[rows, BATCH] inside of an episode."""
    rs = np.random.RandomState(0)
    shape = (rows, BATCH, *action_spec.shape)
    action = rs.randint(0, 3, shape) if action_spec.dtype.is_integer else rs.uniform(-1.9, 1.9, shape)
    return Experience(
        step_type=tf.fill([rows, BATCH], StepType.MID),
        reward=tf.constant(rs.normal(size=(rows, BATCH)), tf.float32),
        discount=tf.ones([rows, BATCH]),
        observation=tf.constant(rs.normal(size=(rows, BATCH, 3)), tf.float32),
        prev_action=(),
        env_id=(),
        action=tf.constant(action, action_spec.dtype),
    )


def needed(graph: tf.Graph) -> list[tf.Operation]:
    """The operations that a traced graph has to run."""
    waiting = [*(t.op for t in graph.outputs), *graph.control_outputs]
    found: dict[str, tf.Operation] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [t.op for t in operation.inputs] + list(operation.control_inputs)
    return list(found.values())


def products(graph: tf.Graph, branch: str = "then_branch") -> float:
    """Products with square layers, in units of [BATCH, HIDDEN] x [HIDDEN, HIDDEN], where every condition takes `branch`."""
    total = 0.0
    for operation in needed(graph):
        called = {"If": branch, "StatelessIf": branch, "PartitionedCall": "f"}.get(operation.type)
        if called is not None:
            total += BATCH * products(graph._get_function(operation.get_attr(called).name).graph, branch)
        if operation.type == "MatMul":
            a, b = (t.shape.as_list() for t in operation.inputs)
            c = operation.outputs[0].shape.as_list()
            if sum(shape == [HIDDEN, HIDDEN] for shape in (a, b, c)) == 1:
                rows = {tuple(shape) for shape in (a, b, c)} - {(HIDDEN, HIDDEN)}
                total += next(iter(rows))[0]
    return total / BATCH


def an_update(algorithm: Any, exp: Experience) -> Any:
    """One gradient step on experience [rows, BATCH], traced."""
    algorithm.build_optimizers()

    @tf.function(autograph=False)
    def update(exp: Experience) -> Any:
        with rng.scope(tf.constant([1, 2])):
            return algorithm._update(exp, True, 1.0)[0]

    recorded = zeros_from_spec(algorithm.experience_spec.rollout_info, BATCH)
    recorded = tf.nest.map_structure(lambda x: tf.stack([x] * exp.step_type.shape[0]), recorded)
    return update.get_concrete_function(exp._replace(rollout_info=recorded))


def products_of_an_update(algorithm: Any, exp: Experience, branch: str = "then_branch") -> float:
    """As `products`, of one gradient step on experience [rows, BATCH]."""
    return products(an_update(algorithm, exp).graph, branch)


@pytest.mark.parametrize("name", [*WORK, "c51"])
def test_all_products_are_those_of_layers(name: str) -> None:
    """Mixed precision makes products in bfloat16, and losses are of float32."""
    spec = CHOICE if name in DISCRETE else BOX
    algorithm = make(name, OBS, spec, layers=(HIDDEN, HIDDEN))
    kernels = {tuple(v.shape) for v in algorithm.variables if v.shape.rank == 2}
    for operation in needed(an_update(algorithm, experience(spec)).graph):
        if "MatMul" in operation.type or operation.type == "Einsum":
            shapes = {tuple(t.shape) for t in [*operation.inputs, *operation.outputs]}
            assert shapes & kernels, (operation.type, shapes)


@pytest.mark.parametrize("name", WORK)
def test_an_update_multiplies_no_more_than_its_losses_need(name: str) -> None:
    spec = CHOICE if name in ("dqn", "discrete_sac") else BOX
    algorithm = make(name, OBS, spec, layers=(HIDDEN, HIDDEN))
    assert products_of_an_update(algorithm, experience(spec)) == WORK[name]


def test_an_actor_that_is_left_alone_is_no_work_but_for_what_is_told_of_it() -> None:
    """Of the five products of an actor and its slope, the two that its loss is known by."""
    algorithm = make("td3", OBS, BOX, layers=(HIDDEN, HIDDEN))
    assert products_of_an_update(algorithm, experience(BOX), "else_branch") == WORK["td3"] - 3


@pytest.mark.parametrize(
    ("n", "rows", "double", "work"),
    [
        # Forward, w and i at the trained row; the row that its target looks at; the target there.
        (3, 4, True, 3 + 1 + 1),
        (3, 4, False, 3 + 1),
        # Of four trained rows each is looked at by the one before it, the last row only looked at.
        (1, 5, True, 4 * 3 + 1 + 4),
        (1, 5, False, 4 * 3 + 4),
    ],
)
def test_q_networks_run_where_a_row_is_trained_or_looked_at(n: int, rows: int, double: bool, work: int) -> None:
    loss = OneStepTDLoss(n_step=n)
    algorithm = make("dqn", OBS, CHOICE, layers=(HIDDEN, HIDDEN), double=double, critic_loss=loss)
    assert products_of_an_update(algorithm, experience(CHOICE, rows)) == work


@pytest.mark.parametrize(("n", "members"), [(1, 1), (3, 1), (3, 2)])
def test_an_agent_that_learns_by_dqn_puts_no_observations_together(n: int, members: int) -> None:
    """Where nothing but the loss runs a network, the rows that are only looked at need not be taken apart from the others."""
    wide = tensor_spec.BoundedTensorSpec([40, 40], tf.uint8, 0, 255)

    def dqn(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        return make("dqn", observation_spec, action_spec, layers=(8,), critic_loss=OneStepTDLoss(n_step=n))

    rl_algorithm = dqn if members == 1 else functools.partial(EnsembleAlgorithm, members=[dqn] * members)
    optimizer = tf.keras.optimizers.legacy.Adam(1e-3)
    agent = Agent(
        wide,
        CHOICE,
        rl_algorithm_cls=rl_algorithm,
        optimizer=optimizer,
        observation_transformer=image_scale_transformer,
    )
    exp = experience(CHOICE, n + 1)
    update = an_update(agent, exp._replace(observation=tf.zeros([n + 1, BATCH, 40, 40], tf.uint8)))
    joined = [o for o in needed(update.graph) if o.type == "ConcatV2" and o.outputs[0].shape[-2:] == [40, 40]]
    assert not joined


@pytest.mark.parametrize("name", WORK)
def test_an_update_reads_every_weight_once(name: str) -> None:
    """Beside what the optimiser and the target networks, which follow, read of it."""
    spec = CHOICE if name in ("dqn", "discrete_sac") else BOX
    algorithm = make(name, OBS, spec, layers=(8, 8))
    algorithm.build_optimizers()
    weights = [id(v.handle) for _, owned in algorithm.optimized_variables() for v in owned]
    exp = experience(spec)

    @tf.function(autograph=False)
    def losses() -> Any:
        with rng.scope(tf.constant([1, 2])):
            tape, info = algorithm._forward(exp, None, True)
            with tape:
                loss = algorithm.calc_loss(training_info_from(exp, info, exp.rollout_info))
            return loss.loss

    graph = losses.get_concrete_function().graph
    handles = {inner.name: id(outer) for outer, inner in graph.captures}
    reads = collections.Counter(
        handles[operation.inputs[0].name] for operation in graph.get_operations() if operation.type == "ReadVariableOp"
    )
    assert {handle: reads[handle] for handle in weights} == dict.fromkeys(weights, 1)


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("name", ["sac", "ddpg", "td3", "dqn", "discrete_sac", "c51"])
def test_the_row_that_is_only_looked_at_needs_no_gradient(name: str, rows: int) -> None:
    """Losses and gradients are those of all rows in one pass, through all of which gradients flow."""
    spec = BOX if name in ("sac", "ddpg", "td3") else CHOICE
    algorithm, exp = make(name, OBS, spec, layers=(8,)), experience(spec, rows)
    found = []
    for extended in (True, False):
        with tf.GradientTape() as tape, rng.scope(tf.constant([1, 2])):
            info = algorithm._run_train_steps(exp, None, extended)
            loss = algorithm.calc_loss(TrainingInfo(exp.action, exp.step_type, exp.reward, exp.discount, info)).loss
        found.append([loss, *tape.gradient(loss, algorithm.trainable_variables)])
    known = [(a, b) for a, b in zip(*found, strict=True) if a is not None or b is not None]
    assert len(known) > 4
    for apart, together in known:
        np.testing.assert_allclose(apart, together, rtol=1e-4, atol=1e-6)
