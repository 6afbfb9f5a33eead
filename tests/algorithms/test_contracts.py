"""A slip in a method of an algorithm of one's own is told in one sentence."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.exporting import exportable
from alf.algorithms.rl_algorithm import RLAlgorithm
from alf.data_structures import LossInfo, PolicyStep
from alf.drivers.policy_driver import PolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from tests.algorithms.networks import feed_forward, specs_of
from tests.algorithms.test_train_metrics import collected

Parts = namedtuple("Parts", ["one", "nothing"])


class Own(ActorCriticAlgorithm):
    """An actor-critic whose results are changed before they are given."""

    def __init__(self, change: Any = lambda x: x, change_loss: Any = lambda x: x) -> None:
        tf.keras.utils.set_random_seed(4)
        obs, act = specs_of(PolicyUnittestEnv(3, 5, seed=0))
        super().__init__(
            obs, act, *feed_forward(obs, act), optimizer=tf.keras.optimizers.legacy.SGD(1.0), name=type(self).__name__
        )
        self._change = change
        self._change_loss = change_loss

    def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
        return self._change(super().rollout(time_step, state, mode))

    def calc_loss(self, training_info: Any) -> Any:
        return self._change_loss(super().calc_loss(training_info))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: None, r"rollout gave NoneType; it gives a PolicyStep\(action, state, info\)"),
        (lambda s: tuple(s), "rollout gave tuple; it gives a PolicyStep"),
        (
            lambda s: s._replace(action=tf.cast(s.action, tf.float32)),
            r"action with float32 \(2, 1\).* asks for int64 \(2, 1\)",
        ),
        (
            lambda s: s._replace(action=s.action[:, tf.newaxis]),
            r"action with int64 \(2, 1, 1\).* action_spec asks for int64 \(2, 1\)",
        ),
        (lambda s: s._replace(action=1), "action with 1 of int, but"),
        (
            lambda s: s._replace(action={"a": s.action}),
            r"action \{'a': 'int64 \(2, 1\)'\}, but action_spec is int64 \(1,\)",
        ),
        (lambda s: s._replace(state=tf.zeros([2, 3])), r"state float32 \(2, 3\), but train_state_spec is \(\)"),
        (lambda s: s._replace(info={"a": None}), "info that has None of NoneType for a batch of 2"),
        (lambda s: s._replace(info={"a": 1.0}), "info that has 1.0 of float"),
        (lambda s: s._replace(info=tf.zeros([])), r"info that has float32 \(\) for a batch of 2"),
        (lambda s: s._replace(info=tf.zeros([1, 2])), r"info that has float32 \(1, 2\) for a batch of 2"),
    ],
)
def test_what_rollout_gives_is_checked(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^Own: rollout gave .*{message.removeprefix('rollout gave ')}"):
        _ = Own(change).experience_spec


def test_numpy_and_namedtuples_of_the_same_fields_will_do() -> None:
    twin = namedtuple("twin", PolicyStep._fields)
    _ = Own(lambda s: twin(np.zeros([2, 1], np.int64), (), {"a": np.zeros([2, 3], np.float32)})).experience_spec


class Predicting(Own):
    """Only what `predict` gives is changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change_prediction = change

    def predict(self, inputs: Any, state: Any = None, epsilon_greedy: float = 0.0) -> Any:
        return self._change_prediction(super().predict(inputs, state, epsilon_greedy))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: None, r"NoneType; it gives a PolicyStep\(action, state, info\)"),
        (lambda s: s.action, "SymbolicTensor; it gives a PolicyStep"),
        (
            lambda s: s._replace(action=tf.cast(s.action, tf.int32)),
            r"an action with int32 .*, but for a batch of {} action_spec asks for int64 \(.*, 1\)\.$",
        ),
        (
            lambda s: s._replace(action=s.action[:, tf.newaxis]),
            r"an action with int64 \(.*, 1, 1\), but for a batch of {} action_spec asks for int64",
        ),
        (
            lambda s: s._replace(state=tf.zeros([2, 3])),
            r"a state float32 \(2, 3\), but predict_state_spec is \(\)",
        ),
    ],
)
def test_what_predict_gives_is_checked_where_it_is_played_and_exported(change: Any, message: str) -> None:
    algorithm, env = Predicting(change), PolicyUnittestEnv(3, 5, seed=0)
    with pytest.raises(ValueError, match=f"^Predicting: predict gave {message.format(3)}"):
        PolicyDriver(env, algorithm).predict(1)
    policy = exportable(algorithm)
    function = tf.function(policy.functions["action"], autograph=False)
    with pytest.raises(ValueError, match=f"^Predicting: predict gave {message.format('any size')}"):
        function.get_concrete_function({leaf.name: leaf.tensor_spec() for leaf in policy.inputs})


def test_the_info_of_a_prediction_may_be_anything() -> None:
    PolicyDriver(PolicyUnittestEnv(3, 5, seed=0), Predicting(lambda s: s._replace(info=1))).predict(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda i: i._replace(loss=i.loss[..., tf.newaxis]),
            r"LossInfo.loss has shape \(13, 4, 1\), but it takes \(13, 4\)",
        ),
        (lambda i: i._replace(loss=i.loss[0]), r"LossInfo.loss has shape \(4,\), but it takes \(13, 4\)"),
        (lambda i: i._replace(loss=tf.transpose(i.loss)), r"LossInfo.loss has shape \(4, 13\), but it takes \(13, 4\)"),
        (lambda i: i._replace(scalar_loss=i.loss), r"LossInfo.scalar_loss has shape \(13, 4\), but it takes \(\)"),
        (lambda i: i._replace(loss=None), "LossInfo.loss is None; leave it out"),
        (lambda i: i._replace(scalar_loss=None), "LossInfo.scalar_loss is None; leave it out"),
        (
            lambda i: i._replace(loss=tf.stop_gradient(i.loss)),
            r"the loss that calc_loss gave has no gradient for any of .*kernel:0, .*, \.\.\.: make it of what train_step gave",
        ),
        (
            lambda i: i._replace(loss=tf.cast(i.loss, tf.int32)),
            "the loss that calc_loss gave has no gradient for any of",
        ),
        (lambda i: i.loss, "calc_loss gave .*Tensor; it gives a LossInfo"),
        (lambda i: i._replace(extra=i.loss), "LossInfo.extra is a SymbolicTensor; it is a dict"),
        (lambda i: i._replace(extra={"a": [1.0]}), "LossInfo.extra at 'a/' is a list; it is a dict"),
        (lambda i: i._replace(extra={"a": {"b": 1.0}, "a/b": 2.0}), "LossInfo.extra has 'a/b' twice"),
        (
            lambda i: i._replace(extra={"a": i.loss[0]}),
            r"LossInfo.extra\['a'\] has shape \(4,\), but it takes \(13, 4\)",
        ),
    ],
)
def test_what_calc_loss_gives_is_checked(change: Any, message: str) -> None:
    algorithm = Own(change_loss=change)
    with pytest.raises(ValueError, match=f"Own: {message}"):
        algorithm.train_from(collected(algorithm))


@pytest.mark.parametrize("by_global_norm", [False, True])
def test_a_loss_without_gradients_is_told_where_they_are_clipped_too(by_global_norm: bool) -> None:
    algorithm = Own(change_loss=lambda i: i._replace(loss=tf.stop_gradient(i.loss)))
    algorithm._gradient_clipping, algorithm._clip_by_global_norm = 1.0, by_global_norm
    with pytest.raises(ValueError, match=r"^Own: the loss that calc_loss gave has no gradient for any of"):
        algorithm.train_from(collected(algorithm))


@pytest.mark.parametrize(
    "change",
    [
        lambda info: LossInfo(loss=0.0 * info.loss, scalar_loss=2.0),
        lambda info: LossInfo(loss=2, scalar_loss=0.0 * tf.reduce_mean(info.loss)),
        lambda info: LossInfo(loss=np.full([13, 4], 2.0), scalar_loss=0.0 * tf.reduce_mean(info.loss)),
    ],
)
def test_a_loss_may_be_a_number(change: Any) -> None:
    algorithm = Own(change_loss=change)
    algorithm.train_from(collected(algorithm))
    assert float(algorithm.last_train_metrics["loss"]) == pytest.approx(2.0)


def test_numbers_of_parts_are_reported_by_their_path() -> None:
    parts = {"number": 1, "parts": Parts(one={"x": tf.constant(3.0, tf.float64)}, nothing=()), "none": None}
    algorithm = Own(change_loss=lambda info: info._replace(extra=parts))
    algorithm.train_from(collected(algorithm))
    got = {k: float(v) for k, v in algorithm.last_train_metrics.items()}
    assert {k: v for k, v in got.items() if k not in ("loss", "grad_norm")} == {"number": 1.0, "parts/one/x": 3.0}


class Asked(Own):
    """Notes what `rollout` is asked for; has no `predict` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def rollout(self, time_step: Any, state: Any, mode: int) -> Any:
        self.asked.append(mode)
        return super().rollout(time_step, state, mode)

    def predict(self, inputs: Any, state: Any = None, epsilon_greedy: float = 0.0) -> Any:
        return RLAlgorithm.predict(self, inputs, state, epsilon_greedy)

    def asked_by(self, run: Any) -> set[int]:
        self.asked.clear()
        run()
        return set(self.asked)


def test_rollout_is_told_what_it_is_asked_for() -> None:
    algorithm, env = Asked(), PolicyUnittestEnv(3, 5, seed=0)
    assert algorithm.asked_by(lambda: algorithm.experience_spec) == {RLAlgorithm.PREPARE_SPEC}
    assert algorithm.asked_by(lambda: collected(algorithm)) == {RLAlgorithm.ROLLOUT}
    batch = collected(algorithm)
    assert algorithm.asked_by(lambda: algorithm.train_from(batch)) == {RLAlgorithm.OFF_POLICY_TRAINING}
    for mode, told in (
        (PolicyDriver.PREDICT, RLAlgorithm.ON_POLICY_TRAINING),
        (PolicyDriver.ON_POLICY_TRAINING, RLAlgorithm.ON_POLICY_TRAINING),
        (PolicyDriver.OFF_POLICY_TRAINING, RLAlgorithm.ROLLOUT),
    ):
        assert algorithm.asked_by(PolicyDriver(env, algorithm, mode=mode).run) == {told}


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("summarize_train", r"give what it reported as LossInfo\.extra of calc_loss"),
        ("summarize_rollout", r"give what it reported as LossInfo\.extra of calc_loss"),
        ("training_summary", r"give what it reported as LossInfo\.extra of calc_loss"),
        ("summarize_metrics", r"give metrics to the driver, such as AsyncOffPolicyDriver\.metrics"),
        ("set_metrics", r"give metrics to the driver, such as AsyncOffPolicyDriver\.metrics"),
    ],
)
def test_a_method_of_earlier_releases_that_nothing_calls_is_told_of(method: str, advice: str) -> None:
    class Reporting(Own):
        pass

    setattr(Reporting, method, lambda self, *args: None)

    class Ported(Reporting):
        pass

    with pytest.raises(
        ValueError,
        match=rf"^Ported defines {method}, which ALF's earlier releases called and nothing calls here: {advice}, .*out",
    ):
        Ported()
