"""The agent's parts together: what does not go together is told as the agent is made, and goals earn in samples too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.networks.nest_map import NestMap
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.value_network import ValueNetwork

from alf.algorithms import minibatch
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.algorithm import Algorithm
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.entropy_target_algorithm import EntropyTargetAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.networks.combining import FlattenAndConcatenate
from tests.algorithms import networks
from tests.algorithms.test_agent import ACTION, OBS, TracingGenerator, experience, make_agent

IN_PARTS = {"own": OBS, "group": OBS}


def dqn(observation_spec: Any, action_spec: Any, debug_summaries: bool) -> Any:
    joined = tf.keras.layers.Concatenate()
    q = QNetwork(observation_spec, action_spec, preprocessing_combiner=joined, fc_layer_params=(4,))
    return DqnAlgorithm(observation_spec, action_spec, q_network=q)


@pytest.mark.parametrize("use_rollout_state", [False, True])
def test_the_reward_of_a_goal_in_a_sample_of_a_memory_is_the_recorded_one(use_rollout_state: bool) -> None:
    """Of every row, the last one too, whether or not what the generator remembers there was stored."""
    agent = make_agent(rl_algorithm_cls=dqn, goal_generator=TracingGenerator(rewards=True))
    agent.use_rollout_state = use_rollout_state
    sample = experience(agent, bootstrap=False)
    rows, extended = minibatch.with_last_row(sample, agent.preprocess_experience)
    assert extended
    np.testing.assert_allclose(rows.reward, sample.reward + sample.rollout_info.goal_generator.reward, rtol=1e-6)


def test_a_memory_without_states_is_learned_from_beside_a_goal_generator_that_rewards() -> None:
    env = PolicyUnittestEnv(4, 5, obs_dim=2, seed=0)
    optimizer = tf.keras.optimizers.legacy.Adam(1e-3)
    agent = Agent(*networks.specs_of(env), dqn, goal_generator=TracingGenerator(rewards=True), optimizer=optimizer)
    driver = SyncOffPolicyDriver(env, agent, unroll_length=7, exp_replayer="uniform", random_seed=0)
    try:
        driver.run()
        agent.train(num_updates=2, mini_batch_size=3, mini_batch_length=2, whole_replay_buffer_training=False)
    finally:
        driver.stop()
    assert np.isfinite(float(agent.last_train_metrics["loss"]))


def test_skills_that_no_goal_generator_gives_are_told_of_as_the_agent_is_made() -> None:
    def made(**parts: Any) -> Agent:
        return make_agent(intrinsic_curiosity_module=DIAYNAlgorithm(3, OBS, hidden_size=4), **parts)

    with pytest.raises(
        ValueError,
        match=r"^DIAYNAlgorithm needs one-hot skills of 3 as goals, got none: set Agent\.goal_generator to a",
    ):
        made()
    with pytest.raises(
        ValueError, match=r"needs one-hot skills of 3 as goals, got BoundedTensorSpec\(shape=\(4,\).*: set"
    ):
        made(goal_generator=RandomCategoricalGoalGenerator(OBS, 4))
    agent = made(goal_generator=RandomCategoricalGoalGenerator(OBS, 3))
    agent.train_from(experience(agent))


class TwoArguments(EntropyTargetAlgorithm):
    """Takes what an agent hands to it as one, as two."""

    def train_step(self, distribution: Any, step_type: Any) -> Any:  # type: ignore[override]
        raise AssertionError("is not called")


class WithoutValid(EntropyTargetAlgorithm):
    """Does not take which rows count."""

    def calc_loss(self, training_info: Any) -> Any:  # type: ignore[override]
        raise AssertionError("is not called")


class Surprise(Algorithm):
    """Of no use as an intrinsic reward."""


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            lambda: {"enforce_entropy_target": True, "entropy_target_cls": TwoArguments},
            r"calls train_step\(\(distribution, step_type\)\) of the TwoArguments that entropy_target_cls made, and it has "
            r"\(distribution: .*, step_type: .*\).*: missing a required argument: 'step_type'\.",
        ),
        (
            lambda: {"enforce_entropy_target": True, "entropy_target_cls": WithoutValid},
            r"calls calc_loss\(training_info, valid\) of the WithoutValid that .*too many positional arguments",
        ),
        (
            lambda: {"enforce_entropy_target": True, "entropy_target_cls": lambda **_: None},
            r"entropy_target_cls made None: derive its class from EntropyTargetAlgorithm",
        ),
        (
            lambda: {"intrinsic_curiosity_module": Surprise()},
            r"intrinsic_curiosity_module is a Surprise: derive its class from alf\.algorithms\.curiosity\.CuriosityAlgorithm",
        ),
    ],
    ids=["two_arguments", "without_valid", "none", "curiosity"],
)
def test_a_part_of_ones_own_that_cannot_be_called_is_told_of_as_the_agent_is_made(parts: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^AgentAlgorithm: .*{told}|^AgentAlgorithm {told}"):
        make_agent(**parts())


def _sees_its_own(**specs: Any) -> Any:
    return ActorCriticAlgorithm(
        specs["observation_spec"], ACTION, *networks.feed_forward(OBS, ACTION, (4,)), actor_field="own"
    )


def _held_back(**specs: Any) -> Any:
    return TracAlgorithm(specs["observation_spec"], ACTION, _sees_its_own)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            lambda: {"goal_generator": RandomCategoricalGoalGenerator(IN_PARTS, 3)},
            r"with a goal_generator .* no part actor_field='own': leave out the goal_generator or the actor_field",
        ),
        (
            lambda: {
                "goal_generator": RandomCategoricalGoalGenerator(IN_PARTS, 3),
                "rl_algorithm_cls": _held_back,
            },
            r"with a goal_generator .* no part actor_field='own'",
        ),
        (
            lambda: {"encoding_network": EncodingNetwork(IN_PARTS, preprocessing_combiner=FlattenAndConcatenate())},
            r"what the encoding_network gives, which has no part actor_field='own': give its layers to the networks",
        ),
    ],
    ids=["goals", "goals_beside_trac", "encoder"],
)
def test_an_actor_field_that_is_not_in_what_the_algorithm_sees_is_told_of_as_the_agent_is_made(
    parts: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=rf"^AgentAlgorithm: .*{told}"):
        Agent(IN_PARTS, ACTION, **{"rl_algorithm_cls": _sees_its_own, **parts()})


@pytest.mark.parametrize("encoded", [False, True])
def test_an_actor_field_of_what_the_algorithm_sees_is_taken(encoded: bool) -> None:
    layers = {name: tf.keras.layers.Dense(2) for name in IN_PARTS}
    seen: list[Any] = []

    def make(**specs: Any) -> Any:
        seen.append(specs["observation_spec"])
        actor, _ = networks.feed_forward(OBS, ACTION, (4,))
        value = ValueNetwork(seen[-1], preprocessing_combiner=FlattenAndConcatenate(), fc_layer_params=(4,))
        return ActorCriticAlgorithm(seen[-1], ACTION, actor, value, actor_field="own")

    agent = Agent(
        IN_PARTS,
        ACTION,
        make,
        encoding_network=NestMap(layers, IN_PARTS) if encoded else None,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )
    assert set(seen[0]) == set(IN_PARTS)
    agent.train_from(experience(agent))
    assert np.isfinite(float(agent.last_train_metrics["loss"]))
