"""What gin files of ALF's earlier TensorFlow releases bind has the effect that it had."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from alf.environments import create_environment
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.utils import common as common
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
ACTION = tensor_spec.BoundedTensorSpec([2], tf.float32, [-1.0, 0.0], [3.0, 4.0])

OBSERVATION = tf.TensorSpec([3], tf.float32)


@gin.configurable(module="test_old_gin_meaning")
class Holder:
    """Has what a binding refers to."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


def _held(reference: str, *bindings: str) -> Any:
    """What `@reference` gives with `bindings` in force."""
    gin_utils.parse_gin([], [*bindings, f"Holder.held = @{reference}"])
    return Holder().held


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("tf.nn.elu", np.where(X > 0, X, np.expm1(X))),
        ("tf.nn.relu", np.maximum(X, 0)),
        ("tf.nn.tanh", np.tanh(X)),
        ("tf.nn.softsign", X / (1 + np.abs(X))),
        ("tf.keras.activations.softsign", X / (1 + np.abs(X))),
        ("tf.nn.swish", X / (1 + np.exp(-X))),
        ("math_ops.swish", X / (1 + np.exp(-X))),
        ("tf.math.exp", np.exp(X)),
        ("clipped_exp", np.exp(np.clip(X, -20, 2))),
    ],
)
def test_functions(reference: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(_held(reference, "import alf.utils.math_ops")(X), expected, rtol=1e-5, atol=1e-6)


def test_functions_with_parameters() -> None:
    leaky = _held("tf.nn.leaky_relu", "tf.nn.leaky_relu.alpha = 0.5")
    np.testing.assert_allclose(leaky(X), np.where(X > 0, X, 0.5 * X), rtol=1e-6)


@pytest.mark.parametrize("prefix", ["", "common."])
def test_transformers(prefix: str) -> None:
    scaling = _held(f"{prefix}reward_scaling", f"{prefix}reward_scaling.scale = 0.01")
    np.testing.assert_allclose(scaling(tf.constant(X)), 0.01 * X, rtol=1e-6)
    gin.clear_config()
    clipping = _held(f"{prefix}reward_clipping", f"{prefix}reward_clipping.minmax = (-0.5, 1)")
    np.testing.assert_allclose(clipping(tf.constant(X)), np.clip(X, -0.5, 1))
    gin.clear_config()
    image = np.array([[0, 51, 255]], np.uint8)
    assert np.asarray(_held(f"{prefix}image_scale_transformer")(tf.constant(image))).tolist() == [
        [-1.0, pytest.approx(-0.6), 1.0]
    ]
    gin.clear_config()
    scale = _held(f"{prefix}image_scale_transformer", f"{prefix}image_scale_transformer.min = 0.0")
    np.testing.assert_allclose(scale(tf.constant(image)), image / 255.0, rtol=1e-5)


@pytest.mark.parametrize("prefix", ["", "losses."])
def test_losses(prefix: str) -> None:
    zeros = tf.zeros_like(X)
    huber = _held(f"{prefix}element_wise_huber_loss", "import alf.utils.losses")
    np.testing.assert_allclose(huber(X, zeros), np.where(abs(X) < 1, 0.5 * X**2, abs(X) - 0.5), rtol=1e-6)
    gin.clear_config()
    np.testing.assert_allclose(_held(f"{prefix}element_wise_squared_loss")(X, zeros), X**2, rtol=1e-6)


def test_scopes_tell_optimisers_apart() -> None:
    rates = {"ac": 1e-3, "actor": 2e-3, "critic": 3e-3, "alpha": 4e-3, "Agent": 5e-3, "rl": 6e-3}
    bindings = [f"{scope}/Adam.learning_rate = {rate}" for scope, rate in rates.items()]
    for scope, rate in rates.items():
        gin.clear_config()
        assert float(_held(f"{scope}/Adam()", "Adam.learning_rate = 1.0", *bindings).learning_rate) == pytest.approx(
            rate
        )


@pytest.mark.parametrize("name", ["TensorSpec", "tf.TensorSpec", "skill/TensorSpec"])
def test_specs_and_layers(name: str) -> None:
    assert _held(f"{name}()", f"{name}.shape = (5, 2)") == tf.TensorSpec((5, 2))
    gin.clear_config()
    layer = "tf.keras.layers.Conv2D"
    conv = _held(f"{layer}()", f"{layer}.filters = 2", f"{layer}.kernel_size = 3", f"{layer}.padding = 'same'")
    assert conv(tf.zeros([1, 5, 5, 1])).shape == (1, 5, 5, 2)
    gin.clear_config()
    assert _held("tf.keras.layers.Concatenate()")([tf.zeros([1, 2]), tf.zeros([1, 3])]).shape == (1, 5)


def _network(name: str, *bindings: str) -> Any:
    made = _held(name, *bindings)(OBSERVATION, ACTION)
    return made(tf.constant(np.random.default_rng(0).normal(size=[4, 3]), tf.float32), step_type=(), network_state=())[
        0
    ]


NORMAL = [
    "ActorDistributionNetwork.fc_layer_params = (7,)",
    "ActorDistributionNetwork.continuous_projection_net = @NormalProjectionNetwork",
]


def test_normal_projection() -> None:
    fixed = _network(
        "ActorDistributionNetwork",
        *NORMAL,
        "NormalProjectionNetwork.init_means_output_factor = 1e-10",
        "NormalProjectionNetwork.std_bias_initializer_value = 0.5",
        "NormalProjectionNetwork.std_transform = @tf.math.exp",
        "NormalProjectionNetwork.scale_distribution = False",
    )
    # Means in the middle of the bounds; the bias is the standard deviation's, before its transform.
    np.testing.assert_allclose(fixed.mean(), [[1.0, 2.0]] * 4, atol=1e-4)
    np.testing.assert_allclose(fixed.stddev(), np.full([4, 2], np.exp(0.5)), rtol=1e-5)
    gin.clear_config()
    varying = _network(
        "ActorDistributionNetwork",
        *NORMAL,
        "NormalProjectionNetwork.state_dependent_std = True",
        "NormalProjectionNetwork.scale_distribution = True",
        "NormalProjectionNetwork.std_transform = @tf.math.exp",
    )
    samples = varying.sample(200).numpy()
    assert np.std(varying.input_distribution.stddev().numpy(), axis=0).min() > 0
    assert (samples >= [-1, 0]).all()
    assert (samples <= [3, 4]).all()


def test_categorical_projection_and_encoding() -> None:
    choices = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3)
    actor = _held(
        "ActorDistributionNetwork",
        "ActorDistributionNetwork.fc_layer_params = (7, 5)",
        "ActorDistributionNetwork.activation_fn = @tf.nn.softsign",
        "ActorDistributionNetwork.discrete_projection_net = @CategoricalProjectionNetwork",
        "CategoricalProjectionNetwork.logits_init_output_factor = 1e-10",
    )(OBSERVATION, choices)
    distribution = actor(tf.ones([2, 3]), step_type=(), network_state=())[0]
    np.testing.assert_allclose(distribution.probs_parameter(), np.full([2, 4], 0.25), atol=1e-4)
    assert [v.shape.as_list() for v in actor.trainable_variables][:3:2] == [[3, 7], [7, 5]]


ALL_OF_TRAINER_CONFIG: dict[str, Any] = {
    "random_seed": 7,
    "num_iterations": 3,
    "num_env_steps": 5000,
    "unroll_length": 16,
    "use_rollout_state": True,
    "use_tf_functions": False,
    "checkpoint_interval": 5,
    "checkpoint_max_to_keep": 2,
    "evaluate": True,
    "eval_interval": 4,
    "summary_interval": 11,
    "update_counter_every_mini_batch": True,
    "summaries_flush_secs": 2,
    "debug_summaries": True,
    "summarize_grads_and_vars": True,
    "summarize_action_distributions": True,
    "num_steps_per_iter": 64,
    "initial_collect_steps": 50,
    "num_updates_per_train_step": 6,
    "mini_batch_length": 4,
    "mini_batch_size": 8,
    "whole_replay_buffer_training": False,
    "clear_replay_buffer": False,
    "num_envs": 2,
}


def test_all_of_trainer_config(tmp_path: pathlib.Path) -> None:
    gin_utils.parse_gin([], [f"TrainerConfig.{name} = {value!r}" for name, value in ALL_OF_TRAINER_CONFIG.items()])
    config = TrainerConfig(root_dir=str(tmp_path))
    assert {name: getattr(config, name) for name in ALL_OF_TRAINER_CONFIG} == ALL_OF_TRAINER_CONFIG


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: pathlib.Path) -> None:
    gin_utils.parse_gin([], ["TrainerConfig.num_env_steps = 5e7"])
    assert TrainerConfig(root_dir=str(tmp_path)).num_env_steps == 50_000_000


# ---- whole files ----

CART_POLE = """
create_environment.env_name = "CartPole-v0"
create_environment.num_parallel_environments = 8
observation_spec = @get_observation_spec()
action_spec = @get_action_spec()
TrainerConfig.algorithm_ctor = @Agent
Agent.action_spec = @get_action_spec()
Agent.gradient_clipping = 10.0
Agent.clip_by_global_norm = True
Agent.reward_shaping_fn = @common.reward_scaling
common.reward_scaling.scale = 0.01
ActorCriticAlgorithm.actor_network = @actor/ActorDistributionNetwork()
ActorCriticAlgorithm.value_network = @value/ValueNetwork()
actor/ActorDistributionNetwork.input_tensor_spec = %observation_spec
actor/ActorDistributionNetwork.output_tensor_spec = %action_spec
actor/ActorDistributionNetwork.fc_layer_params = (100,)
actor/ActorDistributionNetwork.activation_fn = @tf.nn.tanh
actor/ActorDistributionNetwork.discrete_projection_net = @CategoricalProjectionNetwork
CategoricalProjectionNetwork.logits_init_output_factor = 1e-10
value/ValueNetwork.input_tensor_spec = %observation_spec
value/ValueNetwork.fc_layer_params = (100,)
TrainerConfig.debug_summaries = True
TrainerConfig.summarize_grads_and_vars = True
TrainerConfig.summaries_flush_secs = 1
TrainerConfig.checkpoint_interval = 1000000
TrainerConfig.use_tf_functions = True
"""

ACTOR_CRITIC = """
import alf.algorithms.actor_critic_algorithm
import alf.trainers.on_policy_trainer
Agent.rl_algorithm_cls = @ActorCriticAlgorithm
Agent.optimizer = @ac/Adam()
ac/Adam.learning_rate = 1e-3
ActorCriticLoss.entropy_regularization = 1e-4
ActorCriticLoss.gamma = 0.98
ActorCriticLoss.td_error_loss_fn = @element_wise_huber_loss
ActorCriticLoss.use_gae = True
ActorCriticLoss.use_td_lambda_return = True
TrainerConfig.trainer = @on_policy_trainer
TrainerConfig.num_iterations = 2
TrainerConfig.num_steps_per_iter = 160
TrainerConfig.unroll_length = 10
TrainerConfig.evaluate = True
TrainerConfig.eval_interval = 2
"""

PPO = """
import alf.algorithms.ppo_algorithm
import alf.algorithms.ppo_loss
import alf.trainers.off_policy_trainer
Agent.rl_algorithm_cls = @PPOAlgorithm
ActorCriticAlgorithm.loss_class = @PPOLoss
Agent.optimizer = @Adam()
Adam.learning_rate = 1e-3
PPOLoss.entropy_regularization = 1e-4
PPOLoss.gamma = 0.98
PPOLoss.td_error_loss_fn = @losses.element_wise_huber_loss
PPOLoss.normalize_advantages = False
PPOLoss.check_numerics = True
TrainerConfig.trainer = @sync_off_policy_trainer
TrainerConfig.mini_batch_length = 1
TrainerConfig.unroll_length = 32
TrainerConfig.mini_batch_size = 128
TrainerConfig.num_updates_per_train_step = 4
TrainerConfig.num_iterations = 2
TrainerConfig.update_counter_every_mini_batch = True
TrainerConfig.summarize_action_distributions = True
ReplayBuffer.max_length = 2048
"""

PENDULUM = """
import alf.algorithms.sac_algorithm
import alf.algorithms.ddpg_algorithm
import alf.algorithms.trac_algorithm
import alf.environments.suite_gym
import alf.environments.wrappers
import alf.trainers.off_policy_trainer
create_environment.env_name = "Pendulum-v1"
create_environment.num_parallel_environments = 1
create_environment.env_load_fn = @suite_gym.load
suite_gym.load.gym_env_wrappers = (@RandomFirstEpisodeLength,)
RandomFirstEpisodeLength.random_length_range = 200
observation_spec = @get_observation_spec()
action_spec = @get_action_spec()
TrainerConfig.algorithm_ctor = @Agent
Agent.rl_algorithm_cls = @TracAlgorithm
TracAlgorithm.action_dist_clip_per_dim = 0.01
Agent.action_spec = %action_spec
actor/Adam.learning_rate = 5e-4
critic/Adam.learning_rate = 5e-4
alpha/Adam.learning_rate = 5e-4
critic/ddpg.critic_network.CriticNetwork.input_tensor_spec = (%observation_spec, %action_spec)
critic/ddpg.critic_network.CriticNetwork.joint_fc_layer_params = (16, 16)
OneStepTDLoss.td_error_loss_fn = @element_wise_huber_loss
TrainerConfig.trainer = @sync_off_policy_trainer
TrainerConfig.initial_collect_steps = 100
TrainerConfig.whole_replay_buffer_training = False
TrainerConfig.clear_replay_buffer = False
TrainerConfig.num_updates_per_train_step = 1
TrainerConfig.mini_batch_length = 2
TrainerConfig.mini_batch_size = 64
TrainerConfig.unroll_length = 1
TrainerConfig.num_iterations = 2
ReplayBuffer.max_length = 100000
"""

SAC = """
TracAlgorithm.ac_algorithm_cls = @SacAlgorithm
SacAlgorithm.actor_network = @actor/ActorDistributionNetwork()
SacAlgorithm.critic_network = @critic/ddpg.critic_network.CriticNetwork()
SacAlgorithm.actor_optimizer = @actor/Adam()
SacAlgorithm.critic_optimizer = @critic/Adam()
SacAlgorithm.alpha_optimizer = @alpha/Adam()
SacAlgorithm.target_update_tau = 0.005
actor/ActorDistributionNetwork.input_tensor_spec = %observation_spec
actor/ActorDistributionNetwork.output_tensor_spec = %action_spec
actor/ActorDistributionNetwork.fc_layer_params = (16, 16)
actor/ActorDistributionNetwork.continuous_projection_net = @NormalProjectionNetwork
NormalProjectionNetwork.state_dependent_std = True
NormalProjectionNetwork.scale_distribution = True
NormalProjectionNetwork.std_transform = @clipped_exp
"""

DDPG = """
TracAlgorithm.ac_algorithm_cls = @DdpgAlgorithm
DdpgAlgorithm.actor_network = @actor/ddpg.actor_network.ActorNetwork()
DdpgAlgorithm.critic_network = @critic/ddpg.critic_network.CriticNetwork()
DdpgAlgorithm.actor_optimizer = @actor/Adam()
DdpgAlgorithm.critic_optimizer = @critic/Adam()
DdpgAlgorithm.target_update_period = 5
actor/ddpg.actor_network.ActorNetwork.input_tensor_spec = %observation_spec
actor/ddpg.actor_network.ActorNetwork.output_tensor_spec = %action_spec
actor/ddpg.actor_network.ActorNetwork.fc_layer_params = (16, 16)
"""


# On-policy settings first, and then others that win, as ALF's own file had them.
SARSA = """
import alf.algorithms.sarsa_algorithm
import alf.environments.wrappers
import alf.trainers.on_policy_trainer
RandomFirstEpisodeLength.random_length_range = 200
suite_gym.load.env_wrappers = (@RandomFirstEpisodeLength, )
create_environment.env_name = "Pendulum-v1"
create_environment.num_parallel_environments = 128
observation_spec = @get_observation_spec()
action_spec = @get_action_spec()
actor/ddpg.actor_network.ActorNetwork.input_tensor_spec = %observation_spec
actor/ddpg.actor_network.ActorNetwork.output_tensor_spec = %action_spec
critic/ddpg.critic_network.CriticNetwork.input_tensor_spec = (%observation_spec, %action_spec)
critic/ddpg.critic_network.CriticNetwork.joint_fc_layer_params = (16, 16)
SarsaAlgorithm.actor_network = @actor/ddpg.actor_network.ActorNetwork()
SarsaAlgorithm.critic_network = @critic/ddpg.critic_network.CriticNetwork()
SarsaAlgorithm.actor_optimizer = @actor/Adam()
SarsaAlgorithm.critic_optimizer = @critic/Adam()
actor/Adam.learning_rate = 1e-4
critic/Adam.learning_rate = 1e-3
Agent.action_spec = %action_spec
Agent.rl_algorithm_cls = @SarsaAlgorithm
TrainerConfig.trainer = @on_policy_trainer
TrainerConfig.unroll_length = 1
TrainerConfig.num_steps_per_iter = 128
TrainerConfig.algorithm_ctor = @Agent
TrainerConfig.num_iterations = 2
create_environment.num_parallel_environments = 1
import alf.trainers.off_policy_trainer
TrainerConfig.trainer = @sync_off_policy_trainer
TrainerConfig.initial_collect_steps = 200
TrainerConfig.mini_batch_length = 1
TrainerConfig.mini_batch_size = 128
TrainerConfig.num_updates_per_train_step = 1
TrainerConfig.whole_replay_buffer_training = False
TrainerConfig.clear_replay_buffer = False
TrainerConfig.use_rollout_state = True
ReplayBuffer.max_length = 100000
"""


def _parse(tmp_path: pathlib.Path, *texts: str, bindings: Sequence[str] = ()) -> TrainerConfig:
    (tmp_path / "old.gin").write_text("import alf.algorithms.agent\n" + "".join(texts))
    small = ["TrainerConfig.export_saved_model = False", "TrainerConfig.random_seed = 0"]
    gin_utils.parse_gin([str(tmp_path / "old.gin")], [*small, *bindings])
    return TrainerConfig(root_dir=str(tmp_path / "run"))


def _train(tmp_path: pathlib.Path, *texts: str, bindings: Sequence[str] = ()) -> Any:
    trainer = _parse(tmp_path, *texts, bindings=bindings).create_trainer()
    trainer.train()
    return trainer


def test_an_actor_critic_file(tmp_path: pathlib.Path) -> None:
    trainer = _train(tmp_path, CART_POLE, ACTOR_CRITIC, bindings=["TrainerConfig.num_eval_episodes = 1"])
    # 16 of the 160 steps of an iteration are one of the environments', in turns of 10: two updates each.
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (2, 320)
    assert list((tmp_path / "run" / "eval").glob("events.*"))


def test_a_ppo_file(tmp_path: pathlib.Path) -> None:
    trainer = _train(tmp_path, CART_POLE, PPO)
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (2, 2 * 32 * 8)
    # Two minibatches in each of four passes, all of which the counter counts.
    assert trainer.counters.global_steps == 2 * 4 * 2


def test_a_sarsa_file(tmp_path: pathlib.Path) -> None:
    trainer = _train(tmp_path, SARSA)
    assert (trainer.counters.iterations, trainer.counters.env_steps) == (2, 201)


@pytest.mark.parametrize(("text", "wrapped"), [(SAC, "SacAlgorithm"), (DDPG, "DdpgAlgorithm")])
def test_trac_over_an_off_policy_file(tmp_path: pathlib.Path, text: str, wrapped: str) -> None:
    # Trained in tests/examples.
    config = _parse(tmp_path, PENDULUM, text)
    env = create_environment(seed=0)
    algorithm: Any = build_algorithm(config, env)
    algorithm.acting_variables()
    env.close()
    trac = algorithm._rl_algorithm
    assert (type(trac).__name__, type(trac._ac_algorithm).__name__) == ("TracAlgorithm", wrapped)
    assert (config.initial_collect_steps, config.clear_replay_buffer, config.mini_batch_length) == (100, False, 2)
