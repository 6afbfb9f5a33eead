"""The off-policy algorithms in the learner: who trains what, clocks, shells, resets of noise, names of gin files."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import encoding_network
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.exploration import OUNoise
from alf.algorithms.exporting import exportable
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.one_step_loss import OneStepTDLoss, row_weights
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.td3_algorithm import Td3Algorithm
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import ActionTimeStep, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.trainers.initializing import load_weights
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils, rng
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import CONTINUOUS, DISCRETE, adam, make

FLOAT_MAX = float(np.finfo(np.float32).max)
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def environment(name: str, rows: int = 4) -> PolicyUnittestEnv:
    kind = ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete
    return PolicyUnittestEnv(rows, 5, action_type=kind, seed=0)


def driver_of(name: str, algorithm: Any) -> SyncOffPolicyDriver:
    driver = SyncOffPolicyDriver(environment(name), algorithm, 8, exp_replayer="uniform", random_seed=0)
    for _ in range(4):
        driver.run()
    return driver


def train(algorithm: Any, updates: int = 1, length: int = 2) -> None:
    algorithm.train(updates, 16, length, whole_replay_buffer_training=False)


def snapshot(variables: Any) -> list[np.ndarray]:
    return [v.numpy() for v in variables]


def changed(before: list[np.ndarray], variables: Any) -> bool:
    return any((b != v.numpy()).any() for b, v in zip(before, variables, strict=True))


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_every_network_is_trained_by_one_optimizer_and_targets_by_none(name: str) -> None:
    algorithm = make(name, *specs_of(environment(name)))
    owned = [v.ref() for _, variables in algorithm.optimized_variables() for v in variables]
    assert len(owned) == len(set(owned))
    targets = {v.ref() for network in algorithm._target_networks for v in network.variables}
    assert targets
    assert not targets & set(owned)
    expected = {v.ref() for v in algorithm.variables if v.trainable and v.dtype == tf.float32} - targets
    assert set(owned) == expected


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_each_target_network_begins_as_the_one_it_follows_and_moves(name: str) -> None:
    algorithm = make(name, *specs_of(environment(name)), **({} if name == "td3" else {"target_update_period": 2}))
    for followed, target in algorithm._update_targets.pairs:
        np.testing.assert_array_equal(followed.numpy(), target.numpy())
    networks = algorithm._target_networks
    assert {v.ref() for net in networks for v in net.variables} == {v.ref() for _, v in algorithm._update_targets.pairs}
    driver = driver_of(name, algorithm)
    try:
        before = [snapshot(net.variables) for net in networks]
        train(algorithm, 4)
        assert all(changed(b, net.variables) for b, net in zip(before, networks, strict=True))
    finally:
        driver.stop()


@pytest.mark.parametrize("name", ["sac", "ddpg", "dqn"])
def test_targets_move_by_environment_steps_where_these_are_counted(name: str) -> None:
    options = {"target_update_unit": "env_steps", "target_update_period": 96}
    algorithm = make(name, *specs_of(environment(name)), **options)
    driver = driver_of(name, algorithm)
    targets = [v for network in algorithm._target_networks for v in network.variables]
    moved = []
    try:
        for _ in range(4):
            for _ in range(3):
                before = snapshot(targets)
                train(algorithm)
                moved.append(changed(before, targets))
            driver.run()
    finally:
        driver.stop()
    # After 128 steps, 160, 192 and 224: each multiple of 96 moves them once, however many updates there are.
    assert moved == [True, False, False] + 3 * [False] + [True, False, False] + 3 * [False]


@pytest.mark.parametrize("name", ["dqn", "discrete_sac"])
def test_actions_of_few_bytes_are_learned_from_as_others(name: str) -> None:
    loss = []
    for dtype in (tf.int64, tf.uint8, tf.int16):
        obs, act = specs_of(environment(name))
        tf.keras.utils.set_random_seed(1)
        algorithm = make(name, obs, tensor_spec.BoundedTensorSpec(act.shape, dtype, act.minimum, act.maximum))
        spec = algorithm.experience_spec._replace(bootstrap=())
        steps = tf.nest.map_structure(lambda s: tf.ones([2, 3, *s.shape], s.dtype), spec)
        algorithm.train_from(steps._replace(action=tf.cast([[0, 1, 1], [1, 1, 0]], dtype)))
        loss.append(float(algorithm.last_train_metrics["loss"]))
    assert loss[1:] == pytest.approx([loss[0]] * 2)


@pytest.mark.parametrize("name", ["sac", "ddpg", "dqn"])
def test_training_on_samples_is_traced_once_and_moves_targets(name: str) -> None:
    algorithm = make(name, *specs_of(environment(name)), target_update_period=2)
    traced = []
    calc_loss = algorithm.calc_loss
    algorithm.calc_loss = lambda info: traced.append(1) or calc_loss(info)
    driver = driver_of(name, algorithm)
    targets = [v for network in algorithm._target_networks for v in network.variables]
    try:
        before = snapshot(targets)
        train(algorithm)
        assert not changed(before, targets)
        train(algorithm)
        assert changed(before, targets)
        driver.run()
        train(algorithm, 5)
    finally:
        driver.stop()
    assert len(traced) == 1


@pytest.mark.parametrize("name", ["sac", "ddpg", "dqn"])
def test_target_networks_and_their_clock_come_back_from_a_checkpoint(name: str, tmp_path: pathlib.Path) -> None:
    def new() -> tuple[Any, SyncOffPolicyDriver]:
        algorithm = make(name, *specs_of(environment(name)), target_update_period=3)
        algorithm.build_optimizers()
        return algorithm, driver_of(name, algorithm)

    (first, second), drivers = zip(new(), new(), strict=True)
    train(first, 4)
    kept = snapshot(v for network in first._target_networks for v in network.variables)
    path = tf.train.Checkpoint(first).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(second).read(path).assert_consumed()
    targets = [v for network in second._target_networks for v in network.variables]
    for before, variable in zip(kept, targets, strict=True):
        np.testing.assert_array_equal(before, variable.numpy())
    # In mid-period: the first of the updates to come moves nothing, the second one does.
    train(second, 1)
    assert not changed(kept, targets)
    train(second, 1)
    assert changed(kept, targets)
    for driver in drivers:
        driver.stop()


def test_td3_moves_actor_and_targets_at_every_second_update_only() -> None:
    algorithm = make("td3", *specs_of(environment("td3")))
    driver = driver_of("td3", algorithm)
    actor, critic = algorithm._actor_network.variables, algorithm._critic_networks[1].variables
    targets = [v for network in algorithm._target_networks for v in network.variables]
    moved = []
    try:
        for _ in range(4):
            before = [snapshot(group) for group in (actor, critic, targets)]
            train(algorithm)
            moved.append([changed(b, group) for b, group in zip(before, (actor, critic, targets), strict=True)])
    finally:
        driver.stop()
    assert moved == [[False, True, False], [True, True, True]] * 2


def test_td3_that_begins_with_the_weights_of_another_run_counts_from_0(tmp_path, caplog) -> None:
    """With a clock of one kind taken along, and one of another not, targets moved where the actor did not."""
    runs = [make("td3", *specs_of(environment("td3"))) for _ in range(2)]
    driver = driver_of("td3", runs[0])
    train(runs[0])
    driver.stop()
    with caplog.at_level("WARNING"):
        load_weights(runs[1], tf.train.Checkpoint(algorithm=runs[0]).save(str(tmp_path / "ckpt")))
    assert "Not taken" not in caplog.text
    assert [v.name for v in runs[1].variables if v.dtype.is_integer and v.numpy().any()] == []
    for mine, other in zip(runs[1].trainable_variables, runs[0].trainable_variables, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_td3_needs_two_optimizers() -> None:
    with pytest.raises(ValueError, match="two objects"):
        obs, act = specs_of(environment("td3"))
        one = adam(1e-3)
        Td3Algorithm(obs, act, None, None, actor_optimizer=one, critic_optimizer=one)


@pytest.mark.parametrize("name", ["sac", "ddpg", "td3", "dqn", "c51"])
def test_an_agent_is_a_shell_of_it(name: str) -> None:
    """With an encoding network, which both the actor's and the critics' losses train."""
    obs, act = specs_of(environment(name))
    # No units that may be dead from the beginning.
    encoder = encoding_network.EncodingNetwork(obs, fc_layer_params=(6,), activation_fn=tf.nn.tanh)
    agent = Agent(
        obs,
        act,
        rl_algorithm_cls=lambda observation_spec, action_spec, debug_summaries: make(
            name, observation_spec, action_spec
        ),
        encoding_network=encoder,
        optimizer=adam(1e-2),
    )
    driver = driver_of(name, agent)
    try:
        before = snapshot(encoder.variables)
        train(agent)
        assert changed(before, encoder.variables)
        # Env steps reach the algorithm within.
        assert int(agent._rl_algorithm._env_steps) == 4 * 8 * 4
    finally:
        driver.stop()


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_prioritised_replay_learns_what_was_wrong(name: str) -> None:
    algorithm = make(name, *specs_of(environment(name)))
    driver = SyncOffPolicyDriver(environment(name), algorithm, 8, exp_replayer="prioritized", random_seed=0)
    try:
        for _ in range(4):
            driver.run()
        train(algorithm, 4)
    finally:
        driver.stop()
    assert np.isfinite(float(algorithm.last_train_metrics["loss"]))


def test_ou_noise_of_acting_is_carried_for_each_row() -> None:
    obs, act = specs_of(environment("ddpg"))
    algorithm = make("ddpg", obs, act, exploration=OUNoise(0.1, 0.0))
    time_step = ActionTimeStep(
        tf.fill([3], int(StepType.MID)), tf.zeros([3]), tf.ones([3]), tf.zeros([3, 1]), tf.zeros([3, 1]), tf.range(3)
    )
    state = tf.nest.map_structure(lambda s: tf.zeros([3, *s.shape]), algorithm.train_state_spec)
    with rng.scope(tf.constant([1, 2])):
        first = algorithm.rollout(time_step, state, 2)
        second = algorithm.rollout(time_step, first.state, 2)
    noise = first.state.noise.numpy()[:, 0]
    assert len(set(noise)) == 3
    middle = algorithm.predict(time_step).action.numpy()[:, 0]
    np.testing.assert_allclose(first.action.numpy()[:, 0], np.clip(middle + noise, 0, 1), rtol=1e-5)
    np.testing.assert_allclose(
        second.action.numpy()[:, 0], np.clip(middle + second.state.noise.numpy()[:, 0], 0, 1), rtol=1e-5
    )
    assert algorithm.predict_state_spec == ()
    assert algorithm.learning_state_spec == ()


def test_wrong_actions_are_refused() -> None:
    obs, discrete = specs_of(environment("dqn"))
    box = specs_of(environment("ddpg"))[1]
    with pytest.raises(ValueError, match="needs discrete actions"):
        DqnAlgorithm(obs, box, None)
    with pytest.raises(ValueError, match="needs continuous actions"):
        make("ddpg", obs, discrete)
    with pytest.raises(ValueError, match="explores by values"):
        make("dqn", obs, discrete, exploration=OUNoise())


def test_n_step_needs_longer_sequences() -> None:
    algorithm = make("dqn", *specs_of(environment("dqn")), critic_loss=OneStepTDLoss(0.9, n_step=3))
    driver = driver_of("dqn", algorithm)
    try:
        with pytest.raises(ValueError, match="at least 4"):
            train(algorithm, 1, 2)
        train(algorithm, 2, 4)
    finally:
        driver.stop()


def test_sac_keeps_a_temperature_that_nobody_trains() -> None:
    algorithm = make("sac", *specs_of(environment("sac")), alpha_optimizer=None, initial_log_alpha=-1.0)
    driver = driver_of("sac", algorithm)
    try:
        train(algorithm, 3)
    finally:
        driver.stop()
    assert float(algorithm._log_alpha) == -1.0


OFF_POLICY_EXAMPLES = (
    "sac_pendulum",
    "sac_cart_pole",
    "ddpg_pendulum",
    "td3_pendulum",
    "dqn_cart_pole",
    "sarsa_pendulum",
)


@pytest.mark.parametrize("name", OFF_POLICY_EXAMPLES)
def test_shipped_examples_make_their_algorithm(name: str) -> None:
    gin.clear_config()
    try:
        gin_utils.parse_gin([str(EXAMPLES / f"{name}.gin")], [])
        env = create_environment(num_parallel_environments=2, seed=0)
        algorithm = build_algorithm(TrainerConfig(root_dir="unused"), env)
        assert algorithm.acting_variables()
        env.close()
    finally:
        gin.clear_config()


def test_an_exported_policy_knows_nothing_of_the_noise() -> None:
    policy = exportable(make("ddpg", *specs_of(environment("ddpg"))))
    assert policy.state == ()
    assert set(policy.functions) == {"action"}


def test_sac_says_which_critic_its_actions_need() -> None:
    """Before anything is collected, by the structure of what the critic takes."""
    continuous, discrete = specs_of(environment("sac")), specs_of(environment("discrete_sac"))
    actor = make("sac", *continuous)._actor_network
    critic = make("discrete_sac", *discrete)._critic_networks[0]
    with pytest.raises(
        ValueError, match=r"with continuous actions needs a critic of \(observation, action.*got QNetwork"
    ):
        SacAlgorithm(*continuous, actor, critic)


@pytest.mark.parametrize(
    ("name", "argument", "value", "said"),
    [
        ("c51", "critic_loss", OneStepTDLoss(0.5, n_step=3), "C51 has its own loss: set gamma and n_step"),
        ("sarsa", "critic_loss", OneStepTDLoss(0.5), "set gamma"),
        ("td3", "ou_stddev", 0.9, "set exploration = @OUNoise()"),
        ("td3", "ou_damping", 0.3, "set exploration = @OUNoise()"),
        ("td3", "target_update_period", 3, "set actor_update_period"),
        ("td3", "target_update_unit", "env_steps", "set actor_update_period"),
    ],
)
def test_arguments_without_effect_are_refused(name: str, argument: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"Algorithm takes no {argument}, got .*: .*{re.escape(said)}"):
        make(name, *specs_of(environment(name)), **{argument: value})


@pytest.mark.parametrize(
    ("name", "binding"),
    [
        ("c51", "DqnAlgorithm.critic_loss = 'a loss'"),
        ("c51", "OneStepTDLoss.n_step = 3"),
        ("c51", "OneStepTDLoss.gamma = 0.5"),
        ("td3", "DdpgAlgorithm.ou_stddev = 0.9"),
        ("td3", "DdpgAlgorithm.ou_damping = 0.3"),
        ("td3", "DdpgAlgorithm.target_update_period = 3"),
        ("td3", "DdpgAlgorithm.target_update_unit = 'env_steps'"),
        ("sarsa", "DdpgAlgorithm.critic_loss = 'a loss'"),
    ],
)
def test_bindings_of_the_parent_without_effect_are_listed(name: str, binding: str) -> None:
    gin.parse_config(binding)
    make(name, *specs_of(environment(name)))
    assert gin_utils.unused_bindings() == [binding.partition(" =")[0]]


def of_steps(name: str, n_step: int) -> Any:
    if name == "trac":
        return TracAlgorithm(*specs_of(environment("sac")), ac_algorithm_cls=lambda **kwargs: of_steps("sac", n_step))
    n_steps = {"n_step": n_step} if name == "c51" else {"critic_loss": OneStepTDLoss(0.9, n_step=n_step)}
    return make(name, *specs_of(environment(name)), **n_steps)


LOOKING_AHEAD = pytest.mark.parametrize("name", ["dqn", "c51", "sac", "trac"])


@LOOKING_AHEAD
def test_samples_too_short_for_the_targets_are_told_before_any_is_drawn(name: str) -> None:
    algorithm = of_steps(name, 3)
    sizes = {"mini_batch_size": 8, "mini_batch_length": 4, "whole_replay_buffer_training": False}
    algorithm.memory_uses(sizes)
    with pytest.raises(ValueError, match=r"sequences of 4 steps or more and mini_batch_length=3 is shorter"):
        algorithm.memory_uses({**sizes, "mini_batch_length": 3})


def test_what_hands_out_everything_is_refused_for_samples_before_anything_is_collected() -> None:
    algorithm = of_steps("dqn", 1)
    sizes = {"mini_batch_size": 8, "mini_batch_length": 2, "whole_replay_buffer_training": False}
    algorithm.set_exp_replayer("one_time", 2)
    with pytest.raises(ValueError, match="hands out everything and cannot sample"):
        algorithm.memory_uses(sizes)
    assert algorithm.memory_uses({}) == {}


@pytest.mark.parametrize("name", ["sac", "ddpg", "sarsa"])
def test_an_optimizer_that_would_count_twice_is_refused(name: str) -> None:
    one = adam(1e-3)
    algorithm = make(name, *specs_of(environment(name)), actor_optimizer=one, critic_optimizer=one)
    with pytest.raises(ValueError, match="one optimizer object is given for several sets of networks"):
        algorithm.build_optimizers()


@pytest.mark.parametrize("name", ["ddpg", "sarsa", "td3"])
def test_nests_of_actions_are_refused_in_a_sentence(name: str) -> None:
    obs, act = specs_of(environment(name))
    with pytest.raises(ValueError, match=r"takes a single action, got \{.*use PPO"):
        make(name, obs, {"a": act, "b": act})


@pytest.mark.parametrize("algorithm", [DqnAlgorithm, SacAlgorithm])
def test_several_choices_at_once_are_refused_in_a_sentence(algorithm: Any) -> None:
    several = tensor_spec.BoundedTensorSpec([2], tf.int64, 0, 2, "action")
    with pytest.raises(ValueError, match="takes one discrete choice at a time, and action is of 2: use PPO"):
        algorithm.check_nesting(several)


def test_a_binding_of_the_loss_counts_where_the_algorithm_says_nothing() -> None:
    gin.bind_parameter("OneStepTDLoss.debug_summaries", True)
    for name, more in (("ddpg", {"critic_loss": None}), ("sarsa", {})):
        assert make(name, *specs_of(environment(name)), **more)._critic_loss._debug_summaries


def in_shell(shell: str, name: str) -> Any:
    specs = specs_of(environment(name))
    inside = lambda **kwargs: make(name, *specs)  # noqa: E731
    return {"agent": lambda: Agent(*specs, inside), "trac": lambda: TracAlgorithm(*specs, inside)}[shell]()


@pytest.mark.parametrize("shell", ["agent", "trac"])
def test_it_is_said_which_algorithm_wants_longer_samples(shell: str) -> None:
    algorithm = in_shell(shell, "ddpg")
    with pytest.raises(ValueError, match=r"^DdpgAlgorithm learns from sequences of 2 steps or more"):
        algorithm.memory_uses(
            {"mini_batch_size": 8, "mini_batch_length": 1, "whole_replay_buffer_training": False},
        )


@pytest.mark.parametrize("shell", ["agent", "trac"])
def test_a_single_step_of_sarsa_is_a_transition(shell: str) -> None:
    algorithm = in_shell(shell, "sarsa")
    driver = driver_of("sarsa", algorithm)
    sizes = {"mini_batch_size": 16, "mini_batch_length": 1, "whole_replay_buffer_training": False}
    assert algorithm.memory_uses(sizes)[None].length == 2
    assert algorithm.steps_of_an_update(sizes) == 16
    before = snapshot(algorithm.trainable_variables)
    train(algorithm, length=1)
    assert changed(before, algorithm.trainable_variables)
    driver.stop()


@LOOKING_AHEAD
@pytest.mark.parametrize(("n_step", "length"), [(1, 2), (1, 5), (3, 4), (3, 6)])
def test_an_update_counts_the_steps_that_it_trains(name: str, n_step: int, length: int) -> None:
    algorithm = of_steps(name, n_step)
    trained = tf.math.count_nonzero(row_weights(tf.fill([length, 8], StepType.MID), n_step))
    sizes = {"mini_batch_size": 8, "mini_batch_length": length}
    assert algorithm.steps_of_an_update(sizes) == int(trained) == 8 * (length - n_step)
    obs, act = specs_of(environment("dqn" if name in ("dqn", "c51") else "sac"))
    curiosity = ICMAlgorithm(act, obs, hidden_size=4)
    agent = Agent(obs, act, lambda **_: of_steps(name, n_step), intrinsic_curiosity_module=curiosity)
    assert agent.steps_of_an_update(sizes) == int(trained)


@pytest.mark.parametrize("noise", [{"target_policy_noise": -1.0}, {"target_policy_noise_clip": float("nan")}])
def test_td3_refuses_noise_below_zero(noise: dict[str, float]) -> None:
    (value,) = noise.values()
    with pytest.raises(ValueError, match=rf"target_policy_noise and target_policy_noise_clip >= 0; got .*{value}"):
        make("td3", *specs_of(environment("td3")), **noise)


# As alf's specs have infinity, a half-line, and as specs of one's own may have it.
@pytest.mark.parametrize(("low", "high"), [(-FLOAT_MAX, FLOAT_MAX), (0.0, FLOAT_MAX), (-np.inf, np.inf)])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_without_bounds_are_refused(name: str, low: float, high: float) -> None:
    obs, act = specs_of(environment(name))
    unbounded = tensor_spec.BoundedTensorSpec(act.shape, tf.float32, low, high)
    with pytest.raises(ValueError, match=re.escape(f"needs bounded actions, got {low:g} to {high:g}: ")):
        make(name, obs, unbounded)


def test_a_nest_of_actions_is_bounded_in_all_its_parts() -> None:
    obs, act = specs_of(environment("sac"))
    actor, critic = make("sac", obs, act)._actor_network, make("sac", obs, act)._critic_networks[0]
    with pytest.raises(ValueError, match="needs bounded actions"):
        SacAlgorithm(obs, {"a": act, "b": tf.TensorSpec([2], tf.float32)}, actor, critic)
