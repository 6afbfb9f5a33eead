"""Exported SavedModels: what they hold, and that they act as the policy does where `alf` is not installed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.exporting import exportable
from alf.algorithms.rl_algorithm import OFF_POLICY_TRAINING, RLAlgorithm
from alf.data_structures import PolicyStep, StepType
from alf.export import ExportError, PolicyExporter, export_policy, saved_model
from alf.utils import nest_utils, rng
from tests.export.policies import BOX, CAMERA, DISCRETE, POLICIES, RECURRENT, make, time_step

# Seven policies are exported before the first test.
pytestmark = pytest.mark.timeout(300)

STEPS, ROWS = 6, 5
SCRIPT = pathlib.Path(__file__).with_name("fresh_process.py")

STATE = {
    "recurrent": [f"state_{part}_{i}" for part in ("actor", "value") for i in (0, 1)],
    "agent": [f"state_rl_{part}_{i}" for part in ("actor", "value") for i in (0, 1)],
}
# What each policy takes beside its state, and gives as action and as parameters.
NAMES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "feed_forward": (["observation"], ["action"], ["logits"]),
    "recurrent": (["observation", "step_type"], ["action"], ["logits"]),
    "multi_discrete": (["observation"], ["action"], ["logits"]),
    "continuous": (["observation"], ["action"], ["loc", "scale_diag"]),
    "squashed": (["observation"], ["action"], ["distribution_loc", "distribution_scale_diag"]),
    "dict_observation": (
        ["observation_camera", "observation_goal_n", "observation_goal_x"],
        ["action_gear", "action_steer"],
        ["gear_logits", "steer_loc", "steer_scale_diag"],
    ),
    "agent": (["observation", "step_type"], ["action"], ["logits"]),
}


def _observations(algorithm: Any, steps: int = STEPS) -> list[Any]:
    """Raw observations [B, ...] of each step."""
    draw = np.random.default_rng(7)

    def leaf(spec: Any) -> np.ndarray:
        shape = (ROWS, *spec.shape)
        if spec.dtype == tf.float32:
            return draw.normal(0, 1, shape).astype(np.float32)
        return draw.integers(0, 255 if spec.dtype == tf.uint8 else 3, shape).astype(spec.dtype.as_numpy_dtype)

    return [tf.nest.map_structure(leaf, algorithm.observation_spec) for _ in range(steps)]


def _step_types() -> np.ndarray:
    """All rows begin at step 0, row 1 again at step 2, row 2 at the last."""
    types = np.full((STEPS, ROWS), StepType.MID, np.int32)
    types[0], types[1, 1], types[2, 1] = StepType.FIRST, StepType.LAST, StepType.FIRST
    types[STEPS - 1, 2] = StepType.FIRST
    return types


def _acted(algorithm: Any, observations: list[Any], step_types: np.ndarray) -> dict[str, list[np.ndarray]]:
    """What the algorithm does at each step, by a plain loop; leaves in the order of the nests."""
    results: dict[str, list[list[np.ndarray]]] = {"action": [], "distribution": [], "value": []}
    states = [
        tf.nest.map_structure(lambda s: np.zeros((ROWS, *s.shape), np.float32), spec)
        for spec in (algorithm.predict_state_spec, algorithm.train_state_spec)
    ]
    for observation, types in zip(observations, step_types, strict=True):
        inputs = algorithm.transform_timestep(time_step(algorithm, observation, types))
        for state in tf.nest.flatten(states):
            state[types == StepType.FIRST] = 0.0
        before = [tf.nest.map_structure(tf.constant, s) for s in states]
        predicted = algorithm.predict(inputs, before[0], epsilon_greedy=0.0)
        with rng.scope(tf.constant([1, 2])):
            rolled = algorithm.rollout(inputs, before[1], OFF_POLICY_TRAINING)
        states = [tf.nest.map_structure(lambda s: s.numpy().copy(), p.state) for p in (predicted, rolled)]
        (distribution,) = nest_utils.find_field(rolled.info, "action_distribution")
        (value,) = nest_utils.find_field(rolled.info, "value")
        results["action"].append([a.numpy() for a in tf.nest.flatten(predicted.action)])
        results["distribution"].append(
            [p.numpy() for p in tf.nest.flatten(nest_utils.distributions_to_params(distribution))]
        )
        results["value"].append([value.numpy()])
    return {name: [np.stack(leaf) for leaf in zip(*steps, strict=True)] for name, steps in results.items()}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[pathlib.Path, dict[str, list[np.ndarray]]]]:
    """Of each policy its directory, with the outputs of a fresh process, and what it does itself."""
    root = tmp_path_factory.mktemp("models")
    result = {}
    for name in POLICIES:
        algorithm = make(name)
        directory = root / name
        assert export_policy(exportable(algorithm), str(directory), facts={"step": 12}) == [
            "saved_model",
            "metadata.json",
        ]
        observations = _observations(algorithm)
        columns = zip(*(tf.nest.flatten(o) for o in observations), strict=True)
        names = [n for n in NAMES[name][0] if n != "step_type"]
        inputs = dict(zip(names, (np.stack(c) for c in columns), strict=True))
        np.savez(directory / "inputs.npz", step_type=_step_types(), **inputs)
        result[name] = directory, _acted(algorithm, observations, _step_types())
    job = {
        "models": [str(d) for d, _ in result.values()],
        "signatures": ["action", "distribution", "value"],
        "action": {str(d): NAMES[name][1][0] for name, (d, _) in result.items()},
    }
    (root / "job.json").write_text(json.dumps(job))
    run = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(root / "job.json")],
        cwd=root,
        env={k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return result


@pytest.mark.parametrize("name", POLICIES)
def test_a_process_without_alf_acts_alike(name: str, played: Any) -> None:
    directory, expected = played[name]
    outputs = dict(np.load(directory / "outputs.npz"))
    _, actions, parameters = NAMES[name]
    for signature, names in (("action", actions), ("distribution", parameters), ("value", ["value"])):
        own = [f"{signature}/{n}" for n in names]
        assert {k for k in outputs if k.startswith(f"{signature}/") and "/state" not in k} == set(own)
        for key, leaf in zip(own, expected[signature], strict=True):
            assert outputs[key].dtype == leaf.dtype
            assert outputs[key].shape == leaf.shape
            np.testing.assert_allclose(outputs[key], leaf, rtol=1e-5, atol=1e-5, err_msg=key)
    # The oracle can fail: other rows and steps give other values.
    assert np.ptp(expected["value"][0]) > 0.01
    assert all(np.ptp(leaf) > 0 for leaf in expected["action"])


@pytest.mark.parametrize("name", POLICIES)
def test_metadata_tells_names_and_shapes(name: str, played: Any) -> None:
    metadata = json.loads((played[name][0] / "metadata.json").read_text())
    inputs, actions, parameters = NAMES[name]
    state = STATE.get(name, [])
    signatures = metadata["signatures"]
    assert set(signatures) == {"action", "distribution", "value"} | ({"get_initial_state"} if state else set())
    for signature, own in (("action", actions), ("distribution", parameters), ("value", ["value"])):
        assert set(signatures[signature]["inputs"]) == {*inputs, *state}
        assert set(signatures[signature]["outputs"]) == {*own, *state}
    assert [leaf["name"] for leaf in metadata["specs"]["action"]] == actions
    assert [leaf["name"] for leaf in metadata["specs"]["state"]] == state
    assert metadata["step"] == 12
    assert metadata["format"] == 1
    assert metadata["tensorflow"] == tf.__version__


def test_metadata_has_bounds_and_kinds_of_distributions(played: Any) -> None:
    specs = json.loads((played["dict_observation"][0] / "metadata.json").read_text())["specs"]
    assert specs["observation"][0] == {
        "name": "observation_camera",
        "shape": [4, 4, 1],
        "dtype": "uint8",
        "minimum": 0,
        "maximum": 255,
    }
    assert specs["action"][1]["minimum"] == [-1.0, 0.0]
    assert specs["distribution"] == [
        {"action": "action_gear", "type": "Categorical"},
        {"action": "action_steer", "type": "MultivariateNormalDiag"},
    ]
    box = json.loads((played["feed_forward"][0] / "metadata.json").read_text())["specs"]["observation"][0]
    assert box["maximum"] == [1.0, 2.0, None, None]


def test_later_exports_have_the_new_weights(tmp_path: pathlib.Path) -> None:
    algorithm = make("feed_forward")
    export = PolicyExporter(exportable(algorithm))
    export(str(tmp_path / "one"))
    before = [v.numpy() for v in algorithm.acting_variables()]
    for variable in algorithm.acting_variables():
        variable.assign(variable * 1.5)
    export(str(tmp_path / "two"))
    export(str(tmp_path / "two"))
    for directory, factor in (("one", 1.0), ("two", 1.5)):
        weights = tf.saved_model.load(str(tmp_path / directory / "saved_model")).weights
        found = sorted(float(np.abs(w.numpy()).sum()) for w in weights)
        np.testing.assert_allclose(found, sorted(float(np.abs(w * factor).sum()) for w in before), rtol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_exports_change_nothing(tmp_path: pathlib.Path) -> None:
    algorithm = make("feed_forward")

    def state() -> list[Any]:
        draws = [np.random.random(), tf.random.uniform([]).numpy(), rng.next_seed().numpy().tolist()]
        return draws + [v.numpy().tolist() for v in algorithm.variables]

    export = PolicyExporter(exportable(algorithm))
    results = []
    for exports in (0, 2):
        tf.random.set_seed(5)
        np.random.seed(5)
        for i in range(exports):
            export(str(tmp_path / str(i)))
        results.append(state())
    assert results[0] == results[1]


def test_a_wrong_model_is_refused_and_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("feed_forward")
    export = PolicyExporter(exportable(algorithm))
    export(str(tmp_path / "good"))
    read = saved_model.Weights.read

    def wrong(self: Any) -> Any:
        return tuple(w + 1e-3 for w in read(self))

    monkeypatch.setattr(saved_model.Weights, "read", wrong)
    with pytest.raises(ExportError, match="differs from the policy's by"):
        export(str(tmp_path / "wrong"))
    with pytest.raises(ExportError, match=r"differs|by the policy"):
        export(str(tmp_path / "good"))
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["good"]
    assert sorted(p.name for p in (tmp_path / "good").iterdir()) == ["metadata.json", "saved_model"]
    export(str(tmp_path / "wrong"))


def test_weights_that_are_not_finite_are_refused(tmp_path: pathlib.Path) -> None:
    algorithm = make("feed_forward")
    algorithm.acting_variables()[0].assign(algorithm.acting_variables()[0] * np.nan)
    with pytest.raises(ExportError, match="not finite"):
        export_policy(exportable(algorithm), str(tmp_path / "model"))
    assert not list(tmp_path.iterdir())


def test_a_policy_that_calls_python_is_refused(tmp_path: pathlib.Path) -> None:
    algorithm = make("feed_forward")
    algorithm._observation_transformers.append(
        lambda o: tf.ensure_shape(tf.numpy_function(lambda x: x * 2, [o], tf.float32), [None, 4])
    )
    with pytest.raises(ExportError, match="calls Python"):
        export_policy(exportable(algorithm), str(tmp_path / "model"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("module", "name"), [(tf.raw_ops, "SaveV2"), (tf.saved_model, "save")])
def test_a_disk_that_fails_is_told_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    export = PolicyExporter(exportable(make("feed_forward")))

    def full(*args: Any, **kwargs: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(module, name, full)
    with pytest.raises(ExportError, match="No space left"):
        export(str(tmp_path / "model"))
    assert not list(tmp_path.iterdir())


def test_a_graph_that_is_not_as_it_was_written_is_told(tmp_path: pathlib.Path) -> None:
    writer = saved_model.SavedModelWriter(exportable(make("feed_forward")))
    writer.write(str(tmp_path))
    writer.verify(str(tmp_path))
    graph = tmp_path / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(ExportError, match=r"saved_model\.pb is not as it was written"):
        writer.verify(str(tmp_path))


def test_other_files_in_the_directory_stay(tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.onnx").write_text("of an earlier export")
    export_policy(exportable(make("feed_forward")), str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metadata.json", "notes.txt", "saved_model"]
    file = tmp_path / "notes.txt"
    with pytest.raises(ExportError, match="is a file"):
        export_policy(exportable(make("feed_forward")), str(file))
    assert file.read_text() == "mine"


def test_a_tilde_is_home_and_what_a_killed_export_has_left_is_no_part_of_the_next(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    left = tmp_path / "model.export-partial"
    left.mkdir()
    (left / "half.pb").write_text("a half")
    monkeypatch.chdir(tmp_path)
    export_policy(exportable(make("feed_forward")), os.path.join("~", "model"))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["metadata.json", "saved_model"]


def test_acting_that_looks_at_rewards_gets_them_as_inputs(tmp_path: pathlib.Path) -> None:
    algorithm = make("feed_forward")
    predict = algorithm.predict
    algorithm.predict = lambda t, *args, **kwargs: predict(
        t._replace(observation=t.observation + t.reward[:, None]), *args, **kwargs
    )
    writer = saved_model.SavedModelWriter(exportable(algorithm))
    assert writer.inputs_of("action") == ["reward", "observation"]
    assert writer.inputs_of("value") == ["observation"]
    writer.write(str(tmp_path))
    writer.verify(str(tmp_path))


class Counter(RLAlgorithm):
    """Counts the steps of an episode in its state, and acts by the count; records that action, and no value."""

    def __init__(self) -> None:
        super().__init__(BOX, DISCRETE, train_state_spec={"Count!": tf.TensorSpec([], tf.float32)}, name="Counter")

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        count = state["Count!"] + 1.0
        action = tf.cast(count, tf.int64) % 3
        return PolicyStep(action, {"Count!": count}, {"action_distribution": action})


def test_a_state_begins_at_zero_in_every_row_at_first(tmp_path: pathlib.Path) -> None:
    """Networks of TF-Agents do that themselves; here nobody does but the exported model."""
    export_policy(exportable(Counter()), str(tmp_path))
    signatures = tf.saved_model.load(str(tmp_path / "saved_model")).signatures
    assert set(signatures) == {"action", "distribution", "get_initial_state"}
    assert set(signatures["distribution"].structured_outputs) == {"action", "state_count_"}
    described = json.loads((tmp_path / "metadata.json").read_text())["specs"]["distribution"]
    assert described == [{"action": "action", "type": "Deterministic"}]
    state = signatures["get_initial_state"](batch_size=tf.constant(2))
    assert {n: x.numpy().tolist() for n, x in state.items()} == {"state_count_": [0.0, 0.0]}
    actions = []
    for types in ([0, 0], [1, 1], [1, 0], [1, 1]):
        step = signatures["action"](
            observation=tf.zeros([2, 4]),
            step_type=tf.constant(types),
            **state,
        )
        state = {n: step[n] for n in state}
        actions.append(step["action"].numpy().tolist())
    assert actions == [[1, 1], [2, 2], [0, 1], [1, 2]]


class Halves(RLAlgorithm):
    """Acts by two observations, of which it keeps one in the state, and records a count, for which it keeps that too."""

    def __init__(self) -> None:
        scalar = tf.TensorSpec([], tf.float32)
        super().__init__(
            BOX,
            DISCRETE,
            train_state_spec={"acting": scalar, "recording": scalar},
            predict_state_spec={"acting": scalar},
            name="Halves",
        )

    def predict(self, time_step: Any, state: Any, epsilon_greedy: float) -> PolicyStep:
        seen = time_step.observation[:, 0]
        return PolicyStep(tf.cast(seen > state["acting"], tf.int64), {"acting": seen}, ())

    def rollout(self, time_step: Any, state: Any, mode: int) -> PolicyStep:
        step = self.predict(time_step, state, 0.0)
        count = state["recording"] + 1.0
        recorded = tf.cast(count, tf.int64) % 3
        return PolicyStep(step.action, step.state | {"recording": count}, {"action_distribution": recorded})


def test_each_signature_takes_and_gives_its_own_part_of_the_state(tmp_path: pathlib.Path) -> None:
    """All of that, whether its operations need it or not: what is given back goes in again."""
    writer = saved_model.SavedModelWriter(exportable(Halves()))
    parts = {"action": ["state_acting"], "distribution": ["state_acting", "state_recording"]}
    for name, own in parts.items():
        assert writer.inputs_of(name) == ["step_type", "observation", *own]
        assert sorted(writer.outputs_of(name)) == ["action", *own]
    writer.write(str(tmp_path))
    writer.verify(str(tmp_path))


def test_recurrent_and_nested_policies_are_among_those_tested() -> None:
    assert set(STATE) == RECURRENT
    assert set(NAMES) == set(POLICIES)
    assert isinstance(CAMERA["goal"], dict)
