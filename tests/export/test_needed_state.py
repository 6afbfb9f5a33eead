"""A model has the part of a recurrent state that its outputs follow from, whatever else acting remembers for learning."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Any

import pytest
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

from alf.algorithms.exporting import exportable
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.export import export_policy
from tests.algorithms.recurrent_off_policy import make
from tests.export.policies import BOX, CONTINUOUS, DISCRETE

pytestmark = pytest.mark.timeout(300)

needs_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "tf2onnx")),
    reason="the extra onnx is not installed",
)

OF_ACTOR, OF_CRITIC = ["state_actor_0", "state_actor_1"], ["state_critics_0_0", "state_critics_0_1"]


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize(
    ("name", "action", "state"),
    [("sac", CONTINUOUS, OF_ACTOR), ("discrete_sac", DISCRETE, OF_ACTOR), ("dqn", DISCRETE, OF_CRITIC)],
)
def test_what_critics_remember_for_learning_is_no_part_of_a_policy(
    name: str, action: Any, state: list[str], remembers: bool
) -> None:
    algorithm = make(name, BOX, action)
    algorithm.use_rollout_state = remembers
    policy = exportable(algorithm)
    assert list(policy.state) == state
    assert [leaf["name"] for leaf in policy.description["state"]] == state
    assert algorithm.use_rollout_state == remembers


@needs_extra
def test_critics_that_follow_sampled_actions_leave_the_policy_an_onnx_model(tmp_path: pathlib.Path) -> None:
    """ONNX has no random numbers by a seed."""
    algorithm = make("sac", BOX, CONTINUOUS)
    algorithm.use_rollout_state = True
    export_policy(exportable(algorithm), str(tmp_path), onnx=True)
    described = json.loads((tmp_path / "metadata.json").read_text())["onnx"]
    assert [name for name in described["inputs"] if name.startswith("state")] == OF_ACTOR
    assert [name for name in described["outputs"] if "state" in name] == [f"next_{name}" for name in OF_ACTOR]


def test_a_policy_whose_critics_alone_remember_has_no_state(tmp_path: pathlib.Path) -> None:
    critic = make("sac", BOX, CONTINUOUS)._critic_networks[0].copy(name="critic")
    algorithm = SacAlgorithm(BOX, CONTINUOUS, ActorDistributionNetwork(BOX, CONTINUOUS, fc_layer_params=(4,)), critic)
    algorithm.use_rollout_state = True
    policy = exportable(algorithm)
    assert policy.state == ()
    assert policy.always == {"observation"}
    assert export_policy(policy, str(tmp_path)) == ["saved_model", "metadata.json"]
