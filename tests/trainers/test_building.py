"""What is said of observations when an algorithm is built."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tf_agents.agents.ddpg.actor_network import ActorNetwork as TfAgentsActorNetwork
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.categorical_q_network import CategoricalQNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.value_network import ValueNetwork

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.agent import Agent
from alf.algorithms.categorical_dqn_algorithm import CategoricalDqnAlgorithm
from alf.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.ensemble_algorithm import EnsembleAlgorithm
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.environments import create_environment
from alf.networks.actor_network import ActorNetwork
from alf.networks.combining import FlattenAndConcatenate
from alf.networks.critic_network import CriticNetwork
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig


class Shows(gymnasium.Env):
    """Has an observation space, and is never reset."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space


def _said(space: spaces.Space, logged: list[str]) -> list[str]:
    """What is logged when something is built for observations of a space."""

    def nothing(**kwargs: Any) -> Any:
        raise KeyError("enough")

    env = create_environment(lambda: Shows(space), num_parallel_environments=2)
    with pytest.raises((KeyError, ValueError), match="enough"):
        build_algorithm(TrainerConfig(root_dir="", algorithm_ctor=nothing), env)
    env.close()
    return logged


@pytest.mark.parametrize(
    ("space", "numbers"),
    [
        (spaces.Discrete(16), "0 to 15"),
        (spaces.Discrete(3, start=5), "5 to 7"),
        (spaces.MultiDiscrete([2, 4]), "0 to 3"),
    ],
)
def test_numbers_that_are_taken_for_quantities_are_told(space: spaces.Space, numbers: str, logged: list[str]) -> None:
    assert _said(space, logged) == [
        f"Networks take the numbers of the observation, {numbers}, for quantities: have OneHot of "
        "alf.environments.wrappers, in suite_gym.load.gym_env_wrappers, show them as vectors, or a layer of your network."
    ]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2),
        spaces.MultiBinary(4),
        spaces.Box(0, 255, (4, 4, 1), np.uint8),
        spaces.Box(-1.0, 1.0, (3,), np.float32),
        spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Discrete(9)}),
    ],
)
def test_other_observations_are_not(space: spaces.Space, logged: list[str]) -> None:
    assert _said(space, logged) == []


def _built(space: spaces.Space, make: Any, **settings: Any) -> Any:
    class Acting(Shows):
        action_space = space

    env = create_environment(lambda: Acting(spaces.Box(-1.0, 1.0, (3,))), num_parallel_environments=2)
    try:
        return build_algorithm(TrainerConfig(root_dir="", algorithm_ctor=make, **settings), env)
    finally:
        env.close()


def _values(observation_spec: Any, action_spec: Any, debug_summaries: bool, **settings: Any) -> Any:
    network = QNetwork(observation_spec, action_spec)
    return DqnAlgorithm(observation_spec, action_spec, network, debug_summaries=debug_summaries, **settings)


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ("use_rollout_state", "use_rollout_state"),
        ("debug_summaries", "_debug_summaries"),
        ("summarize_grads_and_vars", "_summarize_grads_and_vars"),
        ("summarize_action_distributions", "_summarize_action_distributions"),
    ],
)
def test_an_algorithm_has_the_settings_of_its_run(setting: str, kept: str) -> None:
    for value in (False, True):
        assert getattr(_built(spaces.Discrete(2), _values, **{setting: value}), kept) is value


@pytest.mark.parametrize("setting", ["summarize_grads_and_vars", "summarize_action_distributions"])
def test_an_algorithm_reports_what_it_was_made_to_report_whatever_its_run_leaves_as_it_is(setting: str) -> None:
    both = {"summarize_grads_and_vars", "summarize_action_distributions"}
    algorithm = _built(spaces.Discrete(2), functools.partial(_values, **{setting: True}))
    (other,) = both - {setting}
    assert (getattr(algorithm, f"_{setting}"), getattr(algorithm, f"_{other}")) == (True, False)
    algorithm = _built(spaces.Discrete(2), functools.partial(_values, **{setting: True}), **{other: True})
    assert (getattr(algorithm, f"_{setting}"), getattr(algorithm, f"_{other}")) == (True, True)


def _actor_critic(observation_spec: Any, action_spec: Any, debug_summaries: bool, **settings: Any) -> Any:
    actor = ActorDistributionNetwork(observation_spec, action_spec)
    value = ValueNetwork(observation_spec)
    return ActorCriticAlgorithm(observation_spec, action_spec, actor, value, **settings)


@pytest.mark.parametrize("setting", ["summarize_grads_and_vars", "summarize_action_distributions"])
@pytest.mark.parametrize(
    ("inside", "around"),
    [
        (_values, lambda make: functools.partial(Agent, rl_algorithm_cls=make)),
        (_values, lambda make: functools.partial(EnsembleAlgorithm, members=[_values, make])),
        (_actor_critic, lambda make: functools.partial(TracAlgorithm, ac_algorithm_cls=make)),
    ],
)
def test_what_one_inside_was_made_to_report_its_shell_reports(inside: Any, around: Any, setting: str) -> None:
    kept = ["_summarize_grads_and_vars", "_summarize_action_distributions"]
    shell = _built(spaces.Discrete(2), around(functools.partial(inside, **{setting: True})))
    assert [getattr(shell, name) for name in kept] == [name == f"_{setting}" for name in kept]
    shell = _built(spaces.Discrete(2), around(inside))
    assert [getattr(shell, name) for name in kept] == [False, False]


def _judged(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
    actor = TfAgentsActorNetwork(observation_spec, action_spec)
    critic = CriticNetwork((observation_spec, action_spec))
    return DdpgAlgorithm(observation_spec, action_spec, actor, critic)


def test_actions_that_a_network_does_not_take_are_told() -> None:
    def values(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        return QNetwork(observation_spec, action_spec)

    def deviations(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        project = functools.partial(NormalProjectionNetwork, state_dependent_std=True, scale_distribution=True)
        network = ActorDistributionNetwork(observation_spec, action_spec, continuous_projection_net=project)
        return network.create_variables()

    def one_part(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        return TfAgentsActorNetwork(observation_spec, action_spec)

    with pytest.raises(ValueError, match=r"take actions of one part, got .*: use PPO, or SAC with"):
        _built(spaces.Dict({"x": _VECTOR, "y": _VECTOR}), one_part)
    with pytest.raises(ValueError, match=r"takes one discrete choice at a time, got .*: use PPO"):
        _built(spaces.MultiDiscrete([3, 3]), values)
    for nested in (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}),
        spaces.Tuple((spaces.Discrete(2), _VECTOR)),
    ):
        with pytest.raises(ValueError, match=r"takes one discrete choice at a time, got .*: use PPO"):
            _built(nested, values)
    with pytest.raises(
        ValueError, match=r"action has a part without numbers, got .*: have the environment leave it out"
    ):
        _built(_NOTHING, _judged)
    with pytest.raises(
        ValueError, match=r"(?s)actions of one axis .*: bind NormalProjectionNetwork.state_dependent_std = F"
    ):
        _built(spaces.Box(-1.0, 1.0, (2, 3)), deviations)


def test_actions_that_a_network_does_not_take_are_told_where_it_is_run_first() -> None:
    """A recurrent actor is not run when it is made."""

    def recurrent(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        actor = ActorDistributionRnnNetwork(
            observation_spec, action_spec, lstm_size=(2,), continuous_projection_net=TanhNormalProjectionNetwork
        )
        return SacAlgorithm(observation_spec, action_spec, actor, CriticNetwork((observation_spec, action_spec)))

    with pytest.raises(ValueError, match=r"(?s)TanhNormalProjectionNetwork always, got .*give the actions .* one axis"):
        _built(spaces.Box(-1.0, 1.0, ()), recurrent)


_VECTOR = spaces.Box(-1.0, 1.0, (2,))
_NOTHING = spaces.Box(-1.0, 1.0, (0,))


def _built_for(space: spaces.Space, **layers: Any) -> Any:
    def make(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        return DqnAlgorithm(observation_spec, action_spec, QNetwork(observation_spec, action_spec, **layers))

    env = create_environment(lambda: Shows(space), num_parallel_environments=2)
    try:
        return build_algorithm(TrainerConfig(root_dir="", algorithm_ctor=make), env)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        (spaces.Dict({"a": _VECTOR, "b": _VECTOR}), r"\['a', 'b'\]"),
        (spaces.Dict({"a": _VECTOR}), r"\['a'\]"),
        (spaces.Tuple((_VECTOR,)), r"\[0\]"),
        (spaces.Dict({"a": _VECTOR, "none": spaces.Dict({})}), r"\['a', 'none'\]"),
    ],
)
def test_parts_that_a_network_does_not_join_are_told(space: spaces.Space, parts: str) -> None:
    """One part too, which is no tensor yet."""
    with pytest.raises(ValueError, match=rf"has the parts {parts}, .* bind its preprocessing_combiner"):
        _built_for(space)
    _built_for(space, preprocessing_combiner=FlattenAndConcatenate())


def test_a_combiner_that_takes_no_parts_is_told() -> None:
    """Keras' own joins lists, and fails of a dict in words of its own."""
    with pytest.raises(ValueError, match=r"\['a', 'b'\], .* bind its preprocessing_combiner = @FlattenAndConcatenate"):
        _built_for(spaces.Dict({"a": _VECTOR, "b": _VECTOR}), preprocessing_combiner=tf.keras.layers.Concatenate())


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (_NOTHING, r"The observation has no numbers, of shape \(0,\)"),
        (
            spaces.Dict({"a": _VECTOR, "b": spaces.Tuple((_NOTHING,))}),
            r"observation's part 'b.0' has no numbers, .*\(0,\)",
        ),
    ],
)
def test_a_part_without_numbers_is_told(space: spaces.Space, told: str) -> None:
    with pytest.raises(ValueError, match=told + ".*: have the environment leave it out"):
        _built_for(space, preprocessing_combiner=FlattenAndConcatenate())


def test_actions_of_few_bits_or_one_choice_are_learned_as_others() -> None:
    def values(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        return DqnAlgorithm(observation_spec, action_spec, QNetwork(observation_spec, action_spec))

    def actions(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        networks = ActorNetwork(observation_spec, action_spec), CriticNetwork((observation_spec, action_spec))
        return DdpgAlgorithm(observation_spec, action_spec, *networks)

    def chances(observation_spec: Any, action_spec: Any, **_: Any) -> Any:
        return CategoricalDqnAlgorithm(
            observation_spec, action_spec, CategoricalQNetwork(observation_spec, action_spec)
        )

    for space, make in (
        (spaces.Box(0, 255, (1,), np.uint8), values),
        (spaces.Box(0, 3, (1,), np.uint8), chances),
        (spaces.MultiDiscrete([3]), chances),
        (spaces.Box(-1.0, 1.0, (2,), np.float16), actions),
    ):
        assert _built(space, make).experience_spec.action.shape == space.shape


def test_a_predict_that_evaluations_cannot_call_is_told() -> None:
    class Own(RLAlgorithm):
        def predict(self, time_step: Any, state: Any) -> Any:  # type: ignore[override]
            raise AssertionError("is not called")

    with pytest.raises(ValueError, match=r"Own: predict is predict\(time_step, state, epsilon_greedy\), and has"):
        _built(spaces.Discrete(2), lambda observation_spec, action_spec, **_: Own(observation_spec, action_spec))
