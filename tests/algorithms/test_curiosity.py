"""ICM, RND and DIAYN against plain numpy, gradients by finite differences of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.networks.network import Network
from tf_agents.networks.sequential import Sequential
from tf_agents.specs import tensor_spec

from alf.algorithms.curiosity import CuriosityInfo, Explored, Transition
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.rnd_algorithm import RNDAlgorithm
from alf.data_structures import TrainingInfo
from alf.networks.calling import learning
from tests.algorithms.loss_cases import numeric_gradient
from tests.algorithms.test_agent import ACTION, experience, make_agent
from tests.algorithms.test_agent import OBS as OF_AGENT

OBS, FEATURES, ROWS = 3, 2, 6
FEATURE = tf.TensorSpec([FEATURES], tf.float32)
ACTIONS = {
    "a": tensor_spec.BoundedTensorSpec([2], tf.int64, 1, 3),
    "b": tensor_spec.BoundedTensorSpec([], tf.float32, -1.0, 1.0),
    "c": tensor_spec.BoundedTensorSpec([2, 2], tf.float32, -1.0, 1.0),
}


def network(inputs: int, outputs: int, name: str) -> Any:
    layers = [tf.keras.layers.Dense(4, tf.nn.tanh), tf.keras.layers.Dense(outputs)]
    made = Sequential(layers, input_spec=tf.TensorSpec([inputs], tf.float32), name=name)
    made.create_variables()
    return made


def weights(net: Any) -> list[np.ndarray]:
    return [v.numpy().astype(np.float64) for v in net.variables]


def run(w: list[np.ndarray], x: np.ndarray, hidden: Any = np.tanh) -> np.ndarray:
    return hidden(x @ w[0] + w[1]) @ w[2] + w[3]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def transition(rs: np.random.RandomState) -> tuple[dict[str, Any], Transition]:
    data = {
        "observation": rs.randn(ROWS, OBS).astype(np.float32),
        "next_observation": rs.randn(ROWS, OBS).astype(np.float32),
        "action": {
            "a": rs.randint(1, 4, [ROWS, 2]),
            "b": rs.uniform(-1, 1, ROWS).astype(np.float32),
            "c": rs.uniform(-1, 1, [ROWS, 2, 2]).astype(np.float32),
        },
        "goal": np.eye(4, dtype=np.float32)[rs.randint(0, 4, ROWS)],
    }
    return data, Transition(**tf.nest.map_structure(tf.constant, data))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]


def icm_oracle(data: dict[str, Any], encoder: Any, forward: Any, inverse: Any, frozen: Any) -> tuple[Any, Any]:
    """The forward and inverse loss of each row; the forward model sees the features of `frozen`."""
    forward_loss, inverse_loss = [], []
    for i in range(ROWS):
        before, after = (run(encoder, data[k][i]) for k in ("observation", "next_observation"))
        fixed = [run(frozen, data[k][i]) for k in ("observation", "next_observation")]
        one_hot = np.eye(3)[data["action"]["a"][i] - 1].reshape(-1)
        one, four = data["action"]["b"][i], data["action"]["c"][i].reshape(-1)
        encoded = np.concatenate([one_hot, [one], four])
        predicted = run(forward, np.concatenate([fixed[0], encoded]), relu)
        forward_loss.append(0.5 * np.mean((predicted - fixed[1]) ** 2))
        guess = run(inverse, np.concatenate([before, after]), relu)
        discrete = cross_entropy(guess[:6].reshape(2, 3), data["action"]["a"][i] - 1).mean()
        inverse_loss.append(discrete + 0.5 * (guess[6] - one) ** 2 + 0.5 * np.mean((guess[7:] - four) ** 2))
    return np.array(forward_loss), np.array(inverse_loss)


def test_icm_losses_reward_and_gradients() -> None:
    tf.random.set_seed(0)
    data, inputs = transition(np.random.RandomState(0))
    encoder = network(OBS, FEATURES, "encoder")
    icm = ICMAlgorithm(ACTIONS, FEATURE, hidden_size=5, encoding_net=encoder)
    nets = [encoder, icm._forward_net, icm._inverse_net]
    params = [weights(net) for net in nets]
    forward_loss, inverse_loss = icm_oracle(data, *params, frozen=params[0])
    with tf.GradientTape(persistent=True) as tape:
        info = icm.train_step(inputs).info
        total = tf.reduce_sum(info.losses["forward_loss"]) + tf.reduce_sum(info.losses["inverse_loss"])
    np.testing.assert_allclose(info.losses["forward_loss"], forward_loss, rtol=1e-4)
    np.testing.assert_allclose(info.losses["inverse_loss"], inverse_loss, rtol=1e-4)
    np.testing.assert_allclose(info.reward, forward_loss, rtol=1e-4)
    frozen = weights(encoder)
    for net, part in zip(nets, params, strict=True):
        for variable, array in zip(net.variables, part, strict=True):
            expected = numeric_gradient(lambda _: sum(x.sum() for x in icm_oracle(data, *params, frozen=frozen)), array)
            np.testing.assert_allclose(tape.gradient(total, variable), expected, rtol=1e-3, atol=1e-4)


def test_icm_without_encoder_sees_observations_and_learns_to_foresee() -> None:
    tf.random.set_seed(0)
    icm = ICMAlgorithm(ACTIONS["a"], tf.TensorSpec([OBS], tf.float32), hidden_size=32)
    rs, optimizer, errors = np.random.RandomState(0), tf.keras.optimizers.legacy.Adam(1e-2), []

    @tf.function(autograph=False)
    def step(obs: Any, action: Any, following: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            info = icm.train_step(Transition(obs, action, following)).info
            loss = tf.reduce_mean(info.losses["forward_loss"] + info.losses["inverse_loss"])
        optimizer.minimize(loss, icm.trainable_variables, tape=tape)
        return tf.reduce_mean(info.reward)

    for _ in range(200):
        obs, action = rs.randn(32, OBS).astype(np.float32), rs.randint(1, 4, [32, 2])
        moved = np.concatenate([action - 2.0, np.zeros([32, 1])], 1).astype(np.float32)
        errors.append(float(step(*map(tf.constant, (obs, action, obs + moved)))))
    assert np.mean(errors[-10:]) < 0.1 * np.mean(errors[:10])


def test_features_that_are_no_vector_are_refused() -> None:
    for make in (lambda spec: ICMAlgorithm(ACTIONS, spec), lambda spec: DIAYNAlgorithm(3, spec)):
        for spec in (tf.TensorSpec([4, 4], tf.float32), {"a": tf.TensorSpec([4], tf.float32)}):
            with pytest.raises(ValueError, match="a feature must be one vector"):
                make(spec)


def test_rnd_loss_gradients_and_what_is_trained() -> None:
    tf.random.set_seed(0)
    data, inputs = transition(np.random.RandomState(0))
    target, predictor = network(FEATURES, 3, "target"), network(FEATURES, 3, "predictor")
    encoder = network(OBS, FEATURES, "encoder")
    rnd = RNDAlgorithm(target, predictor, encoder, learning_rate=1e-3)
    with tf.GradientTape(persistent=True) as tape:
        info = rnd.train_step(inputs).info
        total = tf.reduce_sum(info.losses["loss"])
    w_encoder, w_target, w = (weights(net) for net in (encoder, target, predictor))

    def oracle() -> np.ndarray:
        embedded = [run(w_encoder, x) for x in data["next_observation"]]
        return np.array([np.sum((run(w, x) - run(w_target, x)) ** 2) for x in embedded])

    np.testing.assert_allclose(info.losses["loss"], oracle(), rtol=1e-4)
    np.testing.assert_allclose(info.reward, oracle(), rtol=1e-4)
    for variable, array in zip(predictor.variables, w, strict=True):
        expected = numeric_gradient(lambda _: oracle().sum(), array)
        np.testing.assert_allclose(tape.gradient(total, variable), expected, rtol=1e-3, atol=1e-4)
    assert all(g is None for g in tape.gradient(total, [*target.variables, *encoder.variables]))
    ((optimizer, trained),) = rnd.optimized_variables()
    assert isinstance(optimizer, tf.keras.optimizers.legacy.Adam)
    assert {v.ref() for v in trained} == {v.ref() for v in predictor.variables}


def test_rnd_looks_at_the_last_of_stacked_frames_and_normalises_it() -> None:
    spec = tf.TensorSpec([2, 2, 4], tf.float32)
    nets = [
        Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)], tf.TensorSpec([2, 2, 1], tf.float32))
        for _ in range(2)
    ]
    rnd = RNDAlgorithm(*nets, observation_adapt_speed=8.0, observation_spec=spec)
    frames = tf.constant(np.random.RandomState(0).randn(6, 2, 2, 4).astype(np.float32) * 7 + 50)
    # The sixth row is no transition, and far off.
    frames += tf.reshape([0.0] * 5 + [1000.0], [6, 1, 1, 1])
    inputs = Transition(next_observation=frames)
    rewards = rnd.rewards(inputs, tf.constant([1.0] * 5 + [0.0]))
    last = frames.numpy()[..., -1:].astype(np.float64)
    normal = np.clip((last - last[:5].mean(0)) / last[:5].std(0), -5, 5).astype(np.float32)
    expected = np.sum((nets[0](normal)[0].numpy() - nets[1](normal)[0].numpy()) ** 2, -1)
    before = rnd.train_step(inputs).info.reward
    np.testing.assert_allclose(before, expected, rtol=1e-3)
    np.testing.assert_allclose(rewards, [*expected[:5], 0.0], rtol=1e-3)
    np.testing.assert_array_equal(rnd.train_step(inputs).info.reward, before)
    other = frames + tf.constant([9.0, 9.0, 9.0, 0.0])
    np.testing.assert_array_equal(rnd.train_step(Transition(next_observation=other)).info.reward, before)


class _Noting(Network):
    """Notes whether it learns."""

    def __init__(self, name: str, noted: dict[str, bool]) -> None:
        super().__init__(tf.TensorSpec([OBS], tf.float32), state_spec=(), name=name)
        self._noted = noted

    def call(self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        self._noted[self.name] = bool(training)
        return inputs, network_state


def test_of_rnds_networks_only_the_one_that_is_trained_is_in_training_mode() -> None:
    noted: dict[str, bool] = {}
    rnd = RNDAlgorithm(*(_Noting(name, noted) for name in ("target", "predictor", "encoder")))
    with learning():
        rnd.train_step(Transition(next_observation=tf.zeros([2, OBS])))
    assert noted == {"encoder": False, "target": False, "predictor": True}


def test_rnd_needs_the_spec_of_what_it_normalises() -> None:
    with pytest.raises(ValueError, match="observation_adapt_speed needs observation_spec"):
        RNDAlgorithm(network(2, 2, "t"), network(2, 2, "p"), observation_adapt_speed=8.0)


@pytest.mark.parametrize("encoded", [True, False])
def test_diayn_loss_and_gradients_with_and_without_encoder(encoded: bool) -> None:
    tf.random.set_seed(0)
    data, inputs = transition(np.random.RandomState(0))
    encoder = network(OBS, FEATURES, "encoder") if encoded else None
    diayn = DIAYNAlgorithm(4, FEATURE if encoded else tf.TensorSpec([OBS], tf.float32), 5, encoding_net=encoder)
    nets = [*([encoder] if encoded else []), diayn._discriminator_net]
    params = [weights(net) for net in nets]

    def oracle() -> np.ndarray:
        losses = []
        for x, skill in zip(data["next_observation"], data["goal"], strict=True):
            feature = run(params[0], x) if encoded else x
            losses.append(cross_entropy(run(params[-1], feature, relu), np.array(skill.argmax())))
        return np.array(losses)

    with tf.GradientTape(persistent=True) as tape:
        info = diayn.train_step(inputs).info
        total = tf.reduce_sum(info.losses["loss"])
    np.testing.assert_allclose(info.losses["loss"], oracle(), rtol=1e-4)
    np.testing.assert_allclose(info.reward, np.log(4.0) - oracle(), rtol=1e-4, atol=1e-5)
    for net, part in zip(nets, params, strict=True):
        for variable, array in zip(net.variables, part, strict=True):
            expected = numeric_gradient(lambda _: oracle().sum(), array)
            np.testing.assert_allclose(tape.gradient(total, variable), expected, rtol=1e-3, atol=1e-4)


def test_diayn_without_skills_says_what_is_missing() -> None:
    diayn = DIAYNAlgorithm(4, FEATURE)
    with pytest.raises(ValueError, match=r"Agent\.goal_generator"):
        diayn.train_step(Transition(next_observation=tf.zeros([2, FEATURES])))


def test_rewards_are_normalised_over_valid_transitions_once_a_call() -> None:
    tf.random.set_seed(0)
    _, inputs = transition(np.random.RandomState(0))
    icm = ICMAlgorithm(ACTIONS, tf.TensorSpec([OBS], tf.float32), reward_adapt_speed=8.0)
    valid = np.array([1, 0, 1, 1, 0, 1], np.float32)
    raw = icm.train_step(inputs).info.reward.numpy().astype(np.float64)
    chosen = raw[valid > 0]
    expected = np.where(valid > 0, (raw - chosen.mean()) / chosen.std(), 0.0)
    with tf.GradientTape() as tape:
        got = icm.rewards(inputs, tf.constant(valid))
        total = tf.reduce_sum(got)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    assert all(g is None for g in tape.gradient(total, icm.trainable_variables))
    plain = ICMAlgorithm(ACTIONS, tf.TensorSpec([OBS], tf.float32), reward_adapt_speed=None)
    np.testing.assert_allclose(
        plain.rewards(inputs, tf.constant(valid)), plain.train_step(inputs).info.reward * valid, rtol=1e-6
    )


def test_rewards_are_clipped_with_and_without_normalising() -> None:
    _, inputs = transition(np.random.RandomState(0))
    valid, largest = tf.ones([6]), []
    nets = network(OBS, 3, "target"), network(OBS, 3, "predictor")
    for clip, speed in ((-1.0, None), (0.01, None), (0.01, 8.0)):
        rnd = RNDAlgorithm(*nets, reward_adapt_speed=speed, clip_value=clip)
        largest.append(float(tf.reduce_max(tf.abs(rnd.rewards(inputs, valid)))))
    assert largest[0] > 0.1
    assert largest[1:] == pytest.approx([0.01, 0.01])


def test_the_loss_is_the_mean_over_valid_transitions() -> None:
    icm = ICMAlgorithm(ACTIONS, FEATURE)
    rs = np.random.RandomState(0)
    valid = (rs.rand(3, 4) < 0.5).astype(np.float32)
    forward, inverse, reward = (np.where(valid > 0, rs.rand(3, 4), np.nan).astype(np.float32) for _ in range(3))
    info = CuriosityInfo(losses={"forward_loss": tf.constant(forward), "inverse_loss": tf.constant(inverse)})
    explored = Explored(valid=tf.constant(valid), reward=tf.constant(np.nan_to_num(reward)))
    loss = icm.calc_loss(TrainingInfo(info=info, rollout_info=explored))
    means = [x[valid > 0].mean() for x in (forward, inverse, reward)]
    np.testing.assert_allclose(loss.scalar_loss, means[0] + means[1], rtol=1e-5)
    np.testing.assert_allclose([float(x) for x in loss.extra.values()], means, rtol=1e-5)
    none = icm.calc_loss(TrainingInfo(info=info, rollout_info=explored._replace(valid=tf.zeros([3, 4]))))
    assert float(none.scalar_loss) == 0.0


@pytest.mark.parametrize("setting", [{"intrinsic_reward_coef": 0.5}, {"intrinsic_reward_scales": True}])
def test_weights_of_an_intrinsic_reward_that_is_not_there_are_told(setting: Any, caplog: Any) -> None:
    with caplog.at_level("WARNING"):
        make_agent(**setting)
    assert "no intrinsic reward without an intrinsic_curiosity_module" in caplog.text


@pytest.mark.parametrize(
    ("icm", "seen"),
    [
        (lambda: ICMAlgorithm(ACTION, tf.TensorSpec([3], tf.float32), hidden_size=8), r"float32 \(2,\)"),
        (lambda: RNDAlgorithm(_parts_network("target"), _parts_network("predictor")), r"float32 \(2,\)"),
    ],
    ids=["another_size", "several_parts"],
)
def test_what_curiosity_cannot_take_is_said(icm: Callable[[], Any], seen: str) -> None:
    agent = make_agent(intrinsic_curiosity_module=icm())
    with pytest.raises(ValueError, match=rf"cannot take what the policy sees, .*{seen}.*: give it an encoding_net"):
        agent.train_from(experience(agent))


def _parts_network(name: str) -> Any:
    """Of observations that are not those of the agent."""
    layers = {"x": tf.keras.layers.Dense(2), "y": tf.keras.layers.Dense(2)}
    spec = {"x": tf.TensorSpec([2], tf.float32), "y": tf.TensorSpec([2], tf.float32)}
    return EncodingNetwork(spec, layers, tf.keras.layers.Concatenate(), fc_layer_params=(4,), name=name)


def test_the_weight_of_the_environments_reward_counts_without_an_intrinsic_one_too() -> None:
    agent = make_agent(extrinsic_reward_coef=0.3)
    exp = experience(agent)
    done = agent.preprocess_experience(exp)
    np.testing.assert_allclose(done.reward, 0.3 * exp.reward, rtol=1e-6)
    last = exp.bootstrap.time_step.reward
    np.testing.assert_allclose(agent._rewarded(exp).bootstrap.time_step.reward, 0.3 * last, rtol=1e-6)


def test_the_step_behind_a_sequence_is_judged_by_the_goal_of_its_last_row(monkeypatch: Any) -> None:
    agent, seen = make_agent(goal_generator=RandomCategoricalGoalGenerator(OF_AGENT, 3)), []
    inside = agent._rl_algorithm
    monkeypatch.setattr(inside, "preprocess_experience", lambda exp: seen.append(exp) or exp)
    exp = experience(agent)
    agent.preprocess_experience(exp)
    goals = exp.rollout_info.goal_generator.goal
    np.testing.assert_array_equal(seen[0].bootstrap.time_step.observation[1], goals[:, -1])
    np.testing.assert_array_equal(seen[0].observation[1], goals)
