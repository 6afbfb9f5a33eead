"""Whether environments are stepped inside the graph or outside is a matter of speed alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from alf.data_structures import Experience
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments import create_environment
from tests.algorithms import networks


def _segments(stepping: str, rnn: bool) -> list[Experience]:
    env = create_environment("CartPole-v1", num_parallel_environments=12, seed=7)
    tf.keras.utils.set_random_seed(3)
    algorithm = networks.ppo(env, rnn=rnn)
    algorithm.use_rollout_state = rnn
    found: list[Experience] = []
    algorithm.add_experience_observer(found.append)
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, random_seed=11, stepping=stepping)
    try:
        for _ in range(4):
            driver.run()
            algorithm.train(mini_batch_size=6)
    finally:
        driver.stop()
    return found


@pytest.mark.parametrize("rnn", [False, True])
def test_what_is_recorded_is_bit_identical(rnn):
    inside, outside = _segments("graph", rnn), _segments("host", rnn)
    for mine, theirs in zip(inside, outside, strict=True):
        tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a.numpy(), b.numpy()), mine, theirs)
