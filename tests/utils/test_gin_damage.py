"""Gin text that is damaged in any way is read, or refused in a sentence; nothing else, and never for long."""

from __future__ import annotations

import pathlib
import re

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alf.algorithms.agent as agent
import alf.trainers.off_policy_trainer as off_policy_trainer
from alf.utils import external_configurables as external_configurables
from alf.utils import gin_utils
from alf.utils.gin_utils import GinConfigError
from tests.awake import awake_secs

assert agent
assert off_policy_trainer

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TEXTS = [
    "\n".join((EXAMPLES / name).read_text() for name in ("mlp_networks.gin", "ppo.gin")),
    (EXAMPLES / "async_ppo_cart_pole.gin").read_text(),
]
_SECONDS = 20.0
_ODD = st.text(st.sampled_from("@%()[]{}'\"=.,:#/\\\n\t\r -+*0123456789eE_\0é\ud7ff"), min_size=1, max_size=6)
_VALUES = st.sampled_from(
    [
        "'text'",
        "None",
        "-1",
        "1e999",
        "[",
        "@",
        "@()",
        "@nowhere()",
        "%nothing",
        "{1: [2]}",
        "(",
        "''",
        "0x",
        "1j",
        "9" * 5000,
    ]
)


@st.composite
def damaged(draw):
    """An example in which something is deleted, doubled, garbled, renamed, or bound to another value; a few times."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["delete", "double", "insert", "rename", "bind", "cut"]))
        begin = draw(st.integers(0, max(0, len(text) - 1)))
        end = min(len(text), begin + draw(st.integers(1, 40)))
        if kind == "delete":
            text = text[:begin] + text[end:]
        elif kind == "double":
            text = text[:end] + text[begin:end] + text[end:]
        elif kind == "insert":
            text = text[:begin] + draw(_ODD) + text[begin:]
        elif kind == "cut":
            text = text[:end]
        else:
            pattern = r"\w+" if kind == "rename" else r"= *[^\n]*"
            found = list(re.finditer(pattern, text))
            if found:
                match = draw(st.sampled_from(found))
                other = match[0][::-1] if kind == "rename" else f"= {draw(_VALUES)}"
                text = text[: match.start()] + other + text[match.end() :]
    return text


def _outcome(files=(), bindings=()):
    """What came of parsing: "" or the sentence."""
    gin.clear_config()
    began = awake_secs()
    try:
        gin_utils.parse_gin([str(f) for f in files], bindings)
        said = ""
    except GinConfigError as e:
        said = str(e)
        assert said.strip()
        assert len(said) < 20_000
    assert awake_secs() - began < _SECONDS
    return said


@given(damaged())
def test_a_damaged_file_is_read_or_refused_in_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("gin") / "damaged.gin"
    path.write_text(text, encoding="utf-8", newline="")
    _outcome([path])


@given(st.binary(max_size=200), st.sampled_from(TEXTS), st.integers(0, 400))
def test_bytes_that_are_no_text(tmp_path_factory, garbage, text, at):
    path = tmp_path_factory.mktemp("gin") / "bytes.gin"
    whole = text.encode()
    path.write_bytes(whole[:at] + garbage + b"\xff" + whole[at:])
    said = _outcome([path])
    assert str(path) in said
    assert "cannot be read" in said


@given(st.text(max_size=40) | _ODD | st.builds("TrainerConfig.num_envs = {}".format, _ODD | _VALUES))
def test_any_binding(binding):
    _outcome(bindings=[binding])


@pytest.mark.parametrize("files", [1, 2, 5])
def test_files_that_include_each_other_in_a_ring(tmp_path, files):
    for i in range(files):
        (tmp_path / f"{i}.gin").write_text(f"include '{(i + 1) % files}.gin'\n")
    said = _outcome([tmp_path / "0.gin"])
    assert f"{tmp_path / '0.gin'} includes itself" in said
    assert "remove one of these includes" in said
    # What was open is forgotten: the same files are no ring without one of the lines.
    (tmp_path / f"{files - 1}.gin").write_text("")
    assert _outcome([tmp_path / "0.gin"]) == ""
    (tmp_path / "twice.gin").write_text(f"include '{files - 1}.gin'\n" * 2)
    assert _outcome([tmp_path / "twice.gin"]) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_of_mine\n", "No module named 'no_such_module_of_mine'"),
        ("include 'nowhere'\n", "No gin file 'nowhere'"),
        ("include '" + "x" * 5000 + "'\n", "No gin file"),
        ("TrainerConfig.num_envs = (1,\n", "never closed"),
        ("TrainerConfig.num_envs = " + "[" * 3000 + "\n", ""),
    ],
)
def test_mistakes_of_people(tmp_path, text, message):
    path = tmp_path / "a.gin"
    path.write_text(text)
    said = _outcome([path])
    assert said
    assert message in said


def test_an_include_in_a_binding_and_a_name_of_any_length():
    assert "nowhere" in _outcome(bindings=["include 'nowhere'"])
    assert "No gin file" in _outcome(["x" * 5000])
    assert "No gin file" in _outcome([""])
    assert "No gin file" in _outcome(["a\0b"])
