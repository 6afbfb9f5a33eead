"""What importing alf sets in TensorFlow, and what it leaves to the program; in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_SCRIPT = """
{before}
import alf
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.util import _pywrap_util_port

layer = tf.keras.layers.Dense(4, activation=tf.tanh)
layer.build((2, 4))
with context.collect_graphs(optimized=True) as graphs:
    tf.function(layer)(tf.ones((2, 4)))
operations = {{node.op for graph in graphs for node in graph.node}}
print(_pywrap_util_port.IsMklEnabled(), "Tanh" in operations, "_FusedMatMul" in operations)
"""
_FUSING = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"remapping": True})
"""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is TensorFlow's default elsewhere or not there"
)
@pytest.mark.parametrize(
    ("environment", "before", "expected"),
    [
        ({}, "", "True True False"),
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "", "False True True"),
        ({}, _FUSING, "True False True"),
    ],
    ids=["default", "without_onednn", "the_programs_own"],
)
def test_onednn_computes_products_but_no_activations(environment: dict[str, str], before: str, expected: str) -> None:
    inherited = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(before=before)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == expected


def test_what_nobody_can_do_anything_about_is_not_said() -> None:
    pytest.importorskip("pygame")
    run = subprocess.run(
        [sys.executable, "-c", "import alf, pygame.pkgdata"], capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_without_tf_agents_the_way_to_install_it_is_told() -> None:
    script = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "tf_agents" else find(name, *rest)
import alf
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 1
    assert "ImportError: alf needs TF-Agents and found none" in run.stderr
    assert "`pip install --no-deps tf-agents==0.19.0`" in run.stderr
