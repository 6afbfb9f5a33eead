"""TRAC: whatever the gradient wants, the policy moves no further than allowed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms import trac_algorithm
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import Bootstrap, Experience, StepType
from alf.utils.common import zeros_from_spec
from tests.algorithms import networks, off_policy

tfd = tfp.distributions
CONCATENATE = tf.keras.layers.Lambda(lambda parts: tf.concat(tf.nest.flatten(parts), -1))
BATCH, LENGTH = 4, 6
OBS = tf.TensorSpec([3], tf.float32)
ACTIONS = {
    "discrete": tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2),
    "multi_discrete": tensor_spec.BoundedTensorSpec([2], tf.int64, 0, 2),
    "normal": tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0),
    "squashed": tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0),
    "nest": {
        "a": tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2),
        "b": tensor_spec.BoundedTensorSpec([1], tf.float32, -1.0, 1.0),
    },
}
DIMS = {"discrete": [3], "multi_discrete": [6], "normal": [2], "squashed": [2], "nest": [3, 1]}


def _squashed(spec: Any) -> Any:
    return NormalProjectionNetwork(
        spec, state_dependent_std=True, std_transform=tf.nn.softplus, scale_distribution=True
    )


def make(
    action_spec: Any,
    clip: float,
    rnn: bool = False,
    ac: Any = ActorCriticAlgorithm,
    loss: Any = ActorCriticLoss,
    squashed: bool = False,
    learning_rate: float = 3.0,
    before: Any = None,
    **kwargs: Any,
) -> Agent:
    def make_ac(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        if rnn:
            nets = networks.recurrent(observation_spec, action_spec, 8)
        else:
            of_actor = {"continuous_projection_net": _squashed} if squashed else {}
            of_actor |= {"preprocessing_layers": before} if before else {}
            nets = networks.feed_forward(observation_spec, action_spec, (8,), of_actor)
        return ac(observation_spec, action_spec, *nets, loss=loss(action_spec))

    def make_trac(**kwargs: Any) -> TracAlgorithm:
        return TracAlgorithm(ac_algorithm_cls=make_ac, action_dist_clip_per_dim=clip, **kwargs)

    # A step of this size would throw any policy far away.
    return Agent(OBS, action_spec, make_trac, optimizer=tf.keras.optimizers.legacy.SGD(learning_rate), **kwargs)


def experience(agent: Agent, seed: int) -> Experience:
    rs = np.random.RandomState(seed)
    agent._record_specs()
    step_type = np.ones([BATCH, LENGTH], np.int32)
    step_type[1, 2], step_type[1, 3] = StepType.LAST, StepType.FIRST

    def random(spec: Any) -> tf.Tensor:
        shape = [BATCH, LENGTH, *spec.shape]
        if spec.dtype.is_integer:
            return tf.constant(rs.randint(0, 3, shape), spec.dtype)
        return tf.constant(rs.uniform(-0.9, 0.9, shape), spec.dtype)

    spec = agent.experience_spec
    exp = tf.nest.map_structure(random, spec._replace(rollout_info=(), step_type=spec.step_type))
    info = zeros_from_spec(spec.rollout_info, BATCH * LENGTH)
    # A distribution of its own as behaviour: standard deviations must be above 0.
    info = tf.nest.map_structure(lambda x: tf.reshape(x, [BATCH, LENGTH, *x.shape[1:]]) + 0.5, info)
    return exp._replace(step_type=tf.constant(step_type), rollout_info=info, reward=10.0 * exp.reward)


def policy(agent: Agent, exp: Experience) -> Any:
    """The action distribution at every recorded row, [BATCH * LENGTH], without recurrence."""
    flat = tf.reshape(exp.observation, [-1, 3])
    actor = agent._rl_algorithm._ac_algorithm._actor_network
    return actor(flat, step_type=tf.reshape(exp.step_type, [-1]), network_state=())[0]


def distance(one: Any, other: Any) -> np.ndarray:
    """Of each row, in float64."""
    if isinstance(one, tfd.Categorical):
        logits = [x.logits.numpy().astype(np.float64) for x in (one, other)]
        logits = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logits]
        return np.square(logits[0] - logits[1]).reshape(len(logits[0]), -1).sum(-1)
    one, other = (x.input_distribution if isinstance(x, SquashToSpecNormal) else x for x in (one, other))
    m, n = (x.loc.numpy().astype(np.float64) for x in (one, other))
    s, t = (np.broadcast_to(x.stddev().numpy().astype(np.float64), m.shape) for x in (one, other))
    return ((s**2 + (m - n) ** 2) / (2 * t**2) + (t**2 + (m - n) ** 2) / (2 * s**2) - 1.0).sum(-1)


@pytest.mark.parametrize(("name", "clip"), [*((name, 0.01) for name in ACTIONS), ("discrete", 1e-4)])
def test_the_policy_stays_within_the_limit_after_every_update(name: str, clip: float) -> None:
    tf.keras.utils.set_random_seed(0)
    agent, shortened = make(ACTIONS[name], clip, squashed=name == "squashed"), 0
    value = agent._rl_algorithm._ac_algorithm._value_network.trainable_variables
    for seed in range(2):
        exp = experience(agent, seed)
        before = policy(agent, exp)
        values = [v.numpy() for v in value]
        agent.train_from(exp)
        valid = exp.step_type.numpy().reshape(-1) != StepType.LAST
        pairs = zip(*(tf.nest.flatten(x) for x in (before, policy(agent, exp))), strict=True)
        for (one, other), dims in zip(pairs, DIMS[name], strict=True):
            moved = np.sqrt(distance(one, other)[valid].mean())
            assert 0.0 < moved <= np.sqrt(clip * dims) * 1.001
            shortened += moved > 0.3 * np.sqrt(clip * dims)
        assert any((v.numpy() != w).any() for v, w in zip(value, values, strict=True))
    assert shortened


def test_rows_that_are_only_looked_at_do_not_make_room_for_the_others() -> None:
    """A bootstrap that the update moves little would halve the mean."""
    tf.keras.utils.set_random_seed(3)
    agent = make(ACTIONS["discrete"], 0.01, learning_rate=100.0)
    exp = tf.nest.map_structure(lambda x: x[:, -1:], experience(agent, 3))
    exp = exp._replace(observation=10.0 * exp.observation)
    following = zeros_from_spec(agent.transformed_time_step_spec, BATCH)
    before = policy(agent, exp)
    agent.train_from(exp._replace(bootstrap=Bootstrap(following._replace(step_type=tf.ones([BATCH], tf.int32)))))
    moved = np.sqrt(distance(before, policy(agent, exp)).mean())
    assert 0.3 * np.sqrt(0.03) < moved <= np.sqrt(0.03) * 1.001


def test_rows_that_targets_look_at_do_not_make_room_for_the_others() -> None:
    """Of six rows targets of three steps train the first three, which alone see what moves the actor far."""
    tf.keras.utils.set_random_seed(3)
    action, sgd = ACTIONS["normal"], tf.keras.optimizers.legacy.SGD
    optimizers = {"actor_optimizer": sgd(1e3), "critic_optimizer": sgd(0.0)}
    loss = OneStepTDLoss(0.9, n_step=3)
    ddpg = off_policy.make("ddpg", OBS, action, layers=None, critic_loss=loss, **optimizers)
    trac: Any = TracAlgorithm(OBS, action, lambda **_: ddpg, action_dist_clip_per_dim=1e-4)
    exp = experience(trac, 0)
    seen = np.zeros([BATCH, LENGTH, 3], "f")
    seen[:, :3] = np.random.RandomState(0).uniform(2.0, 5.0, [BATCH, 3, 3])
    exp = exp._replace(step_type=tf.ones_like(exp.step_type), observation=tf.constant(seen))
    rows = seen[:, :3].reshape(-1, 3)
    act = lambda: ddpg._actor_network(rows, step_type=tf.ones([len(rows)], tf.int32), network_state=())[0].numpy()  # noqa: E731
    before = act()
    trac.train_from(exp)
    moved = np.sqrt(np.square(act() - before).sum(-1).mean())
    assert 0.3 * np.sqrt(2e-4) < moved <= np.sqrt(2e-4) * 1.001


def test_without_trac_the_same_updates_go_far() -> None:
    """The limits above are no matter of course."""
    tf.random.set_seed(0)
    agent = make(ACTIONS["discrete"], 1e6)
    exp = experience(agent, 0)
    before = policy(agent, exp)
    agent.train_from(exp)
    assert np.sqrt(distance(before, policy(agent, exp)).mean()) > 1.0


@pytest.mark.parametrize(("ac", "loss"), [(PPOAlgorithm, PPOLoss)])
def test_other_algorithms_and_several_minibatches(ac: Any, loss: Any) -> None:
    def moved(clip: float) -> float:
        tf.keras.utils.set_random_seed(0)
        agent = make(ACTIONS["discrete"], clip, ac=ac, loss=loss)
        exp = experience(agent, 0)
        before = policy(agent, exp)
        agent.train_from(exp, num_updates=3, mini_batch_size=8, mini_batch_length=1)
        return np.sqrt(distance(before, policy(agent, exp)).mean())

    # Nine updates, whose minibatches hold a third of the rows.
    limit = 9 * 3 * np.sqrt(1e-4 * 3)
    assert 0.0 < moved(1e-4) < limit < moved(1e6)


def measured_without_a_step(agent: Agent, exp: Experience) -> float:
    """How far TRAC says that any row moved in an update of no length."""
    trac: Any = agent._rl_algorithm
    act_again, seen = trac._act_again, list[float]()

    def spy(training_info: Any) -> Any:
        after = act_again(training_info)
        rows = trac_algorithm.squared_distance(trac._recorded_distributions(training_info), after, 2)
        noted = tf.numpy_function(lambda x: seen.append(float(x)), [tf.reduce_max(rows)], [])
        with tf.control_dependencies([noted]):
            return tfd.Categorical(logits=tf.identity(after.logits))

    object.__setattr__(trac, "_act_again", spy)
    agent.train_from(exp)
    assert len(seen) == 1
    return seen[0]


def test_recurrent_actors_are_judged_from_the_states_that_they_had() -> None:
    """Without a step there is no distance, in mid-episode and after the border of two of them."""
    tf.random.set_seed(0)
    agent = make(ACTIONS["discrete"], 1e-4, rnn=True, learning_rate=0.0)
    assert measured_without_a_step(agent, experience(agent, 0)) < 1e-8


@pytest.mark.parametrize("layer", ["Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise"])
def test_what_an_actor_forgets_at_random_in_training_is_no_change_of_the_policy(layer: str) -> None:
    """Else steps were shortened to nothing for it."""
    tf.random.set_seed(0)
    agent = make(ACTIONS["discrete"], 1e-4, before=getattr(tf.keras.layers, layer)(0.5), learning_rate=0.0)
    assert measured_without_a_step(agent, experience(agent, 0)) < 1e-8


def test_the_actor_is_judged_by_the_part_of_the_observation_that_it_sees() -> None:
    tf.random.set_seed(0)
    observation = {"own": OBS, "others": tf.TensorSpec([2], tf.float32)}
    actor = networks.feed_forward(OBS, ACTIONS["discrete"], (8,))[0]
    value = networks.feed_forward(observation, ACTIONS["discrete"], (8,), preprocessing_combiner=CONCATENATE)[1]

    def make_ac(**kwargs: Any) -> Any:
        del kwargs["debug_summaries"]
        loss = ActorCriticLoss(ACTIONS["discrete"])
        return ActorCriticAlgorithm(**kwargs, actor_network=actor, value_network=value, loss=loss, actor_field="own")

    sgd = tf.keras.optimizers.legacy.SGD(3.0)
    agent = Agent(
        observation, ACTIONS["discrete"], functools.partial(TracAlgorithm, ac_algorithm_cls=make_ac), optimizer=sgd
    )
    exp = experience(agent, 0)
    before = policy(agent, exp._replace(observation=exp.observation["own"]))
    agent.train_from(exp)
    after = policy(agent, exp._replace(observation=exp.observation["own"]))
    valid = exp.step_type.numpy().reshape(-1) != StepType.LAST
    assert 0.0 < np.sqrt(distance(before, after)[valid].mean()) <= np.sqrt(0.01 * 3) * 1.001


def test_an_encoder_that_learns_beside_it_is_refused() -> None:
    """Its step would move the policy too, by any amount."""
    encoder = EncodingNetwork(OBS, fc_layer_params=(3,))
    with pytest.raises(ValueError, match="TracAlgorithm cannot limit what an encoding_network"):
        make(ACTIONS["discrete"], 0.01, encoding_network=encoder)


def test_before_an_update_nothing_has_moved() -> None:
    for one, other in (
        (tfd.Categorical(logits=[[1.0, 2.0]]), tfd.Categorical(logits=[[4.0, 5.0]])),
        (tfd.Normal([[1.0, 2.0]], 0.3), tfd.Normal([[1.0, 2.0]], 0.3)),
        (tf.constant([[1.0, 2.0]]), tf.constant([[1.0, 2.0]])),
    ):
        np.testing.assert_allclose(trac_algorithm.squared_distance(one, other, 1), [0.0], atol=1e-6)
    np.testing.assert_allclose(
        trac_algorithm.squared_distance(tf.constant([[1.0, 2.0]]), tf.constant([[4.0, 6.0]]), 1), [25.0]
    )


def test_distances_of_distributions_are_those_of_the_definition() -> None:
    rs = np.random.RandomState(0)
    (m, n), (s, t) = rs.normal(size=(2, 5, 2)).astype(np.float32), rs.uniform(0.2, 3.0, (2, 5, 2)).astype(np.float32)
    diagonal = [tfd.MultivariateNormalDiag(*x) for x in ((m, s), (n, t))]
    for one, other in (
        (tfd.Normal(m, s), tfd.Normal(n, t)),
        diagonal,
        [SquashToSpecNormal(x, ACTIONS["squashed"]) for x in diagonal],
        (tfd.Categorical(logits=m), tfd.Categorical(logits=n)),
    ):
        found = trac_algorithm.squared_distance(one, other, 1)
        np.testing.assert_allclose(found, distance(one, other), rtol=1e-4)
    for name, spec in ACTIONS.items():
        limits = [trac_algorithm.max_distance(leaf, 0.01) for leaf in tf.nest.flatten(spec)]
        np.testing.assert_allclose(limits, np.sqrt(0.01 * np.array(DIMS[name])), rtol=1e-6)


def test_rows_at_which_no_action_is_taken_do_not_hold_the_others_back() -> None:
    moved = []
    for far in (0.0, 3.0):
        tf.keras.utils.set_random_seed(0)
        agent = make(ACTIONS["discrete"], 0.01)
        exp = experience(agent, 0)
        last = exp.step_type == StepType.LAST
        observation = tf.where(last[..., tf.newaxis], far, exp.observation)
        agent.train_from(exp._replace(observation=observation, discount=tf.where(last, 0.0, exp.discount)))
        moved.append([v.numpy() for v in agent._rl_algorithm._ac_algorithm._actor_network.trainable_variables])
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be above 0, got 0\.0"):
        make(ACTIONS["discrete"], 0.0)
