"""Behavioural cloning: the loss against numpy, and imitation through the trainer without a single action."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.networks.sequential import Sequential
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from alf.algorithms.agent import Agent
from alf.algorithms.bc_algorithm import BcAlgorithm
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.data_structures import StepType
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.recording import record_episodes
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.grouped_rows import GroupedRows
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv, RNNPolicyUnittestEnv
from alf.replay.dataset import DatasetError, Steps, write_dataset
from alf.trainers.config import TrainerConfig
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.utils.action_masks import split_mask
from tests.algorithms import networks
from tests.algorithms.loss_cases import numeric_gradient

EPISODE = 6


def expert(env: Any, episodes: int, memory: bool = False) -> Steps:
    """What the best policy of a test environment does, in the first member of the batch."""
    rows, first = [], 0.0
    time_step = env.reset()
    while len(rows) < episodes * EPISODE:
        observation = float(time_step.observation[0, 0])
        first = observation if time_step.step_type[0] == StepType.FIRST else first
        choice = (first + 1) / 2 if memory else observation
        action = np.full([1], choice, env.action_spec().dtype)
        rows.append(Steps(*(np.array(x[0]) for x in time_step), action))
        time_step = env.step(np.repeat(action[None], env.batch_size, 0))
    return tf.nest.map_structure(lambda *x: np.stack(x), *rows)


def make(env: Any, data: Any, rnn: bool = False, **kwargs: Any) -> BcAlgorithm:
    specs = networks.specs_of(env)
    actor = networks.recurrent(*specs)[0] if rnn else networks.feed_forward(*specs)[0]
    return BcAlgorithm(*specs, actor, data, optimizer=tf.keras.optimizers.legacy.Adam(1e-2), **kwargs)


def mean_return(algorithm: BcAlgorithm, env: Any) -> float:
    driver = PolicyDriver(env, algorithm, epsilon_greedy=0.0)
    driver.run_episodes(2 * env.batch_size)
    return float(driver.get_metrics()[2].result())


def _normal(spec: Any) -> NormalProjectionNetwork:
    return NormalProjectionNetwork(
        spec, mean_transform=None, state_dependent_std=True, std_transform=tf.exp, scale_distribution=False
    )


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize(
    ("kind", "bonus"),
    [("categorical", None), ("categorical", 0.7), ("normal", None), ("normal", 0.7), ("deterministic", None)],
)
def test_loss_and_gradient(kind: str, bonus: float | None, length: int) -> None:
    """The actor is linear. An episode of six steps makes two sequences of four, of which the second is filled up."""
    tf.random.set_seed(0)
    action_type = ActionType.Discrete if kind == "categorical" else ActionType.Continuous
    env = PolicyUnittestEnv(1, EPISODE, action_type=action_type, seed=0)
    obs, act = networks.specs_of(env)
    data = expert(env, 2)
    if kind == "deterministic":
        actor = Sequential([tf.keras.layers.Dense(1)], input_spec=obs)
    else:
        actor = networks.feed_forward(obs, act, (), {"continuous_projection_net": _normal})[0]
    sgd = tf.keras.optimizers.legacy.SGD(0.5)
    algorithm = BcAlgorithm(obs, act, actor, data, length, bonus, sgd)
    before = [v.numpy().astype(np.float64) for v in actor.trainable_variables]

    def oracle(w: list[np.ndarray]) -> float:
        losses = []
        for x, a, step_type in zip(data.observation, data.action, data.step_type, strict=True):
            if step_type == StepType.LAST:
                continue
            out = x @ w[0] + w[1]
            if kind == "deterministic":
                losses.append((out[0] - a[0]) ** 2)
            elif kind == "normal":
                log_std = (x @ w[2] + w[3])[0]
                log_p = -0.5 * ((a[0] - out[0]) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
                losses.append(-log_p - (bonus or 0.0) * (log_std + 0.5 * np.log(2 * np.pi * np.e)))
            else:
                log_p = out - np.log(np.exp(out).sum())
                losses.append(-log_p[int(a[0])] + (bonus or 0.0) * (np.exp(log_p) * log_p).sum())
        return float(np.mean(losses))

    expected = [numeric_gradient(lambda _: oracle(before), w) for w in before]
    algorithm.train()
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(oracle(before), rel=1e-4)
    for variable, start, gradient in zip(actor.trainable_variables, before, expected, strict=True):
        np.testing.assert_allclose((start - variable.numpy()) / 0.5, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_squared_error_is_the_sum_over_an_actions_components_at_transformed_observations(shift: float) -> None:
    env = PolicyUnittestEnv(1, EPISODE, action_type=ActionType.Continuous, seed=0)
    obs, data = networks.specs_of(env)[0], expert(env, 2)
    data = data._replace(action=np.random.RandomState(0).uniform(-1, 1, (2 * EPISODE, 2, 3)).astype(np.float32))
    act = BoundedTensorSpec([2, 3], tf.float32, -1.0, 1.0)
    actor = Sequential([tf.keras.layers.Dense(6), tf.keras.layers.Reshape([2, 3])], input_spec=obs)
    sgd = tf.keras.optimizers.legacy.SGD(0.5)
    algorithm = BcAlgorithm(obs, act, actor, data, optimizer=sgd, observation_transformer=lambda o: o + shift)
    errors = np.square(actor(tf.constant(data.observation + shift))[0] - data.action).sum((1, 2))
    algorithm.train()
    expected = errors[data.step_type != StepType.LAST].mean()
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(expected, rel=1e-4)


def test_the_action_of_a_last_row_may_be_anything() -> None:
    """Nothing was done there; in files of others it need not be a number."""
    env = PolicyUnittestEnv(1, EPISODE, action_type=ActionType.Continuous, seed=0)
    data, losses = expert(env, 2), []
    for value in (0.5, np.nan):
        data.action[data.step_type == StepType.LAST] = value
        tf.keras.utils.set_random_seed(0)
        algorithm = make(env, data)
        for _ in range(2):
            algorithm.train()
        losses.append(float(algorithm.last_train_metrics["loss"]))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s._replace(step_type=np.ones_like(s.step_type)), "step 0 must be FIRST"),
        (lambda s: tf.nest.map_structure(lambda x: x[:0], s), r"columns of \[0\] steps"),
        (lambda s: s._replace(reward=s.reward[:2]), r"columns of \[2, 12\] steps"),
        (
            lambda s: s._replace(observation={"x": s.observation}),
            "observations nested as {'x': 'column'}, and this environment as 'column'",
        ),
    ],
)
def test_steps_that_are_no_dataset_are_told(change: Any, said: str) -> None:
    env = PolicyUnittestEnv(1, EPISODE, seed=0)
    with pytest.raises(DatasetError, match=f"The dataset .*{said}"):
        make(env, change(expert(env, 2)))


def masked_steps(mask: list[list[Any]], shape: tuple[int, ...]) -> tuple[Any, Any, Steps]:
    """The specs, and an episode in which actions 2, 0, 1 were taken, and one whose only action was 1."""
    mask_of = np.asarray(mask, np.int8).reshape(6, *shape, 3)
    specs = {"seen": tf.TensorSpec([1], tf.float32), "mask": tf.TensorSpec([*shape, 3], tf.int8)}
    action_spec = BoundedTensorSpec(shape, tf.int64, 0, 2)
    observation = {"seen": np.zeros([6, 1], np.float32), "mask": mask_of}
    action = np.array([2, 0, 1, 0, 1, 0]).reshape(6, *shape)
    return specs, action_spec, Steps(np.array([0, 1, 1, 2, 0, 2]), np.zeros(6), np.ones(6), observation, action)


def masked_actor(observation_spec: Any, action_spec: Any, steps: Any) -> BcAlgorithm:
    actor = networks.feed_forward(observation_spec["seen"], action_spec)[0]
    return BcAlgorithm(
        observation_spec,
        action_spec,
        actor,
        steps,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-2),
        observation_and_action_constraint_splitter=split_mask,
    )


@pytest.mark.parametrize("shape", [(), (1,)])
def test_recorded_actions_that_are_forbidden_are_told(shape: tuple[int, ...], tmp_path: pathlib.Path) -> None:
    """Their likelihood stays 0 whatever is learned; it was a loss of 1e10, and a gradient of the allowed ones."""
    # What nothing allows allows all, and what is after an end was never done.
    mask = [[0, 0, 1], [0, 0, 0], [5, 1, 0], [0, 1, 1], [0, 1, 0], [0, 1, 0]]
    algorithm = masked_actor(*masked_steps(mask, shape))
    algorithm.train(mini_batch_size=6, clear_replay_buffer=False)
    assert 0.0 <= float(algorithm.last_train_metrics["loss"]) < 10.0
    mask[2] = [5, 0, 0]
    observation_spec, action_spec, steps = masked_steps(mask, shape)
    path = str(tmp_path / "masked.npz")
    write_dataset(path, steps)
    said = "has action 1 at step 2, which the mask .* forbids"
    with pytest.raises(DatasetError, match=rf"^The dataset {said}"):
        masked_actor(observation_spec, action_spec, steps)
    algorithm = masked_actor(observation_spec, action_spec, path)
    with pytest.raises(DatasetError, match=rf"^The dataset {path} {said}"):
        algorithm.train()


def test_each_choice_has_its_own_row_of_the_mask() -> None:
    step_type, none = np.array([0, 1, 2]), np.zeros(3)
    mask = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, 0], [0, 0]]], np.int8)
    specs = {"seen": tf.TensorSpec([1], tf.float32), "mask": tf.TensorSpec([2, 2], tf.int8)}
    action_spec = BoundedTensorSpec([2], tf.int64, 0, 1)
    observation = {"seen": np.zeros([3, 1], np.float32), "mask": mask}
    masked_actor(specs, action_spec, Steps(step_type, none, none, observation, np.array([[0, 1], [1, 0], [0, 0]])))
    with pytest.raises(DatasetError, match="has action 1 at step 1"):
        masked_actor(specs, action_spec, Steps(step_type, none, none, observation, np.array([[0, 1], [1, 1], [0, 0]])))


def test_an_agent_has_nothing_to_compose_of_it() -> None:
    env = PolicyUnittestEnv(1, EPISODE, seed=0)
    data = expert(env, 1)
    with pytest.raises(ValueError, match=r"BcAlgorithm learns from what it is given and does not act.*algorithm_ctor"):
        Agent(*networks.specs_of(env), rl_algorithm_cls=lambda **kwargs: make(env, data))


@pytest.mark.parametrize("seed", range(3))
def test_a_recurrent_policy_learns_to_remember(seed: int) -> None:
    tf.random.set_seed(seed)
    env = RNNPolicyUnittestEnv(8, EPISODE, gap=2, seed=seed)
    algorithm = make(env, expert(env, 40, memory=True), rnn=True, sequence_length=EPISODE)
    algorithm.train(num_updates=30, mini_batch_size=10, clear_replay_buffer=False)
    assert mean_return(algorithm, env) == pytest.approx(EPISODE - 3)


def test_trained_by_the_trainer_from_a_file_without_a_step(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    tf.random.set_seed(0)
    path = str(tmp_path / "expert.npz")
    write_dataset(path, expert(PolicyUnittestEnv(1, EPISODE, seed=0), 20))

    def load(*args: Any, **kwargs: Any) -> PolicyUnittestEnv:
        return PolicyUnittestEnv(4, EPISODE, seed=5)

    config = TrainerConfig(
        root_dir=str(tmp_path / "run"),
        trainer=SyncOffPolicyTrainer,
        algorithm_ctor=lambda observation_spec, action_spec, debug_summaries: make(load(), path),
        random_seed=0,
        num_iterations=10,
        num_updates_per_train_step=5,
        mini_batch_size=32,
        checkpoint_interval=0,
        export_saved_model=False,
    )
    trainer = SyncOffPolicyTrainer(config)
    monkeypatch.setattr(trainer, "_create_environment", load)
    trainer.train()
    assert trainer.counters.env_steps == 0
    assert trainer.counters.iterations == 10
    assert mean_return(trainer.algorithm, load()) == EPISODE - 1  # type: ignore[arg-type]


def test_a_file_is_read_by_the_first_training_from_where_the_algorithm_was_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = PolicyUnittestEnv(1, EPISODE, seed=0)
    monkeypatch.chdir(tmp_path)
    algorithm = make(env, "expert.npz")
    mean_return(algorithm, env)
    with pytest.raises(DatasetError, match=r"^The dataset expert\.npz cannot be read: .*No such file"):
        algorithm.train()
    write_dataset("expert.npz", expert(env, 2))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert algorithm.train() == 2 * EPISODE
    (tmp_path / "expert.npz").unlink()
    assert algorithm.train() == 2 * EPISODE


def test_a_trainer_reads_the_file_before_it_trains(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    def load(*args: Any, **kwargs: Any) -> PolicyUnittestEnv:
        return PolicyUnittestEnv(4, EPISODE, seed=5)

    config = TrainerConfig(
        root_dir=str(tmp_path / "run"),
        algorithm_ctor=lambda observation_spec, action_spec, debug_summaries: make(load(), str(tmp_path / "gone.npz")),
    )
    trainer = SyncOffPolicyTrainer(config)
    monkeypatch.setattr(trainer, "_create_environment", load)
    with pytest.raises(DatasetError, match=r"^The dataset .*gone\.npz cannot be read"):
        trainer.train()
    assert not trainer.initialized, "a command tells it in a line"


@pytest.mark.parametrize("settings", [{"whole_replay_buffer_training": False}, {"mini_batch_length": 2}])
def test_settings_of_other_algorithms_are_told(settings: Any, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    path = str(tmp_path / "expert.npz")
    write_dataset(path, expert(PolicyUnittestEnv(1, EPISODE, seed=0), 2))

    def load(*args: Any, **kwargs: Any) -> PolicyUnittestEnv:
        return PolicyUnittestEnv(4, EPISODE, seed=5)

    config = TrainerConfig(
        root_dir=str(tmp_path / "run"),
        algorithm_ctor=lambda observation_spec, action_spec, debug_summaries: make(load(), path),
        mini_batch_size=2,
        **settings,
    )
    trainer = SyncOffPolicyTrainer(config)
    monkeypatch.setattr(trainer, "_create_environment", load)
    says = "BcAlgorithm learns from its whole dataset, in sequences of 1 steps"
    with pytest.raises(ValueError, match=rf"{says}.*TrainerConfig\.mini_batch_length=1\.$"):
        trainer.initialize()


def test_recorded_episodes_are_whole_aligned_and_of_every_member_of_the_batch() -> None:
    tf.random.set_seed(0)
    env = PolicyUnittestEnv(3, EPISODE, seed=0)
    algorithm = make(env, expert(env, 5))
    steps = record_episodes(algorithm, PolicyUnittestEnv(3, EPISODE, seed=1), 5, epsilon_greedy=1.0, random_seed=0)
    assert len(steps.step_type) == 6 * EPISODE
    np.testing.assert_array_equal(steps.step_type.reshape(6, EPISODE), [[0, 1, 1, 1, 1, 2]] * 6)
    for i, step_type in enumerate(steps.step_type):
        if step_type == StepType.FIRST:
            assert (steps.reward[i], steps.discount[i]) == (0.0, 1.0)
        else:
            assert steps.reward[i] == 1.0 - abs(steps.observation[i - 1, 0] - steps.action[i - 1, 0])
            assert steps.discount[i] == float(step_type != StepType.LAST)


def test_recording_gives_up_where_episodes_do_not_end() -> None:
    env = PolicyUnittestEnv(2, EPISODE, seed=0)
    algorithm = make(env, expert(env, 2))
    with pytest.raises(ValueError, match="Of 4 episodes, 2 ended in 6 steps"):
        record_episodes(algorithm, env, 4, max_steps_per_episode=3)


def test_drivers_and_behaviors_refuse_what_does_not_act() -> None:
    env = PolicyUnittestEnv(2, EPISODE, seed=0)
    data = expert(env, 2)
    with pytest.raises(ValueError, match="BcAlgorithm learns from what it is given and does not act: train it without"):
        SyncOffPolicyDriver(env, make(env, data), unroll_length=4)
    grouped = GroupedRows(env)
    behavior = Behavior(lambda **_: make(env, data))
    with pytest.raises(ValueError, match=r"behavior 'agent' is given to a BcAlgorithm, which .* does not act"):
        Behaviors(*networks.specs_of(grouped), {"*": behavior})
