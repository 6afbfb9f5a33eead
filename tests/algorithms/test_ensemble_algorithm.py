"""Several algorithms that decide for one agent: who decides, what each learns, and what is refused."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network, q_rnn_network
from tf_agents.specs import BoundedTensorSpec

from alf.algorithms.agent import Agent
from alf.algorithms.bc_algorithm import BcAlgorithm
from alf.algorithms.dqn_algorithm import DqnAlgorithm
from alf.algorithms.ensemble_algorithm import EnsembleAlgorithm, in_turn, majority, mean
from alf.algorithms.entropy_target_algorithm import EntropyTargetAlgorithm
from alf.algorithms.exploration import EpsilonGreedy
from alf.algorithms.exporting import exportable
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.data_structures import StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.utils.common import zeros_from_spec
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import adam, make
from tests.algorithms.recurrent_off_policy import make as recurrent

EPISODE = 5
TWO = ("ddpg", "td3")


def environment(rows: int = 4, kind: ActionType = ActionType.Discrete) -> PolicyUnittestEnv:
    return PolicyUnittestEnv(rows, EPISODE, action_type=kind, seed=0)


def member(name: str, made: list[Any] | None = None, **settings: Any) -> Callable[..., Any]:
    """Makes the algorithm `name`, and puts it into `made`."""

    def constructor(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
        del debug_summaries
        algorithm = make(name, observation_spec, action_spec, **settings)
        if made is not None:
            made.append(algorithm)
        return algorithm

    return constructor


def ensemble(env: Any, *members: Callable[..., Any], **settings: Any) -> EnsembleAlgorithm:
    return EnsembleAlgorithm(*specs_of(env), members=members, **settings)


def collect_and_train(env: Any, algorithm: Any) -> None:
    """A segment, and an update on samples of it."""
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="uniform", random_seed=5)
    try:
        driver.run()
        algorithm.train(1, 8, 2, whole_replay_buffer_training=False)
    finally:
        driver.stop()


def always(action: int) -> Callable[..., Any]:
    """Makes a DQN that always takes `action`."""

    def constructor(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
        algorithm = make("dqn", observation_spec, action_spec, epsilon_greedy=0.0, layers=())
        for variable in algorithm._q_network.variables:
            variable.assign(
                tf.zeros_like(variable) if variable.shape.rank > 1 else tf.one_hot(action, variable.shape[0])
            )
        return algorithm

    return constructor


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_majority_is_what_most_say_and_else_what_the_first_of_as_many_says(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(3)
    votes = draw.integers(0, 3, (5, 200, *shape))
    expected = []
    for row in range(200):
        said = [int(vote) for vote in votes[:, row].reshape(5)]
        counts = collections.Counter(said)
        most = max(counts.values())
        expected.append(next(vote for vote in said if counts[vote] == most))
    got = majority([tf.constant(vote) for vote in votes]).numpy()
    assert got.dtype == votes.dtype
    assert got.shape == (200, *shape)
    np.testing.assert_array_equal(got.reshape(-1), expected)


def test_means_and_turns_are_those_of_a_loop_over_rows() -> None:
    draw = np.random.default_rng(4)
    proposed = draw.normal(size=(3, 50, 2)).astype(np.float32)
    number = draw.integers(0, 3, 50).astype(np.int32)
    nests = [{"a": tf.constant(p), "b": tf.constant(p[:, 0])} for p in proposed]
    average, turns = mean(nests), in_turn(nests, tf.constant(number))
    for row in range(50):
        np.testing.assert_allclose(
            average["a"][row], (proposed[0, row] + proposed[1, row] + proposed[2, row]) / 3, rtol=1e-5
        )
        np.testing.assert_array_equal(turns["a"][row], proposed[number[row], row])
        np.testing.assert_array_equal(turns["b"][row], proposed[number[row], row, 0])


def test_a_mean_of_bounds_is_no_further_out() -> None:
    bounds = np.random.default_rng(5).uniform(0.1, 3.0, 500).astype(np.float32)
    for number in range(2, 11):
        for bound in (bounds, -bounds):
            np.testing.assert_array_equal(mean([tf.constant(bound)] * number), bound)


@pytest.mark.parametrize(
    ("decision", "said", "expected"),
    [
        ("single", (0, 1, 0), lambda step: 1),
        ("majority", (1, 0, 1), lambda step: 1),
        ("round_robin", (1, 0, 0), lambda step: int(step % 3 == 0)),
    ],
)
def test_what_is_done_is_what_was_decided(decision: str, said: tuple[int, ...], expected: Callable[[int], int]) -> None:
    env = environment()
    algorithm = ensemble(env, *(always(action) for action in said), decision=decision, decider=1)
    batches: list[Any] = []
    algorithm.add_experience_observer(batches.append)
    driver = SyncOffPolicyDriver(env, algorithm, 7, exp_replayer="uniform", random_seed=0)
    try:
        for _ in range(3):
            driver.run()
    finally:
        driver.stop()
    types, actions = (np.concatenate([getattr(b, f).numpy()[0] for b in batches]) for f in ("step_type", "action"))
    seen = 0
    for row in range(types.shape[1]):
        step = 0
        for kind, action in zip(types[:, row], actions[:, row], strict=True):
            step = 0 if kind == StepType.FIRST else step + 1
            if kind != StepType.LAST:
                assert int(action) == expected(step), (row, step)
                seen += 1
    assert seen > 40


def test_in_evaluation_the_members_decide_as_they_evaluate() -> None:
    env = environment(8, ActionType.Continuous)
    made: list[Any] = []
    algorithm = ensemble(env, member("td3", made), member("sac", made), member("ddpg", made), decision="mean")
    time_step = algorithm.transform_timestep(zeros_from_spec(algorithm.time_step_spec, 8))
    time_step = time_step._replace(observation=tf.random.normal(time_step.observation.shape, seed=1))
    alone = [m.predict(time_step, zeros_from_spec(m.predict_state_spec, 8)).action.numpy() for m in made]
    assert not np.allclose(alone[0], alone[1])
    together = algorithm.predict(time_step, zeros_from_spec(algorithm.predict_state_spec, 8)).action
    np.testing.assert_allclose(together, sum(alone) / 3, rtol=1e-5, atol=1e-6)


def test_the_members_evaluate_with_the_chance_that_was_asked_for() -> None:
    algorithm = ensemble(environment(64), always(1), always(1), decision="majority")
    time_step = algorithm.transform_timestep(zeros_from_spec(algorithm.time_step_spec, 64))
    for epsilon, drawn in ((0.0, {1}), (1.0, {0, 1})):
        step = algorithm.predict(time_step, zeros_from_spec(algorithm.predict_state_spec, 64), epsilon)
        assert set(step.action.numpy().ravel()) == drawn


def _recurrent(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
    network = q_rnn_network.QRnnNetwork(
        observation_spec, action_spec, input_fc_layer_params=(8,), lstm_size=(4,), output_fc_layer_params=None
    )
    return DqnAlgorithm(
        observation_spec,
        action_spec,
        network,
        critic_loss=OneStepTDLoss(0.9),
        optimizer=adam(1e-2),
        target_update_period=2,
    )


def _three_steps(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
    network = q_network.QNetwork(observation_spec, action_spec, fc_layer_params=(16,))
    loss = OneStepTDLoss(0.9, n_step=3)
    return DqnAlgorithm(
        observation_spec, action_spec, network, critic_loss=loss, optimizer=adam(1e-2), target_update_period=2
    )


@pytest.mark.parametrize("other", [_three_steps, _recurrent], ids=["three_steps", "recurrent"])
def test_each_member_learns_what_it_would_learn_alone(other: Callable[..., Any]) -> None:
    """From the same steps, with the states that it had where it is recurrent."""
    env = environment()
    specs = specs_of(env)
    constructors = [member("dqn", target_update_period=2), other]
    algorithm = EnsembleAlgorithm(*specs, members=constructors, decision="round_robin")
    alone = [make_one(*specs) for make_one in constructors]
    for one in (algorithm, *alone):
        one.use_rollout_state = True
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="uniform", random_seed=5)
    for number, (one, inside) in enumerate(zip(alone, algorithm.members, strict=True)):
        for variable, value in zip(one.variables, inside.variables, strict=True):
            variable.assign(value)
        one.set_exp_replayer("uniform", env.batch_size)
        one.set_seed(5)
        algorithm.add_experience_observer(
            lambda exp, one=one, number=number: one.observe(exp._replace(state=exp.state.members[number]))
        )
    algorithm.set_seed(5)
    try:
        for _ in range(3):
            driver.run()
    finally:
        driver.stop()
    before = [[v.numpy() for v in one.trainable_variables] for one in alone]
    for one in (algorithm, *alone):
        one.train(6, 16, 4, whole_replay_buffer_training=False)
    for one, values in zip(alone, before, strict=True):
        moved = [np.abs(v.numpy() - b).max() for v, b in zip(one.trainable_variables, values, strict=True)]
        assert max(moved) > 1e-2
    for number, (one, inside) in enumerate(zip(alone, algorithm.members, strict=True)):
        for variable, inside_variable in zip(one.variables, inside.variables, strict=True):
            if variable is not one.iterations and "seed" not in variable.name:
                np.testing.assert_allclose(inside_variable, variable, atol=2e-6, err_msg=f"{number}: {variable.name}")
    total = sum(float(one.last_train_metrics["loss"]) for one in alone)
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(total, rel=1e-4)
    for name, value in alone[0].last_train_metrics.items():
        if name not in ("loss", "grad_norm"):
            assert float(algorithm.last_train_metrics[f"member0/{name}"]) == pytest.approx(
                float(value), rel=1e-3, abs=1e-5
            )


@pytest.mark.parametrize("decision", ["mean", "single", "round_robin"])
def test_what_critics_remember_follows_what_was_decided(decision: str) -> None:
    """By each critic itself, a row at a time, from the observation and the action that were recorded."""
    env = environment(kind=ActionType.Continuous)
    members = [
        lambda name=name, **specs: recurrent(name, specs["observation_spec"], specs["action_spec"]) for name in TWO
    ]
    algorithm = EnsembleAlgorithm(*specs_of(env), members=members, decision=decision)
    algorithm.use_rollout_state = True
    recorded: list[Any] = []
    algorithm.add_experience_observer(recorded.append)
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="uniform", random_seed=5)
    try:
        driver.run()
    finally:
        driver.stop()
    rows = tf.nest.map_structure(lambda x: x[0], recorded[0]._replace(bootstrap=()))
    for number, inside in enumerate(algorithm.members):
        critics = rows.state.members[number].critics[0]
        for t in range(7):
            seen = rows.observation[t], rows.action[t]
            before = tf.nest.map_structure(lambda s, t=t: s[t], critics)
            _, after = inside._critic_networks[0](seen, step_type=rows.step_type[t], network_state=before)
            goes_on = rows.step_type[t + 1].numpy() != StepType.FIRST
            for mine, theirs in zip(tf.nest.flatten(after), tf.nest.flatten(critics), strict=True):
                np.testing.assert_allclose(theirs[t + 1][goes_on], mine[goes_on], atol=1e-6)


def test_one_that_does_not_decide_does_not_act() -> None:
    env = environment()
    made: list[Any] = []
    algorithm = ensemble(env, member("dqn", made), member("c51", made), decider=1)
    read = {v.ref() for v in algorithm.acting_variables()}
    assert read & {v.ref() for v in made[1].variables}
    assert not read & {v.ref() for v in made[0].variables}


def test_priorities_are_the_mean_of_the_members() -> None:
    env = environment()
    made: list[Any] = []
    algorithm = ensemble(env, member("dqn", made), member("c51", made), decision="majority")
    driver = SyncOffPolicyDriver(env, algorithm, 8, exp_replayer="prioritized", random_seed=5)
    given: list[Any] = []
    try:
        driver.run()
        for one in made:
            calc_loss = one.calc_loss
            one.calc_loss = lambda info, f=calc_loss: (loss := f(info), given.append(loss.priority))[0]
        whole = algorithm.calc_loss
        algorithm.calc_loss = lambda info: (loss := whole(info), given.append(loss.priority))[0]  # type: ignore[method-assign]
        tf.config.run_functions_eagerly(True)
        algorithm.train(1, 8, 2, whole_replay_buffer_training=False)
    finally:
        tf.config.run_functions_eagerly(False)
        driver.stop()
    np.testing.assert_allclose(given[2], (given[0].numpy() + given[1].numpy()) / 2, rtol=1e-6)
    assert not np.allclose(given[0], given[1])


def test_a_model_of_a_round_robin_has_whose_turn_it_is_as_state() -> None:
    env = environment()
    policy = exportable(ensemble(env, always(1), always(0), decision="round_robin"))
    assert policy.state == ("state_turn",)
    inputs = {leaf.name: tf.zeros([2, *leaf.shape], leaf.dtype) for leaf in policy.inputs}
    inputs["step_type"] = tf.constant([StepType.FIRST, StepType.MID])
    inputs["state_turn"] = tf.constant([1, 1])
    done = policy.functions["action"](inputs)
    assert done["action"].numpy().reshape(-1).tolist() == [1, 0]
    assert done["state_turn"].numpy().tolist() == [1, 0]


def test_without_a_state_a_round_robin_begins_with_the_first() -> None:
    env = environment()
    algorithm = ensemble(env, always(1), always(0), decision="round_robin")
    step = algorithm.predict(zeros_from_spec(algorithm.time_step_spec, 2))
    assert step.action.numpy().reshape(-1).tolist() == [1, 1]
    assert step.state.turn.numpy().tolist() == [1, 1]


def test_norms_of_all_members_are_reported() -> None:
    env = environment(4, ActionType.Continuous)
    algorithm = ensemble(env, member("td3"), member("td3"), decision="mean")
    algorithm.set_summary_settings(summarize_grads_and_vars=True)
    collect_and_train(env, algorithm)
    norms = [name for name in algorithm.last_train_metrics if name.startswith("grad_norm/")]
    assert len(norms) == sum(len(variables) for _, variables in algorithm.optimized_variables())


def test_an_entropy_target_of_several_distributions_is_refused() -> None:
    env = environment(4, ActionType.Continuous)
    agent = Agent(
        *specs_of(env),
        rl_algorithm_cls=lambda **specs: EnsembleAlgorithm(**specs, members=[member("sac")] * 2, decision="mean"),
        optimizer=adam(1e-3),
        enforce_entropy_target=True,
        entropy_target_cls=EntropyTargetAlgorithm,
    )
    with pytest.raises(ValueError, match="needs one action_distribution in the info of EnsembleAlgorithm, which has 2"):
        collect_and_train(env, agent)


def test_it_stands_inside_an_agent() -> None:
    env = environment()
    agent = Agent(
        *specs_of(env),
        rl_algorithm_cls=lambda **specs: EnsembleAlgorithm(**specs, members=[member("dqn")] * 3, decision="majority"),
    )
    collect_and_train(env, agent)
    assert {"member0/epsilon", "member2/epsilon"} <= set(agent.last_train_metrics)
    assert set(agent._rl_algorithm.outputs(zeros_from_spec(agent.time_step_spec, 2), ())) == {
        f"member{i}/q_values" for i in range(3)
    }


_CONTINUOUS = BoundedTensorSpec((2,), tf.float32, -1.0, 1.0)
_DISCRETE = BoundedTensorSpec((), tf.int64, 0, 2)
_SHARED = EpsilonGreedy(0.1)
_MASKED = [member("dqn"), member("dqn", observation_and_action_constraint_splitter=lambda seen: (seen, seen))]


@pytest.mark.parametrize(
    ("action_spec", "members", "settings", "message"),
    [
        (_DISCRETE, [], {}, r"members=\[\] must be a list of what makes algorithms"),
        (_DISCRETE, member("dqn"), {}, "must be a list of what makes algorithms"),
        (_DISCRETE, [tf.Module()], {}, "without parentheses"),
        (_DISCRETE, [member("dqn")], {"decision": "vote"}, "'vote' is none: use one of 'single'"),
        (_DISCRETE, [member("dqn")], {"decider": 1}, "decider=1 is the number of no member: these are 0 to 0"),
        (_DISCRETE, [member("dqn")], {"decider": -1}, "decider=-1 is the number of no member"),
        (_DISCRETE, [member("dqn")], {"decider": 0.0}, "decider=0.0 is the number of no member"),
        (_DISCRETE, [lambda **specs: None], {}, "None was made where an algorithm was to be"),
        (_DISCRETE, [member("dqn", exploration=_SHARED)] * 2, {}, "members share an exploration"),
        (_DISCRETE, _MASKED, {}, "members see different masks of actions"),
        (_DISCRETE, [member("dqn")], {"decision": "mean"}, "use decision='majority'"),
        (_CONTINUOUS, [member("sac")], {"decision": "majority"}, "use decision='mean'"),
        (_CONTINUOUS, [member("sac"), member("sarsa")], {}, "SarsaAlgorithm is not made to learn from what others"),
        (_DISCRETE, [OneStepTDLoss], {}, "EnsembleAlgorithm.members=OneStepTDLoss makes no algorithm"),
        (_DISCRETE, [member("dqn", reward_shaping_fn=tf.sign)], {}, "does not use the reward_shaping_fn"),
    ],
)
def test_what_cannot_decide_together_is_told(
    action_spec: Any, members: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EnsembleAlgorithm(tf.TensorSpec([3]), action_spec, members=members, **settings)


@pytest.mark.parametrize("of_ensemble", [True, False])
def test_members_that_share_a_network_are_refused(of_ensemble: bool) -> None:
    """They would make no different mistakes, whoever trains them."""
    network = q_network.QNetwork(tf.TensorSpec([3]), _DISCRETE, fc_layer_params=(4,))

    def shared(**specs: Any) -> DqnAlgorithm:
        return DqnAlgorithm(**specs, q_network=network, optimizer=None if of_ensemble else adam(1e-3))

    with pytest.raises(ValueError, match=r"the members 0 and 2 share the variable '.*kernel:0' and would decide alike"):
        EnsembleAlgorithm(
            tf.TensorSpec([3]),
            _DISCRETE,
            members=[shared, member("dqn"), shared],
            optimizer=adam(1e-3) if of_ensemble else None,
        )


def test_one_that_does_not_act_is_told() -> None:
    class Offline(BcAlgorithm):
        def __init__(self, observation_spec: Any, action_spec: Any, debug_summaries: bool) -> None:
            super(BcAlgorithm, self).__init__(observation_spec, action_spec)

    with pytest.raises(ValueError, match="Offline learns from what it is given and does not act"):
        EnsembleAlgorithm(tf.TensorSpec([3]), _DISCRETE, members=[Offline])
