"""The agent's parts together: what does not go together is told as the agent is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.networks.nest_map import NestMap
from tf_agents.networks.value_network import ValueNetwork

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.networks.combining import FlattenAndConcatenate
from tests.algorithms import networks
from tests.algorithms.test_agent import ACTION, OBS, experience, make_agent

IN_PARTS = {"own": OBS, "group": OBS}


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
