"""Actor-critics that learn from pieces of segments: every loss is the mean over the steps whose outcome a piece knows."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm, ActorCriticInfo
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.agent_parts import AgentInfo
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, StepType
from tests.algorithms.loss_cases import numeric_gradient

B, T, ACTIONS = 4, 6, 3
GAMMA, LAMBDA, ENTROPY = 0.9, 0.8, 0.01
KINDS: dict[str, dict[str, bool]] = {"returns": {}, "gae": {"use_gae": True}, "vtrace": {"use_vtrace": True}}
OBSERVATION, ACTION = tf.TensorSpec([3], tf.float32), BoundedTensorSpec([], tf.int64, 0, ACTIONS - 1)


class Rows(NamedTuple):
    """What T + 1 steps are, [B, T + 1]; `behaviour` are the logits that acted."""

    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    behaviour: np.ndarray


def some_rows() -> Rows:
    rng = np.random.default_rng(3)
    step_type = np.ones((B, T + 1), np.int32)
    step_type[0, [2, 3]] = step_type[1, [3, 4]] = step_type[2, [1, 2]] = StepType.LAST, StepType.FIRST
    reward = np.where(step_type == StepType.FIRST, 0.0, rng.normal(size=(B, T + 1)))
    discount = np.where(step_type == StepType.LAST, [[0.0], [1.0], [0.0], [1.0]], 1.0)
    observation, behaviour = rng.normal(size=(2, B, T + 1, 3))
    action = rng.integers(ACTIONS, size=(B, T + 1))
    real = (x.astype(np.float32) for x in (reward, discount, observation))
    return Rows(step_type, *real, action, behaviour.astype(np.float32))


def experience(rows: Rows, bootstrap: bool) -> Experience:
    before = np.concatenate([np.zeros((B, 1), np.int64), rows.action[:, :-1]], 1)
    steps = ActionTimeStep(*map(tf.constant, rows[:4]), tf.constant(before), tf.zeros([B, T + 1], tf.int32))
    trained, after = (
        tf.nest.map_structure(f, (steps, tf.constant(rows.action), tf.constant(rows.behaviour)))
        for f in (lambda x: x[:, :T], lambda x: x[:, T])
    )
    info = ActorCriticInfo(action_distribution={"logits": trained[2]}, value=tf.zeros([B, T]))
    version = tf.zeros([B, T], tf.int64)
    return Experience(*trained[0], trained[1], info, (), version, Bootstrap(after[0], ()) if bootstrap else ())


def losses_of(piece: Rows, logits: np.ndarray, value: np.ndarray, kind: str) -> list[float]:
    """Of the steps of one piece, [N] each, that one more follows and that are not LAST, by sums over what follows."""
    policy, acted = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, piece.behaviour))
    chosen = np.arange(len(value)), piece.action
    rho = np.minimum(1.0, policy[chosen] / acted[chosen]) if kind == "vtrace" else np.ones(len(value))
    trace = 1.0 if kind == "returns" else LAMBDA

    def target(t: int) -> float:
        total, factor = float(value[t]), 1.0
        for k in range(t, len(value) - 1):
            if piece.step_type[k] == StepType.LAST:
                break
            discount = GAMMA * piece.discount[k + 1]
            total += factor * rho[k] * (piece.reward[k + 1] + discount * value[k + 1] - value[k])
            factor *= trace * rho[k] * discount
        return total

    found = []
    for t in range(len(value) - 1):
        if piece.step_type[t] == StepType.LAST:
            continue
        ahead = piece.reward[t + 1] + GAMMA * piece.discount[t + 1] * target(t + 1)
        advantage = rho[t] * (ahead - value[t]) if kind == "vtrace" else target(t) - value[t]
        entropy = -(policy[t] * np.log(policy[t])).sum()
        found.append(-np.log(policy[chosen][t]) * advantage + (target(t) - value[t]) ** 2 - ENTROPY * entropy)
    return found


def actor_critic(kind: str, **kwargs: Any) -> ActorCriticAlgorithm:
    loss = functools.partial(
        ActorCriticLoss, gamma=GAMMA, td_lambda=LAMBDA, entropy_regularization=ENTROPY, **KINDS[kind]
    )
    actor = ActorDistributionNetwork(OBSERVATION, ACTION, fc_layer_params=(4,))
    value = ValueNetwork(OBSERVATION, fc_layer_params=(4,))
    return ActorCriticAlgorithm(
        **{"observation_spec": OBSERVATION, "action_spec": ACTION, **kwargs},
        actor_network=actor,
        value_network=value,
        loss_class=loss,
        optimizer=tf.keras.optimizers.legacy.SGD(0.0),
    )


def judged(algorithm: ActorCriticAlgorithm, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The logits and values of all rows."""
    seen = rows.observation.reshape(-1, 3)
    step_type = tf.ones(len(seen), tf.int32)
    distribution = algorithm._actor_network(seen, step_type=step_type, network_state=())[0]
    value = algorithm._value_network(seen, step_type=step_type, network_state=())[0]
    return distribution.logits.numpy().reshape(B, T + 1, -1), value.numpy().reshape(B, T + 1)


def check(algorithm: Any, inner: ActorCriticAlgorithm, kind: str, bootstrap: bool, length: int) -> None:
    rows = some_rows()
    exp = experience(rows, bootstrap)
    if isinstance(algorithm, Agent):
        exp = exp._replace(rollout_info=AgentInfo(rl=exp.rollout_info))
    algorithm.train_from(exp, mini_batch_length=length)
    logits, value = judged(inner, rows)
    expected: list[float] = []
    for b in range(B):
        for begin in range(0, T, length):
            piece = b, slice(begin, begin + length + bootstrap)
            expected += losses_of(Rows(*(x[piece] for x in rows)), logits[piece], value[piece], kind)
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bootstrap", "length"), [(True, 6), (True, 3), (True, 1), (False, 6), (False, 3), (False, 2)])
def test_a_loss_is_the_mean_over_the_steps_that_are_followed_by_one(kind: str, bootstrap: bool, length: int) -> None:
    algorithm = actor_critic(kind)
    check(algorithm, algorithm, kind, bootstrap, length)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("outer", [Agent, TracAlgorithm])
def test_so_it_is_inside_of_others(outer: Any, bootstrap: bool) -> None:
    made: list[ActorCriticAlgorithm] = []

    def make(**kwargs: Any) -> ActorCriticAlgorithm:
        made.append(actor_critic("gae", **kwargs))
        return made[0]

    check(outer(OBSERVATION, ACTION, make), made[0], "gae", bootstrap, 3)


def ppo_loss(weights: list[np.ndarray], rows: Rows, returns: np.ndarray, advantages: np.ndarray) -> float:
    """The mean over the steps with an outcome, whose `returns` and `advantages` are [B, N], of linear networks."""
    losses = []
    for b, t in np.ndindex(*advantages.shape):
        if rows.step_type[b, t] == StepType.LAST:
            continue
        seen, action = rows.observation[b, t], rows.action[b, t]
        logits, acted = seen @ weights[0] + weights[1], rows.behaviour[b, t]
        log_p, log_mu = (x - np.log(np.exp(x).sum()) for x in (logits, acted))
        ratio, advantage = np.exp(log_p[action] - log_mu[action]), advantages[b, t]
        surrogate = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        error = float((seen @ weights[2])[0] + weights[3][0]) - returns[b, t]
        losses.append(error**2 - surrogate + ENTROPY * (np.exp(log_p) * log_p).sum())
    return float(np.mean(losses))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("bootstrap", "length"), [(True, 6), (True, 3), (True, 1), (False, 6), (False, 3), (False, 1)])
def test_ppo_moves_by_the_gradient_of_the_mean_over_all_steps_with_an_outcome(
    normalize: bool, bootstrap: bool, length: int
) -> None:
    """From the values that were recorded; those of a row's own network only behind the last one."""
    rows = some_rows()
    algorithm = PPOAlgorithm(
        OBSERVATION,
        ACTION,
        ActorDistributionNetwork(OBSERVATION, ACTION, fc_layer_params=None),
        ValueNetwork(OBSERVATION, fc_layer_params=None),
        loss=PPOLoss(ACTION, GAMMA, td_lambda=LAMBDA, normalize_advantages=normalize, entropy_regularization=ENTROPY),
        optimizer=tf.keras.optimizers.legacy.SGD(1.0),
    )
    variables = [*algorithm._actor_network.trainable_variables, *algorithm._value_network.trainable_variables]
    rng = np.random.default_rng(4)
    for variable in variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    weights = [v.numpy().astype(np.float64) for v in variables]
    value = rng.normal(size=(B, T + 1)).astype(np.float32)
    value[:, T] = rows.observation[:, T] @ weights[2][:, 0] + weights[3][0]
    advantages = np.zeros((B, T if bootstrap else T - 1))
    for b, t in np.ndindex(*advantages.shape):
        factor, row = 1.0, t
        while row < advantages.shape[1] and rows.step_type[b, row] != StepType.LAST:
            discount = GAMMA * rows.discount[b, row + 1]
            advantages[b, t] += factor * (rows.reward[b, row + 1] + discount * value[b, row + 1] - value[b, row])
            factor *= LAMBDA * discount
            row += 1
    trained = rows.step_type[:, : advantages.shape[1]] != StepType.LAST
    scaled = (advantages - advantages[trained].mean()) / advantages[trained].std() if normalize else advantages
    returns = value[:, : advantages.shape[1]] + advantages
    expected = [numeric_gradient(lambda _: ppo_loss(weights, rows, returns, scaled), w) for w in weights]
    exp = experience(rows, bootstrap)
    recorded = exp.rollout_info._replace(value=tf.constant(value[:, :T]))
    algorithm.train_from(exp._replace(rollout_info=recorded), mini_batch_length=length)
    for variable, before, gradient in zip(variables, weights, expected, strict=True):
        np.testing.assert_allclose(before - variable.numpy(), gradient, rtol=1e-3, atol=1e-4)
