"""The names and arguments that ALF's gin files bind for the agent and its parts are there, and mean the same."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.rnd_algorithm import RNDAlgorithm
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.utils import common, gin_utils
from alf.utils import external_configurables as external_configurables
from tests.algorithms import networks

COMMON = """
import alf.algorithms.agent
import alf.algorithms.actor_critic_algorithm
import alf.algorithms.actor_critic_loss
observation_spec = @get_observation_spec()
action_spec = @get_action_spec()
ActorCriticAlgorithm.actor_network = @ActorDistributionNetwork()
ActorCriticAlgorithm.value_network = @ValueNetwork()
ActorDistributionNetwork.output_tensor_spec = %action_spec
ActorDistributionNetwork.fc_layer_params = (8,)
ValueNetwork.fc_layer_params = (8,)
Agent.optimizer = @Adam()
Adam.learning_rate = 1e-3
Agent.gradient_clipping = 10.0
Agent.clip_by_global_norm = True
Agent.observation_transformer = @cast_transformer
Agent.reward_shaping_fn = @reward_scaling
reward_scaling.scale = 0.01
ActorCriticLoss.entropy_regularization = 1e-4
"""

PLAIN = """
ActorDistributionNetwork.input_tensor_spec = %observation_spec
ValueNetwork.input_tensor_spec = %observation_spec
"""

ICM = """
import alf.algorithms.icm_algorithm
import alf.algorithms.entropy_target_algorithm
Agent.rl_algorithm_cls = @ActorCriticAlgorithm
Agent.intrinsic_curiosity_module = @ICMAlgorithm()
Agent.extrinsic_reward_coef = 1.0
Agent.intrinsic_reward_coef = 0.5
Agent.enforce_entropy_target = True
EntropyTargetAlgorithm.min_alpha = 0.1
ICMAlgorithm.action_spec = %action_spec
ICMAlgorithm.feature_spec = @icm/TensorSpec()
icm/TensorSpec.shape = (5,)
ICMAlgorithm.encoding_net = @icm/EncodingNetwork()
icm/EncodingNetwork.input_tensor_spec = %observation_spec
icm/EncodingNetwork.fc_layer_params = (5,)
ICMAlgorithm.hidden_size = 16
estimated_entropy.check_numerics = True
estimated_entropy.assume_reparametrization = True
"""

RND = """
import alf.algorithms.rnd_algorithm
Agent.intrinsic_curiosity_module = @RNDAlgorithm()
RNDAlgorithm.encoder_net = @rnd/EncodingNetwork()
RNDAlgorithm.target_net = @rnd2/EncodingNetwork()
RNDAlgorithm.predictor_net = @rnd2/EncodingNetwork()
rnd/EncodingNetwork.input_tensor_spec = %observation_spec
rnd/EncodingNetwork.fc_layer_params = (4,)
rnd2/EncodingNetwork.input_tensor_spec = @rnd2/TensorSpec()
rnd2/TensorSpec.shape = (4,)
rnd2/EncodingNetwork.fc_layer_params = (3,)
RNDAlgorithm.reward_adapt_speed = 8.0
RNDAlgorithm.observation_adapt_speed = 8.0
RNDAlgorithm.observation_spec = %observation_spec
RNDAlgorithm.learning_rate = 1e-4
RNDAlgorithm.clip_value = 5.0
RNDAlgorithm.stacked_frames = False
"""

DIAYN = """
import alf.algorithms.diayn_algorithm
import alf.algorithms.goal_generator
Agent.intrinsic_curiosity_module = @DIAYNAlgorithm()
Agent.goal_generator = @RandomCategoricalGoalGenerator()
Agent.extrinsic_reward_coef = 0.0
RandomCategoricalGoalGenerator.observation_spec = %observation_spec
RandomCategoricalGoalGenerator.num_of_goals = 5
DIAYNAlgorithm.num_of_skills = 5
DIAYNAlgorithm.feature_spec = %observation_spec
DIAYNAlgorithm.hidden_size = 16
skill_spec = @skill/TensorSpec()
skill/TensorSpec.shape = (5,)
ActorDistributionNetwork.input_tensor_spec = [%observation_spec, %skill_spec]
ActorDistributionNetwork.preprocessing_combiner = @tf.keras.layers.Concatenate()
ValueNetwork.input_tensor_spec = [%observation_spec, %skill_spec]
ValueNetwork.preprocessing_combiner = @tf.keras.layers.Concatenate()
"""

TRAC = """
import alf.algorithms.trac_algorithm
Agent.rl_algorithm_cls = @TracAlgorithm
TracAlgorithm.ac_algorithm_cls = @ActorCriticAlgorithm
TracAlgorithm.action_dist_clip_per_dim = 0.01
"""


def _build(tmp_path: pathlib.Path, text: str) -> Agent:
    env = PolicyUnittestEnv(4, 5, seed=0)
    common.set_global_env(env)
    (tmp_path / "old.gin").write_text(COMMON + text)
    gin_utils.parse_gin([str(tmp_path / "old.gin")], [])
    agent = Agent(*networks.specs_of(env))
    agent.acting_variables()
    agent.build_optimizers()
    return agent


def test_icm_and_entropy_target(tmp_path: pathlib.Path) -> None:
    agent = _build(tmp_path, PLAIN + ICM)
    assert isinstance(agent._icm, ICMAlgorithm)
    assert agent._coefs == (1.0, 0.5)
    assert agent._entropy_target is not None
    assert float(tf.exp(agent._entropy_target._min_log_alpha)) == pytest.approx(0.1)


def test_rnd_has_its_own_optimizer(tmp_path: pathlib.Path) -> None:
    agent = _build(tmp_path, PLAIN + RND)
    assert isinstance(agent._icm, RNDAlgorithm)
    rates = sorted(round(float(o.learning_rate), 6) for o, _ in agent.optimized_variables())
    assert rates == [1e-4, 1e-3]


def test_diayn_with_goals(tmp_path: pathlib.Path) -> None:
    agent = _build(tmp_path, DIAYN)
    assert isinstance(agent._icm, DIAYNAlgorithm)
    assert agent._coefs[0] == 0.0


def test_trac_over_actor_critic(tmp_path: pathlib.Path) -> None:
    agent = _build(tmp_path, PLAIN + TRAC)
    assert isinstance(agent._rl_algorithm, TracAlgorithm)
    assert agent._rl_algorithm._limits == pytest.approx((0.01 * 2) ** 0.5)
