"""Recurrent off-policy learning from recorded sequences, against plain loops over rows, one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.algorithms.exporting import exportable
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.algorithms.trac_algorithm import TracAlgorithm
from alf.data_structures import Experience, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, RNNPolicyUnittestEnv
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from tests.algorithms.networks import specs_of
from tests.algorithms.off_policy import adam
from tests.algorithms.off_policy import make as make_feed_forward
from tests.algorithms.recurrent_off_policy import CONTINUOUS, DISCRETE, make
from tests.algorithms.test_off_policy_losses import BOX, CHOICE, GAMMA, OBS, B, T, experience, loss_and_gradients

pytestmark = pytest.mark.slow

MID = tf.constant([int(StepType.MID)])
ALPHA = float(np.exp(-0.5))
# Of each row that is learned from: what the critics are to blame for, and what the actor and the temperature are.
Losses = dict[tuple[int, int], tuple[tf.Tensor, tf.Tensor]]
SAMPLES = {"whole_replay_buffer_training": False}


def spec_of(name: str) -> Any:
    return BOX if name in CONTINUOUS else CHOICE


def recorded(algorithm: Any, name: str) -> Experience:
    """Rows whose first state is random; the states of the others, which nothing may look at, are not even finite."""
    algorithm.use_rollout_state = True
    rs = np.random.RandomState(4)

    def rows(spec: Any) -> tf.Tensor:
        state = np.full((T, B, *spec.shape), np.nan, np.float32)
        state[0] = rs.uniform(-0.9, 0.9, state[0].shape)
        return tf.constant(state)

    return experience(spec_of(name))._replace(state=tf.nest.map_structure(rows, algorithm.train_state_spec))


def randomize(algorithm: Any, seed: int = 3) -> None:
    rs = np.random.RandomState(seed)
    for variable in algorithm.variables:
        if variable.dtype == tf.float32 and variable.shape.rank:
            variable.assign(rs.normal(scale=0.7, size=variable.shape))


class Loop:
    """Runs networks over the rows of one experience, by itself: no batch, no reset inside of networks, no graph."""

    def __init__(self, exp: Experience, burn_in: int = 0, n_step: int = 1) -> None:
        self.exp, self.burn_in, self.n_step = exp, burn_in, n_step
        self.rows, self.columns = exp.step_type.shape
        self.step_type = exp.step_type.numpy()

    def seen(self, t: int, b: int) -> tf.Tensor:
        return self.exp.observation[t, b : b + 1]

    def seen_and_done(self, t: int, b: int) -> tuple[tf.Tensor, tf.Tensor]:
        return self.seen(t, b), self.exp.action[t, b : b + 1]

    def number(self, t: int, b: int) -> int:
        """Of a discrete action."""
        return int(tf.reshape(self.exp.action[t, b], []))

    def remember(self, network: Any, inputs: Any, start: Any) -> dict[tuple[int, int], Any]:
        """What a network remembers before each row: `start` [T, B, ...] at the first, nothing at FIRST."""
        found = {}
        for b in range(self.columns):
            state = tf.nest.map_structure(lambda s, b=b: s[0, b : b + 1], start)
            for t in range(self.rows):
                if self.step_type[t, b] == StepType.FIRST:
                    state = tf.nest.map_structure(tf.zeros_like, state)
                if t == self.burn_in:
                    state = tf.nest.map_structure(tf.stop_gradient, state)
                found[t, b] = state
                state = network(inputs(t, b), step_type=MID, network_state=state)[1]
        return found

    def trained(self) -> list[tuple[int, int]]:
        rows = range(self.burn_in, self.rows - self.n_step)
        return [(t, b) for t in rows for b in range(self.columns) if self.step_type[t, b] != StepType.LAST]

    def ahead(self, t: int, b: int) -> int:
        """The row whose value a row's target is made of: `n_step` later, or where its episode ends."""
        row = t + 1
        while row < t + self.n_step and self.step_type[row, b] != StepType.LAST:
            row += 1
        return row

    def target(self, t: int, b: int, value: tf.Tensor, bonus: Any = None) -> tf.Tensor:
        """What the value of a row should be, where that of the row `ahead` is `value`; `bonus` is what a row on the way adds."""
        ahead = self.ahead(t, b)
        for row in range(ahead, t, -1):
            if bonus is not None and row < ahead:
                value = value + bonus(row)
            value = self.exp.reward[row, b] + GAMMA * self.exp.discount[row, b] * value
        return tf.stop_gradient(value)


def call(network: Any, inputs: Any, state: Any) -> Any:
    return network(inputs, step_type=MID, network_state=state)[0]


def _q_loop(algorithm: Any, loop: Loop) -> Losses:
    start = loop.exp.state.critics[0]
    online, target = algorithm._q_network, algorithm._target_networks[0]
    before, before_target = (loop.remember(net, loop.seen, start) for net in (online, target))
    losses = {}
    for t, b in loop.trained():
        end = loop.ahead(t, b)
        values = call(online, loop.seen(t, b), before[t, b])[0]
        best = int(tf.argmax(call(online, loop.seen(end, b), before[end, b])[0]))
        following = call(target, loop.seen(end, b), before_target[end, b])[0, best]
        losses[t, b] = ((loop.target(t, b, following) - values[loop.number(t, b)]) ** 2, tf.zeros([]))
    return losses


def _discrete_sac_loop(algorithm: Any, loop: Loop) -> Losses:
    state = loop.exp.state
    actor = loop.remember(algorithm._actor_network, loop.seen, state.actor)
    critics = [loop.remember(*x) for x in zip(algorithm._critic_networks, [loop.seen] * 2, state.critics, strict=True)]
    targets = [loop.remember(*x) for x in zip(algorithm._target_networks, [loop.seen] * 2, state.critics, strict=True)]

    def policy(t: int, b: int) -> tf.Tensor:
        return tf.nn.log_softmax(call(algorithm._actor_network, loop.seen(t, b), actor[t, b]).logits[0])

    def values(networks: Any, before: Any, t: int, b: int) -> list[tf.Tensor]:
        return [call(net, loop.seen(t, b), s[t, b])[0] for net, s in zip(networks, before, strict=True)]

    losses = {}
    for t, b in loop.trained():
        end = loop.ahead(t, b)
        now, after = policy(t, b), policy(end, b)
        both = values(algorithm._critic_networks, critics, t, b)
        lower = tf.minimum(*values(algorithm._target_networks, targets, end, b))

        def bonus(row: int, b: int = b) -> tf.Tensor:
            on_the_way = policy(row, b)
            return -ALPHA * tf.reduce_sum(tf.exp(on_the_way) * on_the_way)

        target = loop.target(t, b, tf.reduce_sum(tf.exp(after) * (lower - ALPHA * after)), bonus)
        loss = sum((target - q[loop.number(t, b)]) ** 2 for q in both)
        blame = tf.reduce_sum(tf.exp(now) * (ALPHA * now - tf.minimum(*both)))
        entropy = tf.stop_gradient(-tf.reduce_sum(tf.exp(now) * now))
        losses[t, b] = (loss, blame + algorithm._log_alpha * (entropy - 0.3))
    return losses


NOISE = np.random.RandomState(5).normal(size=(T, B, 1)).astype(np.float32)


def _actor_critic_loop(algorithm: Any, loop: Loop) -> Losses:
    """SAC, DDPG and TD3 without noise on target actions: they differ in how actions are chosen."""
    sac, state, nets = isinstance(algorithm, SacAlgorithm), loop.exp.state, algorithm._critic_networks
    actor = loop.remember(algorithm._actor_network, loop.seen, state.actor)
    critics = [loop.remember(n, loop.seen_and_done, s) for n, s in zip(nets, state.critics, strict=True)]
    target_nets = algorithm._target_critics
    targets = [loop.remember(n, loop.seen_and_done, s) for n, s in zip(target_nets, state.critics, strict=True)]
    target_actor = actor if sac else loop.remember(algorithm._target_actor, loop.seen, state.actor)

    def choose(network: Any, before: Any, t: int, b: int) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = call(network, loop.seen(t, b), before[t, b])
        if not sac:
            return chosen, tf.zeros([])
        normal = chosen.input_distribution
        std = tf.reshape(normal.stddev(), [1, 1])
        u = tf.reshape(normal.mean(), [1, 1]) + std * NOISE[t, b]
        density = -0.5 * NOISE[t, b] ** 2 - tf.math.log(std) - 0.5 * np.log(2 * np.pi)
        # log(1 - tanh(u)^2), which is lost to rounding where it is written so.
        slope = 2.0 * (np.log(2.0) - u - tf.nn.softplus(-2.0 * u))
        return 2.0 * tf.tanh(u), tf.squeeze(density - np.log(2.0) - slope)

    losses = {}
    for t, b in loop.trained():
        end = loop.ahead(t, b)
        following, log_pi = choose(algorithm._actor_network if sac else algorithm._target_actor, target_actor, end, b)
        inputs = (loop.seen(end, b), following)
        lower = min((call(n, inputs, s[end, b])[0] for n, s in zip(target_nets, targets, strict=True)), key=float)

        def bonus(row: int, b: int = b) -> tf.Tensor:
            return -ALPHA * choose(algorithm._actor_network, actor, row, b)[1]

        target = loop.target(t, b, lower - ALPHA * log_pi, bonus if sac else None)
        loss = sum(
            (target - call(n, loop.seen_and_done(t, b), s[t, b])[0]) ** 2 for n, s in zip(nets, critics, strict=True)
        )
        action, log_pi = choose(algorithm._actor_network, actor, t, b)
        judges = list(zip(nets, critics, strict=True))[: 2 if sac else 1]
        blame = -min((call(n, (loop.seen(t, b), action), s[t, b])[0] for n, s in judges), key=float)
        if sac:
            blame += ALPHA * log_pi + algorithm._log_alpha * tf.stop_gradient(-log_pi - 0.3)
        losses[t, b] = (loss, blame)
    return losses


def loop_of(name: str) -> Any:
    return {"dqn": _q_loop, "discrete_sac": _discrete_sac_loop}.get(name, _actor_critic_loop)


def algorithm_of(name: str, **kw: Any) -> Any:
    settings: dict[str, Any] = {
        "sac": {"initial_log_alpha": -0.5, "target_entropy": 0.3},
        "discrete_sac": {"initial_log_alpha": -0.5, "target_entropy": 0.3},
        "td3": {"target_policy_noise": 0.0, "actor_update_period": 1},
    }.get(name, {})
    algorithm = make(name, OBS, spec_of(name), GAMMA, **settings, **kw)
    randomize(algorithm)
    return algorithm


def trained_variables(algorithm: Any) -> list[tf.Variable]:
    return [v for _, variables in algorithm.optimized_variables() for v in variables]


_FAST = ("td3", "dqn")
_NAMES = [pytest.param(n, marks=() if n in _FAST else pytest.mark.slow) for n in (*CONTINUOUS, *DISCRETE)]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", _NAMES)
def test_losses_and_gradients_are_those_of_a_loop_over_rows(
    name: str, n_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recorded state, zero at FIRST, the target networks alike; gradients flow back in time to the first row."""
    algorithm = algorithm_of(name, critic_loss=OneStepTDLoss(GAMMA, n_step=n_step))
    exp, variables = recorded(algorithm, name), trained_variables(algorithm)
    with tf.GradientTape(persistent=True) as tape:
        # The mean is over T - 1 rows, whatever the number of trained ones.
        weight = (T - 1) / (T - n_step)
        losses = loop_of(name)(algorithm, Loop(exp, n_step=n_step))
        losses = {place: (weight * of_critics, weight * others) for place, (of_critics, others) in losses.items()}
        totals = [tf.add_n(list(part)) for part in zip(*losses.values(), strict=True)]
    critics = {v.ref() for network in algorithm._critic_networks for v in network.variables}
    expected = [tape.gradient(totals[0 if v.ref() in critics else 1], v) for v in variables]
    drawn = tf.constant(NOISE)
    if name == "sac":
        monkeypatch.setattr(tf.random, "stateless_normal", lambda shape, *_, **__: tf.reshape(drawn, shape))
    loss, gradients, _ = loss_and_gradients(algorithm, exp, variables)
    table = np.zeros((T, B))
    for place, value in losses.items():
        table[place] = float(sum(value))
    np.testing.assert_allclose(loss, table, rtol=1e-3, atol=1e-4)
    for variable, gradient, wanted in zip(variables, gradients, expected, strict=True):
        assert np.abs(wanted).max() > 1e-4, variable.name
        np.testing.assert_allclose(gradient, wanted, rtol=2e-3, atol=1e-3, err_msg=variable.name)


def test_feed_forward_critics_may_judge_a_recurrent_actor() -> None:
    algorithm = algorithm_of("ddpg")
    plain = make_feed_forward("ddpg", OBS, BOX)._critic_networks[0]
    mixed = type(algorithm)(OBS, BOX, algorithm._actor_network, plain)
    assert mixed.train_state_spec.critics == ((),)
    assert mixed.predict_state_spec.actor
    loss, _, _ = loss_and_gradients(mixed, recorded(mixed, "ddpg"), mixed._actor_network.trainable_variables)
    assert np.isfinite(loss).all()


@pytest.fixture
def _eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def memory_env(name: str, rows: int = 3, seed: int = 0) -> RNNPolicyUnittestEnv:
    kind = ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete
    return RNNPolicyUnittestEnv(rows, 9, gap=2, action_type=kind, seed=seed)


def collect(name: str, algorithm: Any, runs: int = 2, **kw: Any) -> SyncOffPolicyDriver:
    driver = SyncOffPolicyDriver(memory_env(name), algorithm, 7, exp_replayer="uniform", random_seed=0, **kw)
    for _ in range(runs):
        driver.run()
    driver.stop()
    return driver


@pytest.mark.usefixtures("_eagerly")
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("stored", [True, False])
def test_an_update_on_samples_begins_after_the_burn_in(burn_in: int, stored: bool) -> None:
    """The rows of the burn-in have no loss and get no gradient; without recorded states they begin with zeros."""
    algorithm = make("dqn", *specs_of(memory_env("dqn")), GAMMA, optimizer=tf.keras.optimizers.legacy.SGD(1.0))
    algorithm.use_rollout_state, algorithm.burn_in_length = stored, burn_in
    randomize(algorithm)
    collect("dqn", algorithm)
    samples: list[Any] = []
    draw = algorithm.exp_replayer.sample

    def sample(*args: Any) -> Any:
        samples.append(draw(*args))
        return samples[-1]

    algorithm.exp_replayer.sample = sample
    variables = trained_variables(algorithm)
    before = [v.numpy() for v in variables]
    assert algorithm.train(1, 4, 6, **SAMPLES) == 4 * (5 - burn_in)
    rows = tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), samples[0].experience)
    if not stored:
        assert rows.state == ()
        zeros = tf.nest.map_structure(lambda s: tf.zeros([6, 4, *s.shape]), algorithm.train_state_spec)
        rows = rows._replace(state=zeros)
    moved = [b - v.numpy() for b, v in zip(before, variables, strict=True)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    with tf.GradientTape() as tape:
        losses = _q_loop(algorithm, Loop(rows, burn_in))
        mean = tf.add_n([loss for loss, _ in losses.values()]) / len(losses)
    assert {t for t, _ in losses} <= set(range(burn_in, 5))
    # What was remembered at the first row, or in the burn-in, matters behind it.
    assert (rows.step_type[1 : burn_in + 2] == StepType.MID).numpy().all(0).any()
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(float(mean), rel=1e-3)
    for got, wanted in zip(moved, tape.gradient(mean, variables), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["sac", "ddpg", "dqn"])
def test_acting_records_what_every_network_remembers_before_each_step(name: str) -> None:
    algorithm = make(name, *specs_of(memory_env(name)))
    randomize(algorithm)
    algorithm.use_rollout_state = True
    seen: list[Experience] = []
    algorithm.add_experience_observer(seen.append)
    collect(name, algorithm, 1)
    exp = tf.nest.map_structure(lambda x: x[0], seen[0]._replace(bootstrap=()))
    loop = Loop(exp)
    inputs = loop.seen_and_done if name in CONTINUOUS else loop.seen
    parts = [(n, inputs, s) for n, s in zip(algorithm._critic_networks, exp.state.critics, strict=True)]
    if name != "dqn":
        parts.append((algorithm._actor_network, loop.seen, exp.state.actor))
    for network, seen_by_it, state in parts:
        for (t, b), expected in loop.remember(network, seen_by_it, state).items():
            for got, wanted in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
                np.testing.assert_allclose(got[t, b], wanted[0], rtol=1e-3, atol=1e-5)
    assert any(np.abs(s).max() > 0.01 for s in tf.nest.flatten(exp.state))


@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_critics_are_run_in_acting_only_for_what_is_recorded(name: str) -> None:
    algorithm = make(name, *specs_of(memory_env(name)))
    critics = {v.ref() for v in algorithm._critic_networks[0].variables}
    assert not critics & {v.ref() for v in algorithm.acting_variables()}
    algorithm.use_rollout_state = True
    assert critics <= {v.ref() for v in algorithm.acting_variables()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shell"), [("sac", "agent"), ("dqn", "agent"), ("ddpg", "trac")])
def test_shells_learn_from_stored_states_after_a_burn_in(name: str, shell: str) -> None:
    specs = specs_of(memory_env(name))

    def inner(observation_spec: Any, action_spec: Any, debug_summaries: bool = False) -> Any:
        return make(name, observation_spec, action_spec)

    make_rl: Any = inner if shell == "agent" else lambda **kw: TracAlgorithm(ac_algorithm_cls=inner, **kw)
    algorithm = Agent(*specs, make_rl, optimizer=adam(1e-2))
    algorithm.use_rollout_state, algorithm.burn_in_length = True, 1
    collect(name, algorithm, 3)
    weights = [v.numpy() for v in trained_variables(algorithm)]
    assert algorithm.train(2, 8, 4, **SAMPLES) == 2 * 8 * 2
    assert all(np.isfinite(v.numpy()).all() for v in trained_variables(algorithm))
    assert any((w != v.numpy()).any() for w, v in zip(weights, trained_variables(algorithm), strict=True))
    state = algorithm.convert_train_state_to_predict_state(
        tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape]), algorithm.train_state_spec)
    )
    tf.nest.assert_same_structure(state, algorithm.predict_state_spec)


@pytest.mark.parametrize("name", ["sac", "ddpg", "dqn"])
def test_an_exported_policy_carries_its_state(name: str) -> None:
    policy = exportable(make(name, *specs_of(memory_env(name))))
    assert policy.state
    assert not any("noise" in leaf or "target" in leaf for leaf in policy.state)


def test_burn_in_that_cannot_be_is_told() -> None:
    specs = specs_of(memory_env("dqn"))
    algorithm = make("dqn", *specs)
    algorithm.burn_in_length = 3
    collect("dqn", algorithm)
    with pytest.raises(ValueError, match="5 steps or more, with burn_in_length=3, and mini_batch_length=4 is shorter"):
        algorithm.train(1, 2, 4, **SAMPLES)
    with pytest.raises(ValueError, match="learn from samples"):
        algorithm.train(1, 2, 4)
    plain = make_feed_forward("dqn", *specs)
    plain.burn_in_length = 1
    collect("dqn", plain)
    with pytest.raises(ValueError, match="is for recurrent networks"):
        plain.train(1, 2, 4, **SAMPLES)


def test_sarsa_is_feed_forward() -> None:
    specs = specs_of(memory_env("ddpg"))
    recurrent = make("ddpg", *specs)
    kind = type(make_feed_forward("sarsa", *specs))
    with pytest.raises(ValueError, match="feed-forward networks only"):
        kind(*specs, recurrent._actor_network, recurrent._critic_networks[0])


def test_a_trainer_passes_its_settings_on() -> None:
    env = memory_env("dqn")
    made: dict[str, Any] = {
        "algorithm_ctor": lambda observation_spec, action_spec, **_: make("dqn", observation_spec, action_spec)
    }
    sampling: dict[str, Any] = {"whole_replay_buffer_training": False, "mini_batch_length": 5}
    algorithm = build_algorithm(
        TrainerConfig("unused", use_rollout_state=True, burn_in_length=2, **made, **sampling), env
    )
    assert algorithm.use_rollout_state
    assert algorithm.burn_in_length == 2
    with pytest.raises(ValueError, match="burn_in_length=2 is for whole_replay_buffer_training=False"):
        TrainerConfig("unused", burn_in_length=2)
    with pytest.raises(ValueError, match="burn_in_length=-1 must be at least 0"):
        TrainerConfig("unused", burn_in_length=-1)
