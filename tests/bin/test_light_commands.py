"""Commands that only read files and start others begin at once: they do not load TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

import alf
from tests.bin.running import ROOT


@pytest.mark.parametrize("command", alf._LIGHT_COMMANDS)
def test_a_light_command_loads_no_tensorflow(command):
    code = (
        "import importlib, sys, types; m = types.ModuleType('alf'); m.__path__ = ['alf']; sys.modules['alf'] = m\n"
        f"importlib.import_module({command!r})\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
