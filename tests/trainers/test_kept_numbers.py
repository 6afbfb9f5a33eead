"""TensorFlow keeps each Python number that became a tensor, for ever: a run must not give it new ones at every iteration."""

from __future__ import annotations

import gc
import sys

import gin
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer, SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from alf.trainers.self_play import SelfPlay
from tests.trainers.many_agents import behaviors, bind_hands, ppo
from tests.trainers.small_run import make_algorithm

# How often a stop condition is asked, twice an iteration, until all has been called once, and while it is counted.
WARM, COUNTED = 20, 300
# Numbers that come up now and then; Python itself keeps a hundred floats for later use.
FEW = 30


def _kept() -> int:
    """How many objects of Python TensorFlow kept and lets go of now."""
    gc.collect()
    before = sys.getallocatedblocks()
    pywrap_tfe.TFE_ClearScalarCache()
    return before - sys.getallocatedblocks()


class _Count:
    """A stop condition that looks at what was kept from some iteration on."""

    def __init__(self) -> None:
        self.asked = 0
        self.kept: int | None = None

    def __call__(self, run) -> str | None:
        self.asked += 1
        if self.asked == WARM:
            _kept()
        if self.asked < WARM + COUNTED:
            return None
        if self.kept is None:
            self.kept = _kept()
        return "enough"


def test_what_is_counted_is_what_tensorflow_keeps():
    variable = tf.Variable(0.0, dtype=tf.float64)
    _kept()
    for i in range(COUNTED):
        variable.assign_add(1e-9 + i, read_value=False)
    assert _kept() > COUNTED / 2 - FEW


@pytest.mark.parametrize(
    ("trainer", "settings", "bindings"),
    [
        (OnPolicyTrainer, {"num_steps_per_iter": 16}, {}),
        (SyncOffPolicyTrainer, {}, {}),
        (SyncOffPolicyTrainer, {"update_counter_every_mini_batch": True}, {}),
        (AsyncOffPolicyTrainer, {}, {"mode": "lockstep"}),
        (AsyncOffPolicyTrainer, {}, {"mode": "lockstep", "stepping": "host"}),
        (AsyncOffPolicyTrainer, {}, {"mode": "async", "num_actor_queues": 1, "actor_queue_cap": 2}),
        (SyncOffPolicyTrainer, {"self_play": True}, {}),
    ],
    ids=["on_policy", "sync", "minibatches", "async", "host", "actors", "self_play"],
)
def test_a_run_gives_tensorflow_no_new_numbers(trainer, settings, bindings, small_config):
    for name, value in bindings.items():
        gin.bind_parameter(f"AsyncOffPolicyDriver.{name}", value)
    count, algorithm = _Count(), make_algorithm
    if settings.get("self_play"):
        bind_hands()
        algorithm = behaviors(left=ppo(), right=ppo(trained=False))
        settings = {"self_play": SelfPlay("left", "right", "1 training_steps", "2 training_steps", latest_ratio=0.2)}
    settings = {"num_iterations": 0, "num_env_steps": 10**9, "summary_interval": 1, **settings}
    config = small_config(trainer, algorithm_ctor=algorithm, stop_conditions=[count], **settings)
    with config.create_trainer() as run:
        run.initialize()
        # Python makes small numbers once.
        for variable in (run.algorithm.iterations, run.counters.global_counter, run.counters.iteration):
            variable.assign(10**6)
        run.improve()
    assert count.kept is not None
    assert count.kept < FEW
