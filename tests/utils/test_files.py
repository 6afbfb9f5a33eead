"""Names of files that stand for any text."""

from __future__ import annotations

import os
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.utils import files
from alf.utils.files import folder_name


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("chaser_0", "chaser_0"),
        ("Striker?team=1", "Striker%3Fteam%3D1"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".x", "%2Ex"),
    ],
)
def test_what_a_folder_is_called(name, folder):
    assert folder_name(name) == folder


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_has_one_folder_and_gets_nowhere_else(name):
    folder = folder_name(name)
    assert urllib.parse.unquote(folder) == name
    assert folder.isascii()
    assert folder.isprintable()
    assert "/" not in folder
    assert folder not in (".", "..")


def test_paths_begin_where_they_are_said_to(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with files.relative_to("/far/away"):
        assert files.absolute("a/../b") == "/far/away/b"
        assert files.absolute("/c") == "/c"
        assert files.absolute("~") == os.path.expanduser("~")
        assert files.beginning() == "/far/away"
    assert files.absolute("b") == str(tmp_path / "gone" / "b")
    assert files.beginning() == str(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert files.beginning() is None
    with files.relative_to(files.beginning()):
        assert files.absolute("/c") == "/c"


def test_a_path_is_made_absolute_where_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/of/somebody")
    assert files.full_path("runs/a/", "root_dir") == str(tmp_path / "runs" / "a")
    assert files.full_path("~/run", "root_dir") == "/of/somebody/run"


def test_a_path_that_is_another_one_for_tensorflow_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^root_dir=/of/\udce4 .*: set PYTHONUTF8=1 in the environment"):
        files.full_path("/of/\udce4", "root_dir")
    monkeypatch.setattr(os, "fsencode", lambda path: path.encode("latin-1"))
    with pytest.raises(ValueError, match=r"^root_dir=/of/ä "):
        files.full_path("/of/ä", "root_dir")
    assert files.full_path("/of/a", "root_dir") == "/of/a"


@pytest.mark.parametrize("path", ["/of/run [1]", "/of/lr=[0.1]/run", "/of/a\\\\b"])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(path):
    with pytest.raises(ValueError, match=r"^root_dir=/of/.* has a \[ or \\, with which TensorFlow finds no checkpoint"):
        files.check_name(path, "root_dir")
    files.check_name("/of/a b/*?{x}]=@,:%\"'", "root_dir")
