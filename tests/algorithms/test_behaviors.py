"""Behaviors: a single agent as on the plain path, bit for bit; frozen and trained ones; rows, seeds, settings."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs import tensor_spec

from alf.algorithms.agent import Agent
from alf.algorithms.agent_rows import one_of
from alf.algorithms.behavior import Behavior
from alf.algorithms.behaviors import Behaviors
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.exploration import EpsilonGreedy, LinearSchedule
from alf.algorithms.normalization import RewardNormalizer
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.algorithms.predictions import get_predictions
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import suite_agents
from alf.environments.agents import stacked_space
from alf.environments.grouped_rows import GroupedRows
from alf.environments.spaces import action_spec
from alf.environments.utils import create_environment
from alf.replay.experience_replayer import OnetimeExperienceReplayer
from alf.replay.prioritized_replay import PrioritizedReplay
from alf.replay.uniform_replay import UniformReplay
from tests.algorithms.networks import recurrent
from tests.algorithms.off_policy import adam, make
from tests.algorithms.recurrent_off_policy import make as make_recurrent
from tests.algorithms.test_action_masks import algorithm_of as masked_algorithm
from tests.algorithms.test_action_masks import environment as masked_environment
from tests.trainers.small_run import make_algorithm


def _cart_poles(rows):
    return create_environment("CartPole-v1", num_parallel_environments=rows, seed=7)


def _algorithm(env, ctor):
    tf.keras.utils.set_random_seed(3)
    return ctor(tensor_spec.from_spec(env.observation_spec()), tensor_spec.from_spec(env.action_spec()))


def _all_for_one(observation_spec, action_spec, debug_summaries=False):
    return Behaviors(observation_spec, action_spec, {"*": Behavior(make_algorithm)}, debug_summaries)


def _run(env, ctor, mode):
    algorithm = _algorithm(env, ctor)
    driver = AsyncOffPolicyDriver(
        [env], algorithm, num_actor_queues=0, unroll_length=5, mode=mode, random_seed=11, stepping="graph"
    )
    driver.start()
    try:
        for _ in range(6):
            driver.run_async()
            algorithm.train(num_updates=2, mini_batch_size=4)
    finally:
        driver.stop()
    return algorithm


@pytest.mark.parametrize("mode", ["sync", "lockstep"])
def test_a_single_agent_is_trained_bit_for_bit_as_on_the_plain_path(mode):
    plain = _run(_cart_poles(8), make_algorithm, mode)
    composed = _run(GroupedRows(_cart_poles(8)), _all_for_one, mode).by_name["agent"]
    assert len(plain.variables) == len(composed.variables)
    for mine, theirs in zip(plain.variables, composed.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.name)


def test_agents_that_share_a_behavior_are_rows_of_one_batch():
    """Eight rows in groups of four: the same steps, the same rewards, the same weights as the plain batch."""
    plain = _run(_cart_poles(8), make_algorithm, "sync")
    composed = _run(GroupedRows(_cart_poles(8), 4), _all_for_one, "sync").by_name["agent"]
    for mine, theirs in zip(plain.variables, composed.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.name)


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3), spaces.MultiDiscrete([3]), spaces.MultiDiscrete([3, 2]), spaces.Box(-1.0, 2.0, (1,))],
)
def test_specs_of_one_of_several_agents_are_those_of_one_alone(space):
    """Also whether bounds are arrays, which CategoricalQNetwork does not take of a single choice."""
    alone = action_spec(space)
    one = one_of(action_spec(stacked_space(space, 2)))
    assert (one.shape, one.dtype) == (alone.shape, alone.dtype)
    for mine, theirs in ((one.minimum, alone.minimum), (one.maximum, alone.maximum)):
        np.testing.assert_array_equal(mine, theirs)
        if alone.dtype == np.int64:
            assert np.shape(mine) == np.shape(theirs)


def _dqn(observation_spec, action_spec, debug_summaries=False):
    return make("dqn", observation_spec, action_spec)


def _pursuit(rows=4):
    return create_environment("pursuit", suite_agents.load, num_parallel_environments=rows, seed=5)


_PAIR = {
    "chaser": Behavior(make_algorithm),
    "runner": Behavior(
        _dqn, whole_replay_buffer_training=False, num_updates=3, mini_batch_size=16, mini_batch_length=2
    ),
}


def _train(env, behaviors, iterations=4, **arguments):
    tf.keras.utils.set_random_seed(3)
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, behaviors))
    algorithm.set_default_replayer({})
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11)
    first = {name: [v.numpy() for v in child.trainable_variables] for name, child in algorithm.by_name.items()}
    try:
        for _ in range(iterations):
            driver.run()
            algorithm.train(**arguments)
    finally:
        driver.stop()
    return algorithm, first


def _changed(algorithm, first, name):
    now = [v.numpy() for v in algorithm.by_name[name].trainable_variables]
    return [not np.array_equal(a, b) for a, b in zip(first[name], now, strict=True)]


def test_behaviors_have_algorithms_replayers_and_sizes_of_their_own():
    algorithm, first = _train(_pursuit(), _PAIR, num_updates=2, mini_batch_size=4)
    chaser, runner = algorithm.by_name["chaser"], algorithm.by_name["runner"]
    assert all(_changed(algorithm, first, "chaser"))
    assert all(_changed(algorithm, first, "runner"))
    assert isinstance(chaser.exp_replayer, OnetimeExperienceReplayer)
    assert isinstance(runner.exp_replayer, UniformReplay)
    # Four environments with three chasers and one runner, four segments of eight steps.
    assert runner.exp_replayer.total_steps == 4 * 4 * 8
    assert int(algorithm.iterations) == int(chaser.iterations) == int(runner.iterations) == 4
    assert {key.split("/")[0] for key in algorithm.last_train_metrics} == {"chaser", "runner"}
    assert int(chaser._seed) == 11 != int(runner._seed), "the first as if it were alone, the others otherwise"


@pytest.mark.parametrize(
    ("trainer", "own", "replayer", "held"),
    [
        ((True, True), (None, None), OnetimeExperienceReplayer, 8),
        ((True, True), (None, False), UniformReplay, 24),
        ((True, True), (True, False), UniformReplay, 24),
        ((True, False), (None, None), UniformReplay, 24),
        ((True, False), (True, True), OnetimeExperienceReplayer, 8),
        ((False, False), (None, None), UniformReplay, 24),
        ((False, False), (True, None), OnetimeExperienceReplayer, 8),
        ((False, False), (True, False), UniformReplay, 24),
        ((False, True), (None, None), UniformReplay, 24),
    ],
)
def test_what_a_behavior_keeps_follows_from_how_it_is_trained(trainer, own, replayer, held):
    names = ("whole_replay_buffer_training", "clear_replay_buffer")
    behavior = Behavior(make_algorithm, **dict(zip(names, own, strict=True)))
    env = _pursuit(1)
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, {"*": behavior}))
    algorithm.set_default_replayer(dict(zip(names, trainer, strict=True)))
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11)
    try:
        for _ in range(3):
            driver.run()
    finally:
        driver.stop()
    runner = algorithm.by_name["runner"].exp_replayer
    assert isinstance(runner, replayer)
    assert runner.replay_all().step_type.shape.num_elements() == held


_SAMPLES = {"whole_replay_buffer_training": False, "mini_batch_size": 4, "mini_batch_length": 4}


def _recurrent_dqn(observation_spec, action_spec, debug_summaries=False):
    return make_recurrent("dqn", observation_spec, action_spec)


def _recurrent_ppo(observation_spec, action_spec, debug_summaries=False):
    actor, value = recurrent(observation_spec, action_spec)
    optimizer = tf.keras.optimizers.legacy.Adam(1e-3)
    return PPOAlgorithm(
        observation_spec, action_spec, actor_network=actor, value_network=value, loss_class=PPOLoss, optimizer=optimizer
    )


@pytest.mark.parametrize("chaser", [_PAIR["chaser"], Behavior(_recurrent_ppo, whole_replay_buffer_training=True)])
def test_a_burn_in_is_of_the_behaviors_that_learn_recurrent_networks_from_samples(chaser):
    env = _pursuit()
    pair = {"chaser": chaser, "runner": Behavior(_recurrent_dqn, **_SAMPLES)}
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, pair))
    algorithm.burn_in_length = 2
    assert [algorithm.by_name[name].burn_in_length for name in ("chaser", "runner")] == [0, 2]
    algorithm.set_default_replayer({})
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11)
    try:
        driver.run()
        # All of the chasers' steps, and of each sampled sequence the one between the burn-in and the last.
        assert algorithm.train() == 4 * 3 * 8 + 4
    finally:
        driver.stop()


def test_a_burn_in_for_nobody_who_learns_is_refused():
    pair = {"chaser": Behavior(_recurrent_dqn, trained=False), "runner": Behavior(_dqn, **_SAMPLES)}
    env = _pursuit()
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, pair))
    algorithm.burn_in_length = 2
    algorithm.set_default_replayer({})
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11)
    driver.stop()
    with pytest.raises(ValueError, match="burn_in_length=2 is for recurrent networks"):
        algorithm.memory_uses({})


def test_behaviors_that_share_an_optimizer_are_refused():
    """Each of its steps would count for both, and a schedule run twice as fast."""
    optimizer = tf.keras.optimizers.legacy.Adam(1e-3)

    def make_dqn(observation_spec, action_spec, debug_summaries):
        return make("dqn", observation_spec, action_spec, optimizer=optimizer)

    shared = Behavior(make_dqn)
    with pytest.raises(ValueError, match="behaviors 'chaser' and 'runner' share one optimizer"):
        _algorithm(_pursuit(1), lambda *specs: Behaviors(*specs, {"*": shared}))
    # One that does not learn makes no steps.
    frozen = dataclasses.replace(shared, trained=False)
    _algorithm(_pursuit(1), lambda *specs: Behaviors(*specs, {"chaser": frozen, "*": shared}))


_SHARING = {
    "network": lambda obs, act, held: DqnAlgorithm(
        obs, act, held(lambda: QNetwork(obs, act, fc_layer_params=(4,))), optimizer=adam(1e-3)
    ),
    "schedule": lambda obs, act, held: make(
        "dqn", obs, act, exploration=held(lambda: EpsilonGreedy(LinearSchedule(1.0, 0.1, 100)))
    ),
    "statistics": lambda obs, act, held: Agent(
        obs,
        act,
        rl_algorithm_cls=lambda observation_spec, action_spec, **_: make("dqn", observation_spec, action_spec),
        reward_normalizer=held(RewardNormalizer),
    ),
    "numbers": lambda obs, act, held: make("dqn", obs, act, exploration=held(lambda: EpsilonGreedy(0.1))),
}


def _sharing(what, left, right):
    """Behaviors with optimisers of their own that hold one and the same object."""
    kept = []

    def held(make_it):
        if not kept:
            kept.append(make_it())
        return kept[0]

    def ctor(observation_spec, action_spec, debug_summaries=False):
        return _SHARING[what](observation_spec, action_spec, held)

    load = functools.partial(suite_agents.load, behaviors={"player_0": "left", "player_1": "right"})
    env = create_environment("rock_paper_scissors", load, num_parallel_environments=1)
    both = {"left": Behavior(ctor, trained=left), "right": Behavior(ctor, trained=right)}
    try:
        return _algorithm(env, lambda *specs: Behaviors(*specs, both))
    finally:
        env.close()


@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("what", "variable"), [("network", "kernel"), ("schedule", "clock"), ("statistics", "")])
def test_behaviors_that_share_what_training_changes_are_refused(what, variable, trained):
    """A network moved by two optimisers, a clock that runs twice as fast, statistics that count each other's steps."""
    said = (
        rf"behaviors 'left' and 'right' share the variable '.*{variable}.*', which training one would change for both"
    )
    with pytest.raises(ValueError, match=said):
        _sharing(what, *trained)


@pytest.mark.parametrize(("what", "trained"), [("numbers", (True, True)), ("network", (False, False))])
def test_behaviors_may_share_what_no_training_changes(what, trained):
    _sharing(what, *trained)


def test_a_behavior_that_does_not_learn_needs_no_optimizer():
    def without(observation_spec, action_spec, debug_summaries):
        return make("dqn", observation_spec, action_spec, optimizer=None, gradient_clipping=0.5)

    frozen = {**_PAIR, "chaser": Behavior(without, trained=False)}
    algorithm, first = _train(_pursuit(), frozen)
    assert not any(_changed(algorithm, first, "chaser"))
    assert all(_changed(algorithm, first, "runner"))
    algorithm.build_optimizers()
    assert algorithm.updates_made() == 4 * 3

    learning = _algorithm(_pursuit(1), lambda *specs: Behaviors(*specs, {**_PAIR, "chaser": Behavior(without)}))
    with pytest.raises(ValueError, match=r"The behavior 'chaser' cannot learn so: .* has no optimizer for \["):
        learning.build_optimizers()


def test_the_replayer_of_a_driver_is_not_for_a_behavior_that_does_not_learn():
    """Whose algorithm may be one that it refuses; one of its own it has."""
    for own, kind in ((None, OnetimeExperienceReplayer), ("uniform", UniformReplay)):
        frozen = dataclasses.replace(_PAIR["chaser"], trained=False, exp_replayer=own)
        env = _pursuit()
        algorithm = _algorithm(env, lambda *specs, frozen=frozen: Behaviors(*specs, {**_PAIR, "chaser": frozen}))
        driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, exp_replayer="prioritized", random_seed=11)
        driver.stop()
        assert type(algorithm.by_name["chaser"].exp_replayer) is kind
        assert isinstance(algorithm.by_name["runner"].exp_replayer, PrioritizedReplay)


def test_training_one_behavior_leaves_all_variables_of_another_as_they_are():
    frozen = {**_PAIR, "chaser": dataclasses.replace(_PAIR["chaser"], trained=False)}
    algorithm, first = _train(_pursuit(), frozen)
    assert not any(_changed(algorithm, first, "chaser"))
    assert all(_changed(algorithm, first, "runner"))
    assert int(algorithm.by_name["chaser"].iterations) == 0


def test_two_runs_of_one_seed_are_bit_identical():
    both, _ = _train(_pursuit(), _PAIR, num_updates=2, mini_batch_size=4)
    again, _ = _train(_pursuit(), _PAIR, num_updates=2, mini_batch_size=4)
    for mine, theirs in zip(both.variables, again.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.name)


def test_a_run_is_as_far_and_as_reproducible_as_its_behaviors(monkeypatch):
    algorithm, _ = _train(_pursuit(), _PAIR, iterations=2, num_updates=2, mini_batch_size=4)
    made = {name: child.updates_made() for name, child in algorithm.by_name.items()}
    assert made["runner"] == 2 * 3
    assert made["chaser"] > made["runner"], "several minibatches in each update"
    assert algorithm.updates_made() == made["chaser"]
    assert algorithm.reproducible
    monkeypatch.setattr(type(algorithm.by_name["runner"]), "reproducible", False)
    assert algorithm.by_name["chaser"].reproducible
    assert not algorithm.reproducible


def test_a_memory_that_holds_too_little_yet_is_filled_first():
    few = {**_PAIR, "runner": dataclasses.replace(_PAIR["runner"], mini_batch_size=100)}
    algorithm, _ = _train(_pursuit(), few, iterations=4, num_updates=1, mini_batch_size=4)
    # 32 steps an iteration in four streams: a hundred sequences of two are there at the fourth.
    assert [int(algorithm.by_name[name].iterations) for name in ("chaser", "runner")] == [4, 1]


def test_who_has_got_nothing_new_is_not_trained():
    algorithm, _ = _train(_pursuit(), _PAIR, iterations=2, num_updates=1, mini_batch_size=4)
    assert algorithm.train(num_updates=1, mini_batch_size=4) == 0
    assert [int(child.iterations) for child in algorithm.by_name.values()] == [2, 2]


@pytest.mark.parametrize("name", ["unroll_length", "num_updates", "mini_batch_size", "mini_batch_length"])
def test_sizes_of_a_behavior_are_whole_numbers_of_at_least_one(name):
    for value in (0, -1, 2.5, "3", True):
        with pytest.raises(ValueError, match=f"Behavior.{name}={value!r} must be a whole number of at least 1"):
            Behavior(make_algorithm, **{name: value})
    made = getattr(Behavior(make_algorithm, **{name: 1e2}), name)
    assert (made, type(made)) == (100, int)


@pytest.mark.parametrize(
    ("behaviors", "said"),
    [
        ({"chaser": Behavior(make_algorithm)}, r"says nothing of 'runner': .* '\*'"),
        ({"chasr": Behavior(make_algorithm)}, "names 'chasr', .* did you mean 'chaser'"),
        ({"*": Behavior()}, "'chaser' has algorithm_ctor=None"),
        ({"*": Behavior(algorithm_ctor=PPOLoss)}, "chaser/Behavior.algorithm_ctor=PPOLoss makes no algorithm"),
    ],
)
def test_a_wrong_mapping_of_behaviors_is_one_sentence(behaviors, said):
    env = _pursuit(1)
    with pytest.raises(ValueError, match=said):
        _algorithm(env, lambda *specs: Behaviors(*specs, behaviors))
    env.close()


def test_a_behavior_reports_what_it_or_the_run_asks_for():
    def reporting(observation_spec, action_spec, debug_summaries=False):
        return make("dqn", observation_spec, action_spec, summarize_grads_and_vars=True)

    env = _pursuit(1)
    pair = {"chaser": Behavior(reporting), "runner": Behavior(_dqn)}
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, pair))
    env.close()

    def settings():
        return [
            (child._summarize_grads_and_vars, child._summarize_action_distributions)
            for child in algorithm.by_name.values()
        ]

    assert settings() == [(True, False), (False, False)]
    algorithm.set_summary_settings()
    assert settings() == [(True, False), (False, False)]
    algorithm.set_summary_settings(summarize_action_distributions=True)
    assert settings() == [(True, True), (False, True)]
    algorithm.set_summary_settings(summarize_grads_and_vars=False)
    assert settings() == [(False, True), (False, True)]


def test_an_environment_with_one_agent_is_refused():
    env = _cart_poles(1)
    with pytest.raises(ValueError, match=r"single agent: set TrainerConfig\.algorithm_ctor"):
        _algorithm(env, _all_for_one)
    env.close()


def test_random_heat_up_of_agents_takes_allowed_actions_only():
    env = GroupedRows(masked_environment(16, 0), 4)
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, {"*": Behavior(_masked_dqn)}))
    driver = SyncOffPolicyDriver(env, algorithm, 12, exp_replayer="uniform", random_seed=1)
    try:
        driver.gather(at_random=True)  # the environment refuses any other
    finally:
        driver.stop()


def _masked_dqn(observation_spec, action_spec, debug_summaries=False):
    return masked_algorithm("dqn")


def test_networks_of_behaviors_can_be_asked():
    env = _pursuit(3)
    algorithm = _algorithm(env, lambda *specs: Behaviors(*specs, _PAIR))
    observation = tf.nest.map_structure(tf.constant, env.reset().observation)
    values = get_predictions(algorithm, observation, "chaser/value")
    assert values.shape == (3, 3)
    own = observation["chaser"]["observation"][:, 1]
    alone = get_predictions(algorithm.by_name["chaser"], own, "value")
    np.testing.assert_allclose(values[:, 1], alone, rtol=1e-5)
    env.close()
