"""The agent's parts: who sees what, how the reward is put together, what is minimised."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms import minibatch
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.agent import Agent
from alf.algorithms.agent_parts import by_size, total_loss
from alf.algorithms.curiosity import CuriosityAlgorithm, CuriosityInfo
from alf.algorithms.goal_generator import GoalInfo, RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.normalization import ObservationNormalizer
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.rl_algorithm import ROLLOUT
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import ActionTimeStep, AlgorithmStep, Bootstrap, Experience, LossInfo, PolicyStep, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.utils import nest_utils, rng
from alf.utils.common import cast_transformer, image_scale_transformer, zeros_from_spec
from tests.algorithms import networks, off_policy

OBS = tensor_spec.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
ACTION = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
BATCH, LENGTH = 3, 5


def actor_critic(cls: Any = ActorCriticAlgorithm, loss: Any = ActorCriticLoss) -> Any:
    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        combiner = {}
        if isinstance(observation_spec, list):
            combiner = {"preprocessing_combiner": tf.keras.layers.Concatenate()}
        nets = networks.feed_forward(observation_spec, action_spec, (4,), **combiner)
        return cls(observation_spec, action_spec, *nets, loss_class=loss)

    return make


def make_agent(**kwargs: Any) -> Agent:
    kwargs = {"rl_algorithm_cls": actor_critic(), "optimizer": tf.keras.optimizers.legacy.Adam(1e-3), **kwargs}
    return Agent(OBS, ACTION, **kwargs)


def experience(agent: Agent, bootstrap: bool = True, seed: int = 0) -> Experience:
    """Random records [BATCH, LENGTH] with an end of an episode in the middle of the first row."""
    rs = np.random.RandomState(seed)
    spec = agent.experience_spec

    def random(outer: list[int], spec: Any) -> Any:
        return tf.nest.map_structure(
            lambda s: tf.constant(
                rs.randint(0, 2, [*outer, *s.shape]) if s.dtype.is_integer else rs.rand(*outer, *s.shape), s.dtype
            ),
            spec,
        )

    exp = random([BATCH, LENGTH], spec)
    step_type = np.ones([BATCH, LENGTH], np.int32)
    step_type[0, 1], step_type[0, 2], step_type[1, 4] = StepType.LAST, StepType.FIRST, StepType.LAST
    exp = exp._replace(step_type=tf.constant(step_type))
    if not bootstrap:
        return exp
    time_step = random([BATCH], ActionTimeStep(*spec[: len(ActionTimeStep._fields)]))
    time_step = time_step._replace(step_type=tf.constant([1, 0, 1]))
    return exp._replace(bootstrap=Bootstrap(time_step, zeros_from_spec(agent.train_state_spec, BATCH)))


@pytest.mark.parametrize(
    ("given", "transformer", "seen"),
    [
        (tensor_spec.BoundedTensorSpec([4], tf.float64, -1, 1), cast_transformer, tf.TensorSpec([4], tf.float32)),
        (tensor_spec.BoundedTensorSpec([4], tf.uint8, 0, 255), cast_transformer, tf.TensorSpec([4], tf.float32)),
        (tensor_spec.BoundedTensorSpec([4], tf.float32, -1, 1), lambda o: o[..., :2], tf.TensorSpec([2], tf.float32)),
        (OBS, lambda o: [o, 2.0 * o], [OBS, tf.TensorSpec([2], tf.float32)]),
        (OBS, cast_transformer, OBS),
    ],
)
def test_the_rl_algorithm_is_made_for_what_it_sees(given: Any, transformer: Any, seen: Any) -> None:
    made: list[Any] = []

    def make(observation_spec: Any, **kwargs: Any) -> Any:
        made.append(observation_spec)
        return actor_critic()(observation_spec, **kwargs)

    agent = Agent(given, ACTION, make, observation_transformer=transformer)
    for after, expected in zip(tf.nest.flatten(made[0]), tf.nest.flatten(seen), strict=True):
        assert (after.shape, after.dtype) == (expected.shape, expected.dtype)
    assert given is not OBS or transformer is not cast_transformer or made[0] is OBS
    # Acts on zeros.
    assert tf.nest.flatten(agent.experience_spec)


@pytest.mark.parametrize("part", ["nothing", "curiosity", "normalizer"])
def test_bytes_are_recorded_and_seen_as_the_numbers_they_stand_for(part: str) -> None:
    """An agent of bytes learns and acts as one of the numbers that the bytes stand for, transformers in their order."""
    pixels = tensor_spec.BoundedTensorSpec([2], tf.uint8, 0, 255)
    transformers = [functools.partial(image_scale_transformer, min=0.0), lambda o: o + 0.5, lambda o: 0.5 * o]
    scale = lambda o: 0.5 * (transformers[0](o) + 0.5)  # noqa: E731

    def make(spec: Any, transformer: Any) -> Agent:
        parts: dict[str, Any] = {
            "nothing": dict,
            "curiosity": lambda: {"intrinsic_curiosity_module": Distance()},
            "normalizer": lambda: {"observation_normalizer": ObservationNormalizer(OBS)},
        }[part]()
        floats = functools.partial(actor_critic(PPOAlgorithm, PPOLoss), OBS)
        return Agent(
            spec,
            ACTION,
            lambda observation_spec, **kwargs: floats(**kwargs),
            optimizer=tf.keras.optimizers.legacy.Adam(1e-2),
            observation_transformer=transformer,
            **parts,
        )

    of_bytes, of_numbers = make(pixels, transformers), make(OBS, ())
    assert of_bytes.experience_spec.observation.dtype == tf.uint8
    assert of_bytes.transformed_time_step_spec.observation.dtype == tf.uint8
    pictures = tf.cast(tf.random.uniform([BATCH, LENGTH + 1, 2], 0, 256, tf.int32), tf.uint8)
    for target, source in zip(of_numbers.variables, of_bytes.variables, strict=True):
        target.assign(source)
    first = [v.numpy() for v in of_bytes.trainable_variables]
    recorded = experience(of_numbers)
    for agent, seen in ((of_bytes, pictures), (of_numbers, scale(pictures))):
        last = recorded.bootstrap._replace(
            time_step=recorded.bootstrap.time_step._replace(observation=seen[:, -1]),
        )
        exp = recorded._replace(observation=seen[:, :-1], bootstrap=last)
        for _ in range(2):
            for observe in agent.exp_observers:
                observe(exp)
            agent.train_from(exp, num_updates=2, mini_batch_size=5, mini_batch_length=1)
    changed = [np.any(v.numpy() != before) for v, before in zip(of_bytes.trainable_variables, first, strict=True)]
    assert all(changed)
    for of_byte, of_number in zip(of_bytes.variables, of_numbers.variables, strict=True):
        np.testing.assert_allclose(of_byte.numpy(), of_number.numpy(), rtol=1e-4, atol=1e-6)
    acted = []
    for agent, seen in ((of_bytes, pictures), (of_numbers, scale(pictures))):
        time_step = agent.transform_timestep(recorded.bootstrap.time_step._replace(observation=seen[:, 0]))
        acted.append(agent.act(time_step, zeros_from_spec(agent.train_state_spec, BATCH), tf.constant([1, 2])).info)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *acted)


def test_masks_are_found_in_what_is_unpacked() -> None:
    pixels = tensor_spec.BoundedTensorSpec([2], tf.uint8, 0, 255)
    spec = {"observation": pixels, "mask": tensor_spec.BoundedTensorSpec([2], tf.int8, 0, 1)}

    def masked(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        return ActorCriticAlgorithm(
            observation_spec,
            action_spec,
            *networks.feed_forward(OBS, action_spec, (4,)),
            loss_class=ActorCriticLoss,
            observation_and_action_constraint_splitter=lambda o: (o["seen"], o["allowed"]),
        )

    agent = Agent(
        spec,
        ACTION,
        masked,
        observation_transformer=lambda o: {"seen": tf.cast(o["observation"], tf.float32), "allowed": o["mask"]},
    )
    time_step = zeros_from_spec(agent.time_step_spec, 1)
    time_step = time_step._replace(observation={**time_step.observation, "mask": tf.constant([[0, 1]], tf.int8)})
    recorded = agent.transform_timestep(time_step)
    assert recorded.observation["observation"].dtype == tf.uint8
    np.testing.assert_array_equal(agent.allowed_actions(recorded), [[False, True]])
    assert int(agent.random_action(recorded)[0]) == 1


def test_what_is_recorded_is_the_smallest() -> None:
    """Transforms that keep the size or lessen it are done once, in the actor; those behind that add to it are not."""
    pixels = tensor_spec.BoundedTensorSpec([4], tf.uint8, 0, 255)
    half = lambda o: o[:, ::2]  # noqa: E731
    scale = functools.partial(image_scale_transformer, min=0.0)

    def recorded(spec: Any, *transformers: Any) -> tuple[Any, Any]:
        agent = Agent(
            spec, ACTION, lambda **specs: actor_critic()(OBS, ACTION, False), observation_transformer=transformers
        )
        found = agent.experience_spec.observation
        return found.shape.as_list(), found.dtype

    assert recorded(pixels, half, scale) == ([2], tf.uint8)
    assert recorded(pixels, scale, half) == ([4], tf.uint8)
    assert recorded(OBS, lambda o: o + 1.0) == ([2], tf.float32)
    assert by_size([half, cast_transformer], OBS)[:2] == ([half, cast_transformer], [])
    assert recorded(tf.TensorSpec([2], tf.float64), lambda o: tf.cast(o, tf.float32)) == ([2], tf.float32)


@pytest.mark.parametrize("argument", ["reward_shaping_fn", "observation_transformer"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_the_agent_does_to_steps_is_not_given_to_the_algorithm_inside(argument: str, wrapped: bool) -> None:
    def make(**specs: Any) -> Any:
        algorithm = off_policy.make("discrete_sac", specs["observation_spec"], ACTION, **{argument: lambda x: 2.0 * x})
        return TracAlgorithm(OBS, ACTION, lambda **_: algorithm) if wrapped else algorithm

    kind = "TracAlgorithm" if wrapped else "SacAlgorithm"
    with pytest.raises(ValueError, match=f"the {argument} of the {kind} inside of it: set Agent.{argument} instead"):
        make_agent(rl_algorithm_cls=make)


class Distance(CuriosityAlgorithm):
    """Rewards by a known function of a transition; its loss is that function times a weight."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(name="Distance", **kwargs)
        self._weight = tf.Variable(2.0)

    def train_step(self, inputs: Any, state: Any = None) -> AlgorithmStep:
        moved = tf.reduce_sum(tf.square(inputs.next_observation - inputs.observation), -1)
        reward = moved + tf.cast(inputs.action, tf.float32)
        return AlgorithmStep(info=CuriosityInfo(reward=reward, losses={"loss": self._weight * reward}))


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("scales", [True, False])
def test_rewards_are_put_together_in_one_place(bootstrap: bool, scales: bool) -> None:
    agent = make_agent(
        intrinsic_curiosity_module=Distance(),
        extrinsic_reward_coef=0.5,
        intrinsic_reward_coef=3.0,
        intrinsic_reward_scales=scales,
    )
    exp = experience(agent, bootstrap)
    done = agent.preprocess_experience(exp)
    obs = exp.observation.numpy()
    if bootstrap:
        obs = np.concatenate([obs, exp.bootstrap.time_step.observation.numpy()[:, None]], 1)
    for b in range(BATCH):
        for t in range(LENGTH + bootstrap):
            extrinsic = exp.bootstrap.time_step.reward[b] if t == LENGTH else exp.reward[b, t]
            intrinsic = 0.0
            if t > 0 and exp.step_type[b, t - 1] != StepType.LAST:
                intrinsic = np.square(obs[b, t] - obs[b, t - 1]).sum() + float(exp.action[b, t - 1])
            expected = 0.5 * float(extrinsic) + 3.0 * intrinsic
            if scales:
                expected = 0.5 * float(extrinsic) * (1.0 + 3.0 * intrinsic)
            got = done.bootstrap.time_step.reward[b] if t == LENGTH else done.reward[b, t]
            assert float(got) == pytest.approx(expected, rel=1e-5)
    explored = done.rollout_info.icm
    for b in range(BATCH):
        for t in range(LENGTH):
            valid = exp.step_type[b, t] != StepType.LAST and t + 1 < len(obs[b])
            assert bool(explored.valid[b, t]) == valid
            if valid:
                np.testing.assert_array_equal(explored.next_observation[b, t], obs[b, t + 1])


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize(("cls", "loss"), [(ActorCriticAlgorithm, ActorCriticLoss), (PPOAlgorithm, PPOLoss)])
def test_the_curiosity_loss_is_a_mean_over_transitions_beside_the_other_loss(
    cls: Any, loss: Any, bootstrap: bool
) -> None:
    sgd = tf.keras.optimizers.legacy.SGD(0.1)
    agent = make_agent(rl_algorithm_cls=actor_critic(cls, loss), intrinsic_curiosity_module=Distance(), optimizer=sgd)
    exp = experience(agent, bootstrap)
    obs = exp.observation.numpy()
    if bootstrap:
        obs = np.concatenate([obs, exp.bootstrap.time_step.observation.numpy()[:, None]], 1)
    rows = [
        2.0 * (np.square(obs[b, t + 1] - obs[b, t]).sum() + float(exp.action[b, t]))
        for b in range(BATCH)
        for t in range(obs.shape[1] - 1)
        if exp.step_type[b, t] != StepType.LAST
    ]
    agent.train_from(exp, mini_batch_size=BATCH)
    metrics = {name: float(x) for name, x in agent.last_train_metrics.items()}
    assert metrics["Distance/loss"] == pytest.approx(np.mean(rows), rel=1e-5)
    assert float(agent._icm._weight) == pytest.approx(2.0 - 0.1 * np.mean(rows) / 2.0, rel=1e-5)


@pytest.mark.parametrize("size", [None, 4])
def test_ppo_of_single_steps_trains_the_curiosity_module(size: int | None) -> None:
    tf.random.set_seed(0)
    icm = ICMAlgorithm(ACTION, tf.TensorSpec([2], tf.float32), hidden_size=8)
    agent = make_agent(rl_algorithm_cls=actor_critic(PPOAlgorithm, PPOLoss), intrinsic_curiosity_module=icm)
    agent.build_optimizers()
    before = [v.numpy() for v in icm.trainable_variables]
    agent.train_from(experience(agent), num_updates=2, mini_batch_size=size, mini_batch_length=1)
    assert all((v.numpy() != w).any() for v, w in zip(icm.trainable_variables, before, strict=True))
    assert np.isfinite(float(agent.last_train_metrics["ICMAlgorithm/forward_loss"]))


@pytest.mark.parametrize("looked_at", [1, 3])
def test_curiosity_learns_from_every_step_however_far_the_critic_looks_ahead(looked_at: int) -> None:
    def dqn(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        return off_policy.make("dqn", observation_spec, action_spec, critic_loss=OneStepTDLoss(n_step=looked_at))

    icm = ICMAlgorithm(ACTION, tf.TensorSpec([2], tf.float32), hidden_size=8)
    alone = make_agent(rl_algorithm_cls=dqn)
    assert alone.rows_only_looked_at == looked_at
    agent = make_agent(rl_algorithm_cls=dqn, intrinsic_curiosity_module=icm)
    rows, extended = minibatch.cut(agent.preprocess_experience(experience(agent)), LENGTH)
    assert extended
    rows = minibatch.time_major(rows)
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.unstack(agent._run_train_steps(rows, extended=True).icm.losses["forward_loss"])
    kernel = icm._forward_net.trainable_variables[0]
    assert all(np.abs(tape.gradient(loss, kernel)).max() > 0.0 for loss in losses[:LENGTH])


class TracingGenerator(RandomCategoricalGoalGenerator):
    """Notes what it sees, has a loss, and rewards."""

    def __init__(self, rewards: bool = False) -> None:
        super().__init__(OBS, 3)
        self._seen = _Seen()
        self._rewards = rewards

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        self._seen.observations.append(time_step.observation)
        step = super().rollout(time_step, state, mode)
        if not self._rewards:
            return step
        return step._replace(info=step.info._replace(reward=10.0 + time_step.observation[:, 0]))

    def train_step(self, inputs: Any, state: Any = None) -> PolicyStep:
        self._seen.observations.append(inputs.observation)
        return PolicyStep((), state, GoalInfo(goal=inputs.rollout_info.goal))

    def calc_loss(self, training_info: Any) -> LossInfo:
        return LossInfo(scalar_loss=tf.constant(100.0), extra={"goal_loss": tf.constant(100.0)})


class _Seen:
    def __init__(self) -> None:
        self.observations: list[Any] = []


def test_each_part_of_the_loss_is_counted_once() -> None:
    rl = LossInfo(loss=tf.ones([2, 3]), scalar_loss=tf.constant(1.0), extra={"a": 1})
    parts = [
        LossInfo(scalar_loss=tf.constant(10.0), extra={"b": 2}),
        LossInfo(),
        LossInfo(scalar_loss=tf.constant(100.0)),
    ]
    total = total_loss(rl, parts)
    assert float(total.scalar_loss) == 111.0
    assert total.loss is rl.loss
    assert (total.extra, rl.extra) == ({"a": 1, "b": 2}, {"a": 1})
    assert float(total_loss(LossInfo(loss=rl.loss), parts).scalar_loss) == 110.0
    with pytest.raises(ValueError, match="not as loss"):
        total_loss(rl, [LossInfo(loss=tf.ones([2, 3]))])


def test_the_goal_generators_loss_is_counted_once() -> None:
    losses = []
    for generator in (RandomCategoricalGoalGenerator(OBS, 3), TracingGenerator()):
        tf.random.set_seed(0)
        agent = make_agent(goal_generator=generator)
        agent.train_from(experience(agent))
        losses.append(float(agent.last_train_metrics["loss"]))
    assert losses[1] - losses[0] == pytest.approx(100.0, abs=1e-3)


def test_the_goal_generator_sees_the_same_observation_wherever_it_is_asked() -> None:
    generator = TracingGenerator()
    encoder = EncodingNetwork(OBS, fc_layer_params=(7,))
    agent = make_agent(goal_generator=generator, encoding_network=encoder, observation_transformer=lambda o: 3.0 * o)
    raw = zeros_from_spec(agent.time_step_spec, 2)._replace(observation=tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    state = zeros_from_spec(agent.train_state_spec, 2)
    time_step = agent.transform_timestep(raw)
    step = agent.rollout(time_step, state, ROLLOUT)
    agent.predict(time_step, state)
    info = nest_utils.distributions_to_params(step.info)
    agent.train_step(Experience(**time_step._asdict(), action=step.action, rollout_info=info), ())
    seen = generator._seen.observations
    assert len(seen) == 3
    for observation in seen:
        np.testing.assert_array_equal(observation, [[3.0, 6.0], [9.0, 12.0]])


def test_the_goal_generators_reward_is_added() -> None:
    agent = make_agent(goal_generator=TracingGenerator(rewards=True))
    exp = experience(agent)
    recorded = exp.rollout_info.goal_generator.reward
    done = agent.preprocess_experience(exp)
    np.testing.assert_allclose(done.reward, exp.reward + recorded, rtol=1e-6)
    last = exp.bootstrap.time_step
    np.testing.assert_allclose(done.bootstrap.time_step.reward, last.reward + 10.0 + last.observation[:, 0], rtol=1e-6)


def test_goals_are_one_hot_and_last_as_long_as_the_episode() -> None:
    generator = RandomCategoricalGoalGenerator(OBS, 4)
    state, goals = zeros_from_spec(generator.train_state_spec, 500), []
    for t, first in enumerate([True, False, False, True]):
        time_step = zeros_from_spec(generator.time_step_spec, 500)
        step_type = tf.fill([500], StepType.FIRST if first else StepType.MID)
        with rng.scope(tf.constant([t, 1])):
            step = generator.rollout(time_step._replace(step_type=step_type), state, ROLLOUT)
        state = step.state
        goals.append(step.action.numpy())
        np.testing.assert_array_equal(step.info.goal, goals[-1])
    np.testing.assert_array_equal(goals[0], goals[2])
    assert (goals[0] != goals[3]).any()
    assert (goals[0].sum(-1) == 1).all()
    assert (np.abs(goals[0].mean(0) - 0.25) < 0.08).all()


def test_entropy_target_is_adjusted_once_an_update_by_the_rows_that_count() -> None:
    agent = make_agent(enforce_entropy_target=True)
    exp = experience(agent)
    # Those that do not count have another entropy, that of LAST rows and of the bootstrap.
    last = (exp.step_type == StepType.LAST)[..., tf.newaxis]
    following = exp.bootstrap.time_step
    exp = exp._replace(
        observation=tf.where(last, 5000.0, exp.observation),
        bootstrap=exp.bootstrap._replace(time_step=following._replace(observation=following.observation + 5000.0)),
    )
    actor = agent._rl_algorithm._actor_network
    for variable in actor.trainable_variables:
        variable.assign(10.0 * variable)
    policy = actor(tf.reshape(exp.observation, [-1, 2]), step_type=tf.reshape(exp.step_type, [-1]), network_state=())[0]
    entropy = policy.entropy().numpy().reshape(BATCH, LENGTH)
    agent.train_from(exp, num_updates=1)
    metrics = agent.last_train_metrics
    counted = entropy[~last[..., 0].numpy()]
    assert abs(entropy.mean() - counted.mean()) > 1e-3
    np.testing.assert_allclose(metrics["EntropyTargetAlgorithm/entropy"], counted.mean(), rtol=1e-5)
    agent.train_from(exp, num_updates=2)
    assert int(agent._entropy_target._updates) == 3
    assert int(agent._entropy_target.stage) == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_algorithm_without_distribution_has_no_entropy_target(deterministic: bool) -> None:
    class Silent(ActorCriticAlgorithm):
        def train_step(self, inputs: Any, state: Any = None) -> PolicyStep:
            return PolicyStep((), (), info)

    # An action that nothing is left to chance of has no entropy either.
    info = {"action_distribution": tf.zeros([1, 2])} if deterministic else {"value": tf.zeros([1])}
    agent = make_agent(rl_algorithm_cls=actor_critic(Silent), enforce_entropy_target=True)
    with pytest.raises(ValueError, match="needs one action_distribution in the info of Silent, which has none"):
        agent.train_from(experience(agent))


def test_a_recurrent_encoder_is_refused() -> None:
    from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork

    with pytest.raises(ValueError, match="must be feed-forward"):
        make_agent(encoding_network=functools.partial(LSTMEncodingNetwork, OBS, lstm_size=(3,)))


def test_the_curiosity_module_is_not_run_in_acting() -> None:
    agent = make_agent(intrinsic_curiosity_module=ICMAlgorithm(ACTION, tf.TensorSpec([2], tf.float32)))
    read = {v.ref() for v in agent.acting_variables()}
    assert read
    assert not read & {v.ref() for v in agent._icm.variables}


def test_recurrent_policies_follow_goals_too() -> None:
    """With a recurrent policy rows are trained in order; goals come from the records."""

    def make(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
        nets = networks.recurrent(
            observation_spec, action_spec, 4, preprocessing_combiner=tf.keras.layers.Concatenate()
        )
        return ActorCriticAlgorithm(observation_spec, action_spec, *nets)

    env = PolicyUnittestEnv(4, 5, seed=0)
    specs = networks.specs_of(env)
    agent = Agent(
        *specs,
        make,
        goal_generator=RandomCategoricalGoalGenerator(specs[0], 3),
        intrinsic_curiosity_module=ICMAlgorithm(specs[1], specs[0], hidden_size=4),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )
    agent.use_rollout_state = True
    driver = SyncOffPolicyDriver(env, agent, unroll_length=7, random_seed=0)
    try:
        for _ in range(2):
            driver.run()
            agent.train(mini_batch_size=2)
    finally:
        driver.stop()
    assert np.isfinite(float(agent.last_train_metrics["loss"]))


@pytest.mark.parametrize(
    "given", [{"intrinsic_curiosity_module": ICMAlgorithm}, {"goal_generator": RandomCategoricalGoalGenerator}]
)
def test_a_part_that_was_not_made_is_refused(given: dict[str, Any]) -> None:
    """As `@ICMAlgorithm` without parentheses is in a gin file."""
    with pytest.raises(ValueError, match=r"is ICMAlgorithm|is RandomCategoricalGoalGenerator and .* write @.*\(\)"):
        make_agent(**given)
