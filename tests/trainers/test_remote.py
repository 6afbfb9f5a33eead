"""What a worker is told of a run, and what it makes of that: the same algorithm, other random numbers."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from typing import Any

import gin
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.replay.experience_replayer import OnetimeExperienceReplayer
from alf.trainers import remote
from alf.trainers import seeds as run_seeds
from alf.trainers.building import build_algorithm
from alf.trainers.config import TrainerConfig
from alf.trainers.off_policy_trainer import AsyncOffPolicyTrainer
from alf.trainers.policy_trainer import create_training_environment
from alf.utils import gin_utils
from alf.utils.gin_utils import GinConfigError
from tests.bin.running import ROOT
from tests.trainers.worker_process import facts_of, facts_of_worker

EXAMPLES = (
    "async_ppo_cart_pole",
    "async_ppo_rnn_memory",
    "sac_pendulum",
    "dqn_cart_pole",
    "diayn_pendulum",
    "multi_agent_rock_paper_scissors",
)
SMALL = ("create_environment.num_parallel_environments=2", "TrainerConfig.num_envs=2", "TrainerConfig.unroll_length=4")

OWN_MODULE = r"""
import gin
import gymnasium
import numpy as np

gin.constant("own_things.LENGTH", 7)
TEXT = "it's\n'quoted' \"twice\", " + "and long " * 31


@gin.configurable
class OwnEnv(gymnasium.Env):
    def __init__(self, length=5, text="", table=None, rate=0.0):
        assert (text, rate) == (TEXT, 0.1), (text, rate)
        self.observation_space = gymnasium.spaces.Box(0, 1, (length, len(table["a"])), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 1.0, False, False, {}


@gin.configurable
def own_networks(observation_spec, action_spec, debug_summaries=False, units=4):
    from tf_agents.networks import actor_distribution_network, value_network
    from alf.algorithms.ppo_algorithm import PPOAlgorithm
    from alf.algorithms.ppo_loss import PPOLoss

    return PPOAlgorithm(
        observation_spec,
        action_spec,
        actor_network=actor_distribution_network.ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=(units,)
        ),
        value_network=value_network.ValueNetwork(observation_spec, fc_layer_params=(units,)),
        loss_class=PPOLoss,
    )
"""
OWN_GIN = """
import own_things

units = 12
TrainerConfig.algorithm_ctor = @wide/own_networks
own_networks.units = 3
wide/own_networks.units = %units
create_environment.env_name = @OwnEnv
OwnEnv.length = %own_things.LENGTH
OwnEnv.text = "it's\\n'quoted' \\"twice\\", {long}"
OwnEnv.table = {{'a': [1, (2.5, None)], 'b': {{}}}}
OwnEnv.rate = 0.1
""".format(long="and long " * 31)


def _settings(*bindings: str, gin_file: str | None = None, **given: Any) -> tuple[dict[str, Any], TrainerConfig]:
    """What workers of a run by these bindings are told; gin is left as a learner has it."""
    gin.clear_config()
    gin_utils.parse_gin([] if gin_file is None else [gin_file], [*SMALL, *bindings])
    config = TrainerConfig("nowhere", trainer=AsyncOffPolicyTrainer, num_workers=3, **given)
    return remote.worker_settings(config, random_seed=5, place=(0, 0)), config


def _facts_of_learner(config: TrainerConfig) -> dict[str, Any]:
    env = create_training_environment(random_seed=0)
    try:
        return facts_of(build_algorithm(config, env))
    finally:
        env.close()


def test_a_fresh_process_makes_the_same_of_the_text(tmp_path, monkeypatch):
    """Of shipped examples, and of a gin file with a module of its own, macros, scopes, constants and odd strings."""
    (tmp_path / "own_things.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sent, expected = [], []
    for example in EXAMPLES:
        settings, config = _settings(gin_file=example)
        sent.append(settings)
        expected.append(_facts_of_learner(config))
    settings, config = _settings(OWN_GIN)
    sent.append(settings)
    expected.append(_facts_of_learner(config))
    assert expected[-1]["observation"] == ["float32[7, 2]"]
    assert "float32[14, 12]" in expected[-1]["weights"]

    done = subprocess.run(
        [sys.executable, "-m", "tests.trainers.worker_process"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found, wanted in zip((*EXAMPLES, "own"), json.loads(done.stdout), expected, strict=True):
        assert found == {**wanted, "threads": 2, "memories": 0}, name


@gin.configurable(module="test_remote")
def worker_leaf(value=None, other=None):
    return value, other


_LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=_LITERALS, other=_LITERALS)
def test_values_survive_the_text(value, other):
    from alf.utils.gin_text import config_text, modules_in_use, take_over

    gin.clear_config()
    gin.bind_parameter("test_remote.worker_leaf.value", value)
    gin.bind_parameter("deep/inside/worker_leaf.other", other)
    gin.bind_parameter(("own_macro", "gin.macro", "value"), other)
    text, modules = config_text(), modules_in_use()
    assert modules == [worker_leaf.__module__]
    gin.clear_config()
    take_over(text, modules)
    assert worker_leaf() == (value, None)
    with gin.config_scope("deep/inside"):
        assert worker_leaf() == (value, other)
    assert gin.query_parameter("%own_macro") == other
    assert config_text() == text


def test_what_no_text_can_say_is_an_error(small_config):
    gin.bind_parameter("create_environment.env_name", AsyncOffPolicyDriver)
    with pytest.raises(GinConfigError, match=r"create_environment.env_name=<class .* cannot be written in a gin file"):
        remote.worker_settings(small_config(AsyncOffPolicyTrainer), 1, (0, 0))


def test_what_the_script_itself_defines_is_an_error(small_config, monkeypatch):
    gin.bind_parameter("worker_leaf.value", 1)
    monkeypatch.setattr(gin.config._REGISTRY["test_remote.worker_leaf"].wrapped, "__module__", "__main__")
    with pytest.raises(GinConfigError, match="worker_leaf is defined in the script that was started"):
        remote.worker_settings(small_config(AsyncOffPolicyTrainer), 1, (0, 0))


def test_an_algorithm_without_a_name_is_an_error(small_config):
    def local(observation_spec, action_spec, debug_summaries=False):
        raise AssertionError

    for ctor in (local, lambda *args: None, functools.partial(print)):
        config = small_config(AsyncOffPolicyTrainer, algorithm_ctor=ctor)
        with pytest.raises(ValueError, match=r"algorithm_ctor=.* cannot be told to workers"):
            remote.worker_settings(config, 1, (0, 0))


def test_a_module_that_a_worker_has_not_is_an_error():
    from alf.utils.gin_text import take_over

    with pytest.raises(GinConfigError, match=r"'no_such_module' .* cannot be imported here .* on every machine"):
        take_over("", ["no_such_module"])


def test_what_python_has_set_reaches_the_workers() -> None:
    settings, _ = _settings(mixed_precision=True)
    assert settings["settings"]["mixed_precision"] is True


# ---- in the learner's own process ----


@pytest.fixture
def settings(small_config):
    return remote.worker_settings(small_config(AsyncOffPolicyTrainer, num_workers=2), 5, (0, 0))


def test_the_learners_own_process_keeps_its_configuration_and_generators(settings):
    gin.bind_parameter("worker_leaf.value", 3)
    before = gin.config_str(), random.getstate(), np.random.get_state()[1].tolist()
    driver = remote.make_driver(0, 0, **settings)
    driver.stop()
    assert (gin.config_str(), random.getstate(), np.random.get_state()[1].tolist()) == before


def test_nothing_random_is_shared_with_other_workers_lives_or_runs(settings, monkeypatch):
    drawn: list[tuple[int, ...]] = []
    create = remote.create_training_environment

    def watched(random_seed):
        drawn.append(tuple(random_seed.generate_state(4)))
        return create(random_seed=random_seed)

    monkeypatch.setattr(remote, "create_training_environment", watched)
    for number, life, iteration in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 3)]:
        remote.make_driver(number, life, **{**settings, "place": (iteration, 0)}).stop()
    assert len(drawn) == len(set(drawn)) == 4 * settings["settings"]["num_envs"]
    again, drawn[:] = list(drawn), []
    remote.make_driver(1, 0, **settings).stop()
    assert drawn == again[2:4]


def _states(streams: run_seeds.Seeds) -> list[tuple[int, ...]]:
    """The beginnings of the streams, and of what they spawn at first."""
    found = []
    for stream in streams[1:]:
        found += [
            stream,
            *stream.spawn(3),
            run_seeds.at_iteration(stream, 2),
            *run_seeds.at_iteration(stream, 2).spawn(3),
        ]
    return [tuple(sequence.generate_state(4)) for sequence in found]


@given(st.integers(0, 2**64), st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**7))
def test_seeds_of_a_worker_are_none_of_the_learners_or_its_neighbours(seed, number, life, iteration):
    split = [run_seeds.split(seed)] + [
        run_seeds.of_worker(seed, *place)
        for place in [
            (number, life, iteration),
            (number + 1, life, iteration),
            (number, life + 1, iteration),
            (number, life, iteration + 1),
            (number, life, 0, iteration + 1),
            (number, life, 0, iteration + 2),
        ]
    ]
    states = [state for streams in split for state in _states(streams)]
    assert len(states) == len(set(states))
    assert _states(run_seeds.of_worker(seed, number, life, iteration)) == _states(
        run_seeds.of_worker(seed, number, life, iteration)
    )


def test_a_worker_has_no_memory_no_lag_limit_and_no_observers(settings):
    gin.bind_parameter("AsyncOffPolicyDriver.exp_replayer", "uniform")
    gin.bind_parameter("AsyncOffPolicyDriver.max_policy_lag", 1)
    driver = remote.make_driver(0, 0, **settings)
    try:
        assert isinstance(driver.algorithm.exp_replayer, OnetimeExperienceReplayer)
        assert driver._max_policy_lag is None
        assert driver.observers == []
        assert driver.timings().threads == 2
    finally:
        driver.stop()


@pytest.mark.parametrize(("mode", "queue", "expected"), [("async", 12, 2), ("sync", 12, 6), ("sync", 4, 2)])
def test_the_queue_of_a_worker(settings, mode, queue, expected):
    gin.bind_parameter("AsyncOffPolicyDriver.mode", mode)
    gin.bind_parameter("AsyncOffPolicyDriver.learn_queue_cap", queue)
    driver = remote.make_driver(0, 0, **settings)
    driver.stop()
    assert driver._learn_queue_cap == expected


def test_environments_are_closed_when_a_worker_cannot_be_made(settings, monkeypatch):
    closed = []

    class Broken(Exception):
        pass

    def create(random_seed):
        env = create_training_environment(random_seed=random_seed)
        close = env.close
        env.close = lambda: (closed.append(env), close())
        return env

    def fail(config, env):
        raise Broken

    monkeypatch.setattr(remote, "create_training_environment", create)
    monkeypatch.setattr(remote, "build_algorithm", fail)
    with pytest.raises(Broken):
        remote.make_driver(0, 0, **settings)
    assert len(closed) == 2


def test_settings_given_in_code_reach_a_worker(small_config):
    config = small_config(AsyncOffPolicyTrainer, num_envs=1, unroll_length=6, num_workers=2)
    settings = remote.worker_settings(config, 5, (0, 0))
    assert settings["algorithm_ctor"] == "tests.trainers.small_run:make_algorithm"
    assert json.loads(json.dumps(settings)) == settings
    found = facts_of_worker(settings)
    assert found["threads"] == 1
    assert {k: found[k] for k in ("experience", "weights")} == {
        k: v for k, v in _facts_of_learner(config).items() if k in ("experience", "weights")
    }
