"""Reading gin files by path, beside, and by name; names that do not exist; what a run has used."""

from __future__ import annotations

import subprocess
import sys

import gin
import pytest

import alf.environments.suite_gym  # noqa: F401
from alf.algorithms.sac_algorithm import SacAlgorithm
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils
from alf.utils.gin_utils import GinConfigError


@gin.configurable(module="test_gin_utils")
def gin_leaf(first_value=1, second_value=2):
    return first_value, second_value


@gin.configurable(module="test_gin_utils")
class GinBox:
    def __init__(self, content=None, size=3):
        self.content = content
        self.size = size


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_file_by_path_and_bindings_win(tmp_path):
    path = _write(tmp_path / "a.gin", "gin_leaf.first_value = 10\ngin_leaf.second_value = 20\n")
    gin_utils.parse_gin([path], ["gin_leaf.second_value = 30"])
    assert gin_leaf() == (10, 30)


def test_includes_are_looked_for_beside_the_including_file(tmp_path, monkeypatch):
    _write(tmp_path / "work" / "inner.gin", "gin_leaf.first_value = -1\n")
    _write(tmp_path / "files" / "sub" / "inner.gin", "gin_leaf.first_value = 5\ninclude 'deep.gin'\n")
    _write(tmp_path / "files" / "sub" / "deep.gin", "gin_leaf.second_value = 6\n")
    _write(tmp_path / "files" / "deep.gin", "gin_leaf.second_value = -1\n")
    path = _write(tmp_path / "files" / "outer.gin", 'include "sub/inner.gin"  # with a comment\n')
    monkeypatch.chdir(tmp_path / "work")
    gin_utils.parse_gin([path])
    assert gin_leaf() == (5, 6)


def test_file_by_the_name_of_an_example(tmp_path, monkeypatch):
    _write(tmp_path / "shipped" / "my_example.gin", "gin_leaf.first_value = 7\n")
    path = _write(tmp_path / "elsewhere" / "mine.gin", "include 'my_example.gin'\ngin_leaf.second_value = 8\n")
    monkeypatch.setattr(gin_utils, "_REPOSITORY_EXAMPLES", tmp_path / "shipped")
    assert gin_utils.find_gin_file("my_example").name == "my_example.gin"
    gin_utils.parse_gin([path])
    assert gin_leaf() == (7, 8)
    with pytest.raises(GinConfigError, match=r"No gin file 'my_exampel.gin' .*Did you mean 'my_example.gin'"):
        gin_utils.parse_gin(["my_exampel.gin"])


def test_a_file_may_include_the_example_whose_name_it_has(tmp_path, monkeypatch):
    _write(tmp_path / "shipped" / "one.gin", "gin_leaf.first_value = 7\ninclude 'two.gin'\n")
    _write(tmp_path / "shipped" / "two.gin", "gin_leaf.second_value = 9\n")
    path = _write(tmp_path / "mine" / "one.gin", "include 'one.gin'\n")
    # What the example includes is beside it first.
    _write(tmp_path / "mine" / "two.gin", "gin_leaf.second_value = -1\n")
    monkeypatch.setattr(gin_utils, "_REPOSITORY_EXAMPLES", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path / "mine")
    gin_utils.parse_gin([path])
    assert gin_leaf() == (7, 9)


@pytest.mark.parametrize("folder", ["it's", "both ' and \"", "back\\slash"])
def test_an_include_below_a_folder_of_any_name(tmp_path, folder):
    _write(tmp_path / folder / "inner.gin", "gin_leaf.first_value = 9\n")
    gin_utils.parse_gin([_write(tmp_path / folder / "outer.gin", "include 'inner.gin'\n")])
    assert gin_leaf()[0] == 9


def test_missing_include_is_named(tmp_path):
    path = _write(tmp_path / "a.gin", "include 'nowhere.gin'\n")
    with pytest.raises(GinConfigError, match=r"No gin file 'nowhere.gin'"):
        gin_utils.parse_gin([path])


_NOT_IMPORTED = """
from alf.utils import gin_utils
for name in (
    "DuelingQNetwork", "alf.DuelingQNetwork", "DuelngQNetwork", "sync_off_policy_trainer", "suite_agents.load",
    "tf.nn.relu", "Adam", "tf.nn.rleu",
):
    try:
        gin_utils.parse_gin([], [f"x = @{name}"])
    except gin_utils.GinConfigError as e:
        print(str(e).splitlines()[0])
"""


def test_names_of_modules_that_are_not_imported_come_with_the_import():
    done = subprocess.run([sys.executable, "-c", _NOT_IMPORTED], capture_output=True, text=True, check=True)
    dueling, same, misspelt, trainer, load, *external = done.stdout.splitlines()
    module = "alf.networks.dueling_q_network"
    for told in (dueling, same):
        assert told.endswith(f"'. It is in {module}: put `import {module}` in the gin file.")
    assert misspelt.endswith(
        f" Did you mean 'DuelingQNetwork'? It is in {module}: put `import {module}` in the gin file."
    )
    assert "put `import alf.trainers.off_policy_trainer` in" in trainer
    assert "put `import alf.environments.suite_agents` in" in load
    assert all(told.endswith(": put `import alf.utils.external_configurables` in the gin file.") for told in external)
    assert " Did you mean 'tf.nn.relu'? It is in " in external[-1]


@pytest.mark.parametrize(
    ("binding", "hint"),
    [
        ("gin_laef.first_value = 1", "Did you mean 'gin_leaf'"),
        ("gin_leaf.frist_value = 1", "Did you mean 'first_value'"),
        ("scope/gin_leaf.frist_value = 1", "Did you mean 'first_value'"),
        ("GinBox.content = @scope/gin_laef()", "Did you mean 'gin_leaf'"),
        ("GinBox.contnt = 1", "Did you mean 'content'"),
        ("Adam.learning_rat = 1", "Did you mean 'learning_rate'"),
        ("tf.nn.rleu.name = 1", "Did you mean 'nn.relu'|Did you mean 'tf.nn.relu'"),
        ("gin_leaf.first_value = @zzz_no_such_thing", "import your_module"),
        ("gin_leaf.first_value = (1", "never closed"),
        ("gin_leaf.first_value = %no_macro", "%no_macro is used and never bound: write `no_macro = ...`"),
        (
            "gin_leaf.first_value=Pole-v1",
            r"^Pole-v1 is no value, in gin_leaf.first_value=Pole-v1 .*needs quotes \('Pole-v1'",
        ),
        ("gin_leaf.first_value=true", "true is no value.*truth values are True and False"),
        ("gin_leaf.first_value=10k", "^gin_leaf.first_value=10k cannot be read as a binding"),
    ],
)
def test_errors_are_one_sentence_with_the_nearest_name(binding, hint):
    with pytest.raises(GinConfigError, match=hint):
        gin_utils.parse_gin([], [binding])


@gin.configurable(module="test_gin_utils")
class GinSac(SacAlgorithm):
    pass


@gin.configurable(module="test_gin_utils")
class GinOpen(SacAlgorithm):
    def __init__(self, my_option=1, **kwargs):
        super().__init__(**{k: v for k, v in kwargs.items() if k != "my_options"})


@pytest.mark.parametrize(
    ("binding", "hint"),
    [
        ("SacAlgorithm.target_update_tua=0.005", " Did you mean 'target_update_tau'?"),
        ("here/SacAlgorithm.gradient_cliping=1", " Did you mean 'gradient_clipping'?"),
        ("GinSac.reward_shaping_fun=None", " Did you mean 'reward_shaping_fn'?"),
        ("suite_gym.load.gym_env_wrapers=()", " Did you mean 'gym_env_wrappers'?"),
        ("SacAlgorithm.zzz='x'", " It takes: observation_spec, action_spec, actor_network, "),
    ],
)
def test_names_that_nothing_behind_kwargs_takes(binding, hint):
    with pytest.raises(GinConfigError) as told:
        gin_utils.parse_gin([], [binding])
    assert str(told.value).startswith(f"{binding}: there is no such parameter.{hint}")


@pytest.mark.parametrize(
    "binding",
    [
        "SacAlgorithm.gradient_clipping=1",
        "SacAlgorithm.reward_shaping_fn=@reward_scaling",
        "GinSac.optimizer=None",
        "GinOpen.my_options=1",
        "suite_gym.load.gravity=3.0",
        "suite_gym.load.continuous=True",
        "Dense.input_shape=(3,)",
    ],
)
def test_names_that_something_behind_kwargs_takes(binding):
    gin_utils.parse_gin([], [binding])


def test_error_in_a_file_says_where(tmp_path):
    path = _write(tmp_path / "a.gin", "gin_leaf.first_value = 1\n\ngin_leaf.bad = 2\n")
    with pytest.raises(GinConfigError, match=r"(?s)a\.gin.* line 3"):
        gin_utils.parse_gin([path])


def test_unused_bindings():
    gin_utils.parse_gin(
        [],
        [
            "size_macro = 4",
            "idle_macro = 5",
            "GinBox.size = %size_macro",
            "GinBox.content = @inner/gin_leaf()",
            "inner/gin_leaf.first_value = 1",
            "gin_leaf.first_value = 100",
            "gin_leaf.second_value = 2",
            "other/gin_leaf.second_value = 3",
        ],
    )
    assert "GinBox.size" in gin_utils.unused_bindings()
    assert GinBox().content == (1, 2)
    assert gin_utils.unused_bindings() == ["gin_leaf.first_value", "idle_macro", "other/gin_leaf.second_value"]


def test_binding_overridden_by_the_caller_is_unused():
    gin_utils.parse_gin([], ["gin_leaf.first_value = 9"])
    gin_leaf(first_value=1)
    assert gin_utils.unused_bindings() == ["gin_leaf.first_value"]


def test_operative_config_reloads_to_the_same(tmp_path):
    bindings = [
        "GinBox.content = @inner/gin_leaf()",
        "inner/gin_leaf.first_value = 'x'",
        "other/gin_leaf.first_value = 3",
    ]
    gin_utils.parse_gin([], bindings)
    first = GinBox().content
    path = tmp_path / "run" / "configured.gin"
    text = gin_utils.write_operative_config(str(path), comments=["seed: 5"])
    assert path.read_text() == text
    assert text.startswith("# seed: 5\n")
    assert "# other/gin_leaf.first_value = 3\n" in text
    assert [p.name for p in path.parent.iterdir()] == ["configured.gin"]
    gin.clear_config()
    gin_utils.parse_gin([str(path)])
    box = GinBox()
    assert box.content == first == ("x", 2)
    assert box.size == 3
    gin_leaf_text = gin_utils.operative_config(["seed: 5"])
    assert gin_leaf_text.splitlines()[:10] == text.splitlines()[:10]


def test_what_another_process_has_used_counts_as_used():
    bindings = ["gin_leaf.first_value = %seven", "seven = 7", "other/gin_leaf.second_value = 3", "idle = 1"]
    gin_utils.parse_gin([], bindings)
    with gin.config_scope("other"):
        assert gin_leaf() == (7, 3)
    used = gin_utils.used_bindings()
    assert used == [
        ("", "test_gin_utils.gin_leaf", "first_value"),
        ("other", "test_gin_utils.gin_leaf", "second_value"),
        ("seven", "gin.macro", "value"),
    ]
    text = gin_utils.operative_config()
    gin.clear_config()
    gin_utils.parse_gin([], bindings)
    gin_utils.count_as_used([*used, ("", "test_gin_utils.gin_leaf", "of_another_version"), ("", "nowhere", "x")])
    assert gin_utils.used_bindings() == used
    assert gin_utils.unused_bindings() == ["idle"]
    told = gin_utils.operative_config()
    assert "# idle = 1\n" in text
    assert "# idle = 1\n" in told
    for line in ("seven = 7", "gin_leaf.first_value = %seven", "other/gin_leaf.second_value = 3"):
        assert f"\n{line}\n" in told


def test_what_another_process_may_use_stays_in_force(tmp_path):
    gin_utils.parse_gin([], ["other/gin_leaf.second_value = %three", "three = 3"])
    path = str(tmp_path / "configured.gin")
    gin_utils.write_operative_config(path, unused_count=True)
    gin.clear_config()
    gin_utils.parse_gin([path])
    with gin.config_scope("other"):
        assert gin_leaf(1) == (1, 3)


@pytest.mark.parametrize(
    "binding",
    [
        "Adam.learning_rate = 1e-3",
        "ac/Adam.learning_rate = 1e-3",
        "tf.keras.optimizers.Adam.epsilon = 1e-5",
        "TensorSpec.shape = (3,)",
        "tf.TensorSpec.shape = (3,)",
        "BoundedTensorSpec.minimum = 0",
        "tf.keras.layers.Conv2D.padding = 'same'",
        "tf.nn.leaky_relu.alpha = 0.1",
        "NormalProjectionNetwork.std_transform = @tf.math.exp",
        *(f"ActorDistributionNetwork.activation_fn = @tf.nn.{n}" for n in ("elu", "relu", "tanh", "softsign", "swish")),
        "ActorDistributionRnnNetwork.lstm_size = (8,)",
        "ValueNetwork.fc_layer_params = (3,)",
        "ValueRnnNetwork.lstm_size = (8,)",
        "CategoricalProjectionNetwork.logits_init_output_factor = 0.1",
        "EncodingNetwork.fc_layer_params = (3,)",
        "TensorSpec.dtype = %tf.float32",
    ],
)
def test_names_that_gin_files_use(binding):
    from tf_agents.networks import actor_distribution_rnn_network, value_rnn_network  # noqa: F401

    gin_utils.parse_gin([], [binding])


def test_adam_is_the_optimizer_that_traced_loops_run_fastest():
    import tensorflow as tf

    gin_utils.parse_gin([], ["GinBox.content = @Adam()", "Adam.learning_rate = 0.5"])
    optimizer = GinBox().content
    assert isinstance(optimizer, tf.keras.optimizers.legacy.Adam)
    assert optimizer.get_config()["learning_rate"] == 0.5
